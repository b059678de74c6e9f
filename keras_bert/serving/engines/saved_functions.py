"""Stores preprocessing and decoding in a SavedModel as functions, for engines that run the network.

    preprocess_NAME   inputs of the signature NAME -> token ids [T], segment ids [T], row splits
                      [B + 1], and the tensors that `decode_NAME` needs
    decode_NAME       outputs of the network, and these tensors -> the outputs of the signature
    network           token ids, segment ids, row splits -> outputs of the network

They are not signatures: TensorFlow Serving ignores them. B rows, T tokens of all rows.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_bert.serving.served_task import NetworkInputs, ServedTask, Steps

ATTRIBUTE = "engine_functions"
_NETWORK_SPECS = (
    tf.TensorSpec([None], tf.int32, name="input_ids"),
    tf.TensorSpec([None], tf.int32, name="segment_ids"),
    tf.TensorSpec([None], tf.int64, name="row_splits"),
)


def add_functions(served: ServedTask) -> None:
    """Adds the functions to a task's module, so that `tf.saved_model.save` stores them."""
    functions = tf.Module()
    functions.network = network = _network_function(served)
    outputs = network.get_concrete_function().structured_outputs
    specs = [tf.TensorSpec(outputs[name].shape, outputs[name].dtype) for name in served.spec().per]
    for name, steps in served.steps().items():
        preprocess, decode = _step_functions(steps, list(served.spec().per), specs)
        setattr(functions, f"preprocess_{name}", preprocess)
        setattr(functions, f"decode_{name}", decode)
    setattr(served, ATTRIBUTE, functions)


def _network_function(served: ServedTask) -> Callable:
    def network(ids: tf.Tensor, segments: tf.Tensor, splits: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = (
            tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for values in (ids, segments)
        )
        return served.outputs(NetworkInputs(*rows))

    return tf.function(network, input_signature=_NETWORK_SPECS, autograph=False)


def _step_functions(
    steps: Steps, names: Sequence[str], specs: Sequence[tf.TensorSpec]
) -> tuple[Callable, Callable]:
    """Returns the functions `preprocess` and `decode` of a signature.

    `names` and `specs` describe the outputs of the network.
    """
    structure: list[Any] = []

    def preprocess(*inputs: tf.Tensor) -> list[tf.Tensor]:
        prepared = steps.preprocess(*inputs)
        structure[:] = [tf.nest.map_structure(tf.type_spec_from_value, prepared)]
        ids, segments = prepared.input_ids, prepared.segment_ids
        parts = tf.nest.flatten(prepared, expand_composites=True)
        return [ids.values, segments.values, tf.cast(ids.row_splits, tf.int64), *parts]

    def decode(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = dict(zip(names, tensors[: len(names)], strict=True))
        prepared = tf.nest.pack_sequence_as(
            structure[0], tensors[len(names) :], expand_composites=True
        )
        return steps.decode(outputs, prepared)

    before = tf.function(preprocess, input_signature=list(steps.specs), autograph=False)
    parts = before.get_concrete_function().outputs[len(_NETWORK_SPECS) :]
    parts = [tf.TensorSpec(part.shape, part.dtype) for part in parts]
    return before, tf.function(decode, input_signature=[*specs, *parts], autograph=False)


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
