"""Runs the signatures of an export with an engine, and compares its answers with the SavedModel's.

An export with engines stores the steps of its signatures as functions (saved_model.py); between
`preprocess` and `decode`, the engine runs the network.

Before an engine serves, the texts below run through both the engine and the SavedModel, together
and one by one. The check compares

- the outputs of the network;
- the strings and integers of the answers, such as labels;
- the SavedModel's signature with the functions that the export stores for engines.

Floats may differ by TOLERANCE: the root of the sum of squared differences, divided by that of the
SavedModel's values. Of the strings and integers, at least the share EQUAL must be equal.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.export.engine_network import Batch, EngineNetwork, Rows
from keras_bert.export.engines import NetworkSpec

# The attribute of a SavedModel that has the functions.
ATTRIBUTE = "engine_functions"

# Rounding to bfloat16 changes a value by up to 0.4 %, and quantization of weights and activations
# to int8 by about 1 %; both add up over the layers.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.3}
EQUAL = {"float32": 1.0, "bfloat16": 0.9, "int8": 0.7}

SIGNATURE = "serving_default"
_TEXTS = (
    "[MASK] is the capital of France.",  # The mask is the first token, so it is never truncated.
    "The quick brown fox jumps over the lazy dog.",
    "",
    "In 911, Rollo became the first duke of Normandy, and swore fealty to King Charles III.",
    "Yes",
    "The company said that its profit rose by 12 percent in the third quarter, to $ 4.2 million.",
    "A truly good film, in which every scene is worth watching twice, or even more often.",
    "Angela Merkel met Barack Obama in Berlin on Monday, before she flew to New York. " * 4,
)

Answers = Mapping[str, tf.Tensor]


class SavedFunction:
    """Calls a function of a loaded SavedModel with positional tensors, with little overhead.

    For one text, the checks of a call from Python take as long as decoding.
    """

    def __init__(self, function: Any):
        self._function = function
        [concrete] = function.concrete_functions
        self.input_names = [
            spec.name for spec in tf.nest.flatten(concrete.structured_input_signature)
        ]
        self._concrete = concrete
        self._call_flat = _flat_call(concrete)

    def __call__(self, *tensors: tf.Tensor) -> Any:
        """Runs the function."""
        if self._call_flat is None:
            return self._function(*tensors)
        return self._call_flat(list(tensors), self._concrete.captured_inputs)


def _flat_call(concrete: Any) -> Callable | None:
    """Returns the method of a concrete function that skips the checks; None if it has another form.

    The method is not documented. Without it, calls take 0.05 ms longer.
    """
    method = getattr(concrete, "_call_flat", None)
    try:
        parameters = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # Not a function, or one without a signature.
        return None
    # The first argument, a list of tensors, has different names in different classes.
    return method if parameters[1:] == ["captured_inputs"] else None


class EngineFunction:
    """A signature whose network runs on an engine; called like the SavedModel's function."""

    def __init__(self, loaded: Any, signature: str, network: EngineNetwork):
        functions = getattr(loaded, ATTRIBUTE)
        self._preprocess = SavedFunction(getattr(functions, f"preprocess_{signature}"))
        self._decode = SavedFunction(getattr(functions, f"decode_{signature}"))
        self._network = network

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes the outputs of the signature."""
        rows, parts = self.preprocess(**inputs)
        return self.decode(self._network(rows), parts)

    def preprocess(self, **inputs: tf.Tensor) -> tuple[Rows, list[tf.Tensor]]:
        """Returns the rows for the network, and the tensors for `decode`."""
        prepared = self._preprocess(*(inputs[name] for name in self._preprocess.input_names))
        ids, segments, splits, *parts = prepared
        return Rows(ids.numpy(), segments.numpy(), splits.numpy()), parts

    def decode(self, outputs: list[np.ndarray], parts: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of the signature."""
        return self._decode(*map(tf.constant, outputs), *parts)


class Check(NamedTuple):
    """The signature to check, and its precisions.

    Attributes:
        names: the inputs of the signature SIGNATURE.
        precision: the precision of the engine.
        compute_type: the precision of the SavedModel.
    """

    names: Sequence[str]
    precision: str
    compute_type: str

    @property
    def lower(self) -> str:
        """The lower of the two precisions, which limits how well the results agree."""
        return max(self.precision, self.compute_type, key=list(TOLERANCE).index)


def example_inputs(names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns the texts of the check for each input; inputs get the texts in different order."""
    return {
        name: tf.constant(_TEXTS[index:] + _TEXTS[:index], tf.string)
        for index, name in enumerate(names)
    }


def difference(loaded: Any, network: EngineNetwork, check: Check) -> str | None:
    """Compares an engine with the loaded SavedModel.

    Returns a description of the first difference, or None if the answers agree.
    """
    function = EngineFunction(loaded, SIGNATURE, network)
    inputs = example_inputs(check.names)
    rows, parts = function.preprocess(**inputs)
    expected = _saved_outputs(loaded, rows, network)
    answers = loaded.signatures[SIGNATURE](**inputs)
    times = _repetitions(network, rows)
    many = [np.concatenate([values] * times) for values in expected]
    return (
        different_outputs(network.spec, network(_repeated(rows, times)), many, check)
        or different_outputs(network.spec, _one_by_one(network, rows), expected, check)
        or different_answers(function(**inputs), answers, check.lower, floats=False)
        or different_answers(function.decode(expected, parts), answers, check.compute_type)
    )


def _saved_outputs(loaded: Any, rows: Rows, network: EngineNetwork) -> list[np.ndarray]:
    outputs = getattr(loaded, ATTRIBUTE).network(*map(tf.constant, rows))
    return [outputs[name].numpy() for name in network.spec.per]


def _repetitions(network: EngineNetwork, rows: Rows) -> int:
    """Returns how often rows must be repeated, so that there is a group for each parallel call."""
    run = sum(len(group.rows) for group in Batch(rows, network.spec).groups(len(rows.splits), 1))
    return -(-network.parallel // max(run, 1))


def _repeated(rows: Rows, times: int) -> Rows:
    starts = np.arange(times)[:, np.newaxis] * rows.splits[-1] + rows.splits[:-1]
    splits = np.append(starts, times * rows.splits[-1])
    return Rows(np.tile(rows.input_ids, times), np.tile(rows.segment_ids, times), splits)


def _one_by_one(network: EngineNetwork, rows: Rows) -> list[np.ndarray]:
    """Runs the network for one row at a time, and returns the outputs of all rows."""
    outputs = []
    for start, end in itertools.pairwise(rows.splits):
        splits = np.array([0, end - start], rows.splits.dtype)
        outputs.append(
            network(Rows(rows.input_ids[start:end], rows.segment_ids[start:end], splits))
        )
    return [np.concatenate(values) for values in zip(*outputs, strict=True)]


def different_outputs(
    spec: NetworkSpec, found: Sequence[np.ndarray], expected: Sequence[np.ndarray], check: Check
) -> str | None:
    """Compares outputs of the network; returns the first difference, or None if they agree."""
    compared = 0
    for name, one, other in zip(spec.per, found, expected, strict=True):
        if one.shape != other.shape:
            return f"{name} has the shape {one.shape}; expected {other.shape}"
        # Integers, such as token ids, are compared in the answers.
        if np.issubdtype(other.dtype, np.floating):
            compared += other.size
            if message := _different_floats(name, one, other, check.lower):
                return message
    if not compared:
        return "the network has no outputs for the texts of the check; expected at least one value"
    return None


def different_answers(
    found: Answers, expected: Answers, precision: str, floats: bool = True
) -> str | None:
    """Compares answers; returns the first difference, or None if they agree.

    `floats` is whether floats are compared. Some, such as the difference of two logits, are less
    accurate than the outputs of the network from which they are computed.
    """
    if found.keys() != expected.keys():
        return f"the answers are {', '.join(found)}; expected {', '.join(expected)}"
    for name, value in expected.items():
        one, other = found[name].numpy(), value.numpy()
        if found[name].dtype != value.dtype:
            return f"{name} has the type {found[name].dtype.name}; expected {value.dtype.name}"
        if one.shape != other.shape:
            # The width is that of the row with the most entities.
            if precision == "float32":
                return f"{name} has the shape {one.shape}; expected {other.shape}"
            continue
        if value.dtype.is_floating:
            message = _different_floats(name, one, other, precision) if floats else None
        else:
            message = _different_values(name, one, other, precision)
        if message:
            return message
    return None


def _different_floats(
    name: str, found: np.ndarray, expected: np.ndarray, precision: str
) -> str | None:
    limit = TOLERANCE[precision]
    error = float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-6))
    if error <= limit:  # False for NaN.
        return None
    return f"{name} differs by {error:.2g}; expected at most {limit:g} in {precision}"


def _different_values(
    name: str, found: np.ndarray, expected: np.ndarray, precision: str
) -> str | None:
    limit = EQUAL[precision]
    equal = float(np.mean(found == expected)) if found.size else 1.0
    if equal >= limit:
        return None
    return f"{equal:.0%} of {name} are equal; expected at least {limit:.0%} in {precision}"
