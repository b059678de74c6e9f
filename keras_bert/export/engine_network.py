"""Runs the network of an export in onnxruntime or OpenVINO, on rows of any number and length.

An export with engines stores the steps of its signatures as functions (saved_model.py); between
`preprocess` and `decode`, the engine runs the network on the CPU. Rows are sorted by length and
divided into groups, which are padded and run at the same time, and the outputs get back the order
of the rows:

    Rows -> Batch.groups -> run -> Batch.set_outputs -> outputs

Before an engine serves, the texts below run through both the engine and the SavedModel, together
and one by one (`difference`). The check compares

- the outputs of the network;
- the strings and integers of the answers, such as labels;
- the SavedModel's signature with the functions that the export stores for engines.

Floats may differ by TOLERANCE: the root of the sum of squared differences, divided by that of the
SavedModel's values. Of the strings and integers, at least the share EQUAL must be equal.

B rows, S length of a row, T tokens of all rows, P masks in all rows; b rows of a group, s length of
its longest row.
"""

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.export.engines import NetworkSpec

GROUP_ROWS = 8  # The number of rows in a group.
_MAX_PARALLEL = 8  # Groups at the same time; the server has batches of 64 rows by default.
# The maximum number of tokens, with padding, and of masks in the groups that run at the same time.
# They limit the memory for attention scores and for logits over the vocabulary. On many cores, a
# group may have _GROUP_TOKENS nevertheless, because small groups are slow.
_MAX_TOKENS, _GROUP_TOKENS = 4096, 1024
_MAX_MASKS = 256
_OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}

# The attribute of a SavedModel that has the functions.
ATTRIBUTE = "engine_functions"

# Rounding to bfloat16 changes a value by up to 0.4 %, and quantization of weights and activations
# to int8 by about 1 %; both add up over the layers.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.3}
EQUAL = {"float32": 1.0, "bfloat16": 0.9, "int8": 0.7}

SIGNATURE = "serving_default"
TEXTS = (
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


# --- rows and groups ---


class Rows(NamedTuple):
    """The token ids and segment ids of all rows, int32 [T] each, and the row splits, [B + 1]."""

    input_ids: np.ndarray
    segment_ids: np.ndarray
    splits: np.ndarray


class Group(NamedTuple):
    """Some rows with padding, and their positions among all rows.

    Attributes:
        inputs: {input of the network: array}.
        rows: [b], the indices of the rows.
        real: bool [b, s], which positions are tokens.
        tokens: the indices of these tokens among the T tokens.
        masks: the indices of the group's masks among the P masks.
    """

    inputs: dict[str, np.ndarray]
    rows: np.ndarray
    real: np.ndarray
    tokens: np.ndarray
    masks: np.ndarray


def sort_into_groups(lengths: np.ndarray, group_rows: int, parallel: int) -> list[np.ndarray]:
    """Divides rows into groups of similar lengths; returns the row indices of each group.

    The number of groups is a multiple of `parallel`, the number of groups that run at the same
    time, if there are enough rows. Such groups share the limit of tokens, but each may have
    _GROUP_TOKENS. The group with the longest rows is first.
    """
    rows = len(lengths)
    count = -(-rows // max(group_rows, 1))
    count = min(-(-count // parallel) * parallel, rows)
    if not count:
        return []
    order = np.argsort(lengths, kind="stable")
    groups = []
    for group in reversed(np.array_split(order, count)):
        # The last row is the longest.
        limit = max(_MAX_TOKENS // parallel, _GROUP_TOKENS)
        parts = -(-len(group) * int(lengths[group[-1]]) // limit)
        groups += reversed(np.array_split(group, min(parts, len(group))))
    return groups


def _limited(rows: np.ndarray, masks: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Yields rows in parts with at most `limit` masks, or of one row; `masks` counts them."""
    if len(rows) == 1 or masks.sum() <= limit:
        yield rows
        return
    middle = len(rows) // 2
    yield from _limited(rows[:middle], masks[:middle], limit)
    yield from _limited(rows[middle:], masks[middle:], limit)


class Batch:
    """All rows of a call, and their outputs.

    Rows without a [MASK] token are skipped if all outputs of the network are per [MASK] token.
    """

    def __init__(self, rows: Rows, spec: NetworkSpec):
        self._rows = rows
        self._spec = spec
        self._starts = np.asarray(rows.splits[:-1], np.int64)
        self._lengths = np.asarray(rows.splits[1:], np.int64) - self._starts
        self._has_masks = "mask" in spec.per.values()
        if self._has_masks:
            self._is_mask = rows.input_ids == spec.mask_token_id
            self._mask_splits = np.concatenate([[0], np.cumsum(self._is_mask)])
        self._outputs: dict[str, np.ndarray] = {}

    @property
    def num_rows(self) -> int:
        """The number of rows, which is the maximum number of groups."""
        return len(self._lengths)

    def groups(self, group_rows: int, parallel: int) -> Iterator[Group]:
        """Yields the rows in padded groups, as `sort_into_groups` divides them."""
        if not self._has_masks:
            for rows in sort_into_groups(self._lengths, group_rows, parallel):
                yield self._group(rows)
            return
        splits = self._rows.splits
        masks = self._mask_splits[splits[1:]] - self._mask_splits[splits[:-1]]
        masked = np.flatnonzero(masks)  # The rows with masks.
        for group in sort_into_groups(self._lengths[masked], group_rows, parallel):
            rows = masked[group]
            yield from map(self._group, _limited(rows, masks[rows], _MAX_MASKS // parallel))

    def _group(self, rows: np.ndarray) -> Group:
        lengths = self._lengths[rows]
        columns = np.arange(lengths.max())
        real = columns < lengths[:, np.newaxis]
        tokens = (self._starts[rows, np.newaxis] + columns)[real]
        inputs = {"input_mask": real.astype(np.int32)}
        for name in ("input_ids", "segment_ids"):
            inputs[name] = np.zeros(real.shape, np.int32)
            inputs[name][real] = getattr(self._rows, name)[tokens]
        masks = tokens[:0]
        if self._has_masks:
            is_mask = self._is_mask[tokens]
            inputs["mask_places"] = np.flatnonzero(real)[is_mask].astype(np.int32)
            masks = self._mask_splits[tokens[is_mask]]
        return Group(inputs, rows, real, tokens, masks)

    def set_outputs(self, group: Group, outputs: Mapping[str, np.ndarray]) -> None:
        """Stores the outputs of a group at the positions of its rows."""
        for name, values in outputs.items():
            kind = self._spec.per[name]
            if kind == "token":
                values = values[group.real]
            target = self._output(name, values.shape[1:], values.dtype)
            target[{"row": group.rows, "token": group.tokens, "mask": group.masks}[kind]] = values

    def outputs(self) -> list[np.ndarray] | None:
        """Returns the outputs in the order of `spec.per`; None if there were no groups."""
        return [self._outputs[name] for name in self._spec.per] if self._outputs else None

    def _output(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._outputs:
            kind = self._spec.per[name]
            count = len(self._lengths) if kind == "row" else len(self._rows.input_ids)
            count = int(self._mask_splits[-1]) if kind == "mask" else count
            self._outputs[name] = np.zeros((count, *shape), dtype)
        return self._outputs[name]


# --- the engines ---


# Computes the outputs {name: array} of padded rows, int32 [b, s] as in onnx.py. Several threads may
# call it at once.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def run_in_onnxruntime(path: Path, threads: int, parallel: int) -> Run:
    """Loads a file in onnxruntime; the file determines the precision."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Concurrent calls share one pool, and the threads that call take part in the computation. The
    # pool has one thread less than this number.
    options.intra_op_num_threads = max(threads - parallel + 1, 1)
    options.inter_op_num_threads = 1
    # Memory patterns are stored for each shape of the inputs, and here most calls have another.
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # Errors.
    # A thread that spins after a call takes time from decoding, and with several calls at a time
    # also from the others.
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "1" if parallel == 1 else "0"
    )
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def run_in_openvino(
    path: Path, names: Sequence[str], precision: str, threads: int, parallel: int
) -> Run:
    """Compiles a file with the outputs `names` in OpenVINO, in `float32` or `bfloat16`."""
    import openvino

    config = {
        "INFERENCE_PRECISION_HINT": _OPENVINO_PRECISIONS[precision],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": parallel,
        # Other threads of the process, such as TensorFlow's, may use the same cores.
        "ENABLE_CPU_PINNING": False,
    }
    model = _openvino_core().compile_model(str(path), "CPU", config)
    requests = threading.local()  # A request computes one call at a time.

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(requests, "value"):
            requests.value = model.create_infer_request()
        tensors = {
            name: openvino.Tensor(value, shared_memory=True) for name, value in inputs.items()
        }
        for name, tensor in tensors.items():
            requests.value.set_tensor(name, tensor)
        requests.value.start_async()
        requests.value.wait()
        # Copies, because the next call writes to the same memory.
        return {name: np.array(requests.value.get_tensor(name).data) for name in names}

    return run


@functools.cache
def _openvino_core() -> Any:
    """Returns the process's only Core, which is never freed.

    OpenVINO gives the thread that loads its CPU plugin an alternate signal stack. When the last
    Core is freed, the stack is freed but stays in use: the next SIGTERM would be a segmentation
    fault (OpenVINO 2026.4).
    """
    import openvino

    return openvino.Core()


class EngineNetwork:
    """The network of a task on an engine; it may be called by several threads at once.

    Args:
        spec: the outputs of the network.
        single: runs one group of rows on all threads.
        several: runs `parallel` groups at the same time, which share the threads; may be `single`.
        parallel: the number of groups.
    """

    def __init__(self, spec: NetworkSpec, single: Run, several: Run, parallel: int = 1):
        self.parallel = parallel
        self.spec = spec
        self._single = single
        self._several = several
        self._threads = None
        if self.parallel > 1:
            self._threads = ThreadPoolExecutor(self.parallel, "engine")

    def __call__(self, rows: Rows) -> list[np.ndarray]:
        """Computes the outputs of all rows, in the order of `spec.per`."""
        batch = Batch(rows, self.spec)
        for group, results in self._results(batch):
            batch.set_outputs(group, results)
        outputs = batch.outputs()
        return self._empty if outputs is None else outputs

    def _results(self, batch: Batch) -> Iterator[tuple[Group, dict[str, np.ndarray]]]:
        """Yields the groups of a batch and their outputs."""
        # With fewer groups, some threads of `several` would have nothing to do.
        if self._threads is not None and batch.num_rows >= self.parallel:
            groups = list(batch.groups(GROUP_ROWS, self.parallel))
            if len(groups) >= self.parallel:
                inputs = (group.inputs for group in groups)
                yield from zip(groups, self._threads.map(self._several, inputs), strict=True)
                return
        for group in batch.groups(GROUP_ROWS, 1):
            yield group, self._single(group.inputs)

    @functools.cached_property
    def _empty(self) -> list[np.ndarray]:
        """The outputs of a call without rows or masks; one row shows their shapes and dtypes."""
        row = np.full([3], max(self.spec.mask_token_id, 0), np.int32)
        return [values[:0] for values in self(Rows(row, np.zeros_like(row), np.array([0, 3])))]


def open_network(name: str, path: Path, precision: str, spec: NetworkSpec) -> EngineNetwork:
    """Compiles the network in a file for all cores of this process.

    `name` is onnxruntime or openvino. One group runs on all cores; several groups run at the same
    time, one per core, but at most as many as a full batch of the server has.
    """
    compile_network: Callable[[int, int], Run]
    if name == "openvino":
        compile_network = functools.partial(run_in_openvino, path, list(spec.per), precision)
    else:
        compile_network = functools.partial(run_in_onnxruntime, path)
    cores = available_cores()
    parallel = min(cores, _MAX_PARALLEL)
    single = compile_network(cores, 1)
    several = compile_network(cores, parallel) if parallel > 1 else single
    return EngineNetwork(spec, single, several, parallel)


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows.


# --- signatures ---


class EngineFunction:
    """A signature whose network runs on an engine; called like the SavedModel's function."""

    def __init__(self, loaded: Any, signature: str, network: EngineNetwork):
        functions = getattr(loaded, ATTRIBUTE)
        self._preprocess = getattr(functions, f"preprocess_{signature}")
        self._decode = getattr(functions, f"decode_{signature}")
        [concrete] = self._preprocess.concrete_functions
        specs = tf.nest.flatten(concrete.structured_input_signature)
        self._input_names = [spec.name for spec in specs]
        self._network = network

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes the outputs of the signature."""
        rows, parts = self.preprocess(**inputs)
        return self.decode(self._network(rows), parts)

    def preprocess(self, **inputs: tf.Tensor) -> tuple[Rows, list[tf.Tensor]]:
        """Returns the rows for the network, and the tensors for `decode`."""
        prepared = self._preprocess(*(inputs[name] for name in self._input_names))
        ids, segments, splits, *parts = prepared
        return Rows(ids.numpy(), segments.numpy(), splits.numpy()), parts

    def decode(self, outputs: list[np.ndarray], parts: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of the signature."""
        return self._decode(*map(tf.constant, outputs), *parts)


# --- comparison with the SavedModel ---


def example_inputs(names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns the texts of the check for each input; inputs get the texts in different order."""
    return {
        name: tf.constant(TEXTS[index:] + TEXTS[:index], tf.string)
        for index, name in enumerate(names)
    }


def difference(
    loaded: Any, network: EngineNetwork, names: Sequence[str], precision: str, compute_type: str
) -> str | None:
    """Compares an engine in some precision with the loaded SavedModel in its compute type.

    `names` are the inputs of the signature SIGNATURE. Returns a description of the first
    difference, or None if the answers agree.
    """
    function = EngineFunction(loaded, SIGNATURE, network)
    inputs = example_inputs(names)
    rows, parts = function.preprocess(**inputs)
    expected = _saved_outputs(loaded, rows, network.spec)
    answers = loaded.signatures[SIGNATURE](**inputs)
    times = _repetitions(network, rows)
    many = [np.concatenate([values] * times) for values in expected]
    lower = max(precision, compute_type, key=list(TOLERANCE).index)  # It limits the agreement.
    return (
        different_outputs(network.spec, network(_repeated(rows, times)), many, lower)
        or different_outputs(network.spec, _one_by_one(network, rows), expected, lower)
        or different_answers(function(**inputs), answers, lower, floats=False)
        or different_answers(function.decode(expected, parts), answers, compute_type)
    )


def difference_of_graph(
    served: tf.Module, names: Sequence[str], spec: NetworkSpec, run: Run, compute_type: str
) -> str | None:
    """Compares a float32 graph with the network of a task that is being exported.

    The arguments are as in `difference` and `EngineNetwork`. Returns a description of the first
    difference, or None if the outputs agree.
    """
    preprocess = getattr(getattr(served, ATTRIBUTE), f"preprocess_{SIGNATURE}")
    ids, segments, splits, *_ = preprocess(*example_inputs(names).values())
    rows = Rows(ids.numpy(), segments.numpy(), splits.numpy())
    outputs = EngineNetwork(spec, run, run)(rows)
    return different_outputs(spec, outputs, _saved_outputs(served, rows, spec), compute_type)


def _saved_outputs(loaded: Any, rows: Rows, spec: NetworkSpec) -> list[np.ndarray]:
    outputs = getattr(loaded, ATTRIBUTE).network(*map(tf.constant, rows))
    return [outputs[name].numpy() for name in spec.per]


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
    spec: NetworkSpec,
    outputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    precision: str,
) -> str | None:
    """Compares outputs of the network; returns the first difference, or None if they agree."""
    compared = 0
    for name, one, other in zip(spec.per, outputs, expected, strict=True):
        if one.shape != other.shape:
            return f"{name} has the shape {one.shape}; expected {other.shape}"
        # Integers, such as token ids, are compared in the answers.
        if np.issubdtype(other.dtype, np.floating):
            compared += other.size
            if message := _different_floats(name, one, other, precision):
                return message
    if not compared:
        return "the network has no outputs for the texts of the check; expected at least one value"
    return None


def different_answers(
    values: Answers, expected: Answers, precision: str, floats: bool = True
) -> str | None:
    """Compares answers; returns the first difference, or None if they agree.

    `floats` is whether floats are compared. Some, such as the difference of two logits, are less
    accurate than the outputs of the network from which they are computed.
    """
    if values.keys() != expected.keys():
        return f"the answers are {', '.join(values)}; expected {', '.join(expected)}"
    for name, value in expected.items():
        one, other = values[name].numpy(), value.numpy()
        if values[name].dtype != value.dtype:
            return f"{name} has the type {values[name].dtype.name}; expected {value.dtype.name}"
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
    name: str, values: np.ndarray, expected: np.ndarray, precision: str
) -> str | None:
    limit = TOLERANCE[precision]
    error = float(np.linalg.norm(values - expected) / max(np.linalg.norm(expected), 1e-6))
    if error <= limit:  # False for NaN.
        return None
    return f"{name} differs by {error:.2g}; expected at most {limit:g} in {precision}"


def _different_values(
    name: str, values: np.ndarray, expected: np.ndarray, precision: str
) -> str | None:
    limit = EQUAL[precision]
    equal = float(np.mean(values == expected)) if values.size else 1.0
    if equal >= limit:
        return None
    return f"{equal:.0%} of {name} are equal; expected at least {limit:.0%} in {precision}"
