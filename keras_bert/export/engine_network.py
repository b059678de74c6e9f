"""Runs the network of an export in onnxruntime or OpenVINO, on rows of any number and length.

An export with engines stores the steps of its signatures as functions (saved_model.py); between
`preprocess` and `decode`, the engine runs the network on the CPU. Rows are sorted by length and
divided into groups, which are padded and run at the same time, and the outputs get back the order
of the rows.

Before an engine serves, the texts below run through both the engine and the SavedModel
(`difference`), which compares the floats among the outputs of the network, and the strings and
integers of the answers, such as labels. Floats may differ by TOLERANCE: the root of the sum of
squared differences, divided by that of the SavedModel's values. Of the strings and integers, at
least the share EQUAL must be equal.

B rows, S length of a row, T tokens of all rows, P masks in all rows; b rows of a group, s length of
its longest row.
"""

import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.export.engines import NetworkSpec

_GROUP_ROWS = 8  # The number of rows in a group.
_MAX_PARALLEL = 8  # Groups at the same time; the server has batches of 64 rows by default.
# The maximum number of tokens, with padding, and of masks in the groups that run at the same time,
# unless a row has more. They limit the memory for attention scores and for logits over the
# vocabulary. On many cores, a group may have _GROUP_TOKENS nevertheless, because small groups are
# slow.
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


class Rows(NamedTuple):
    """The token ids and segment ids of all rows, int32 [T] each, and the row splits, [B + 1]."""

    input_ids: np.ndarray
    segment_ids: np.ndarray
    splits: np.ndarray


# Computes the outputs {name: array} of padded rows, int32 [b, s] as in onnx.py. Several threads may
# call it at once.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


# --- the engines ---


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
        requests.value.infer()  # Unlike `start_async`, it computes in this thread, too.
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


# --- rows in groups ---


def sort_into_groups(lengths: np.ndarray, masks: np.ndarray, parallel: int) -> list[np.ndarray]:
    """Divides rows into groups of similar lengths; returns the row indices of each group.

    The number of groups is a multiple of `parallel`, the number of groups that run at the same
    time, if there are enough rows. Such groups share the limits of tokens and of masks, of which
    the rows have `lengths` and `masks`. The group with the longest rows is first.
    """
    rows = len(lengths)
    if not rows:
        return []
    count = -(-rows // _GROUP_ROWS)
    count = min(-(-count // parallel) * parallel, rows)
    max_tokens = max(_MAX_TOKENS // parallel, _GROUP_TOKENS)
    max_masks = _MAX_MASKS // parallel
    groups: list[np.ndarray] = []
    for group in reversed(np.array_split(np.argsort(lengths, kind="stable"), count)):
        tokens = len(group) * int(lengths[group[-1]])  # The last row is the longest.
        parts = max(-(-tokens // max_tokens), -(-int(masks[group].sum()) // max_masks))
        groups += reversed(np.array_split(group, min(parts, len(group))))
    return groups


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
        self._threads = ThreadPoolExecutor(parallel, "engine") if parallel > 1 else None

    def __call__(self, rows: Rows, one_at_a_time: bool = False) -> dict[str, np.ndarray]:
        """Computes the outputs of all rows, in the order of `spec.per`.

        Rows without a [MASK] token are skipped if the outputs of the network are per [MASK] token.
        With `one_at_a_time`, no groups run at the same time.
        """
        if len(rows.splits) == 2 and "mask" not in self.spec.per.values():
            ids, segments = rows.input_ids[np.newaxis], rows.segment_ids[np.newaxis]
            row = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
            result = self._single(row)
            per = self.spec.per.items()
            return {n: result[n][0] if kind == "token" else result[n] for n, kind in per}
        lengths = np.diff(rows.splits)
        is_mask = rows.input_ids == self.spec.mask_token_id
        mask_splits = np.append(0, np.cumsum(is_mask))
        masks = np.diff(mask_splits[rows.splits])
        counts = {"row": len(lengths), "token": len(is_mask), "mask": mask_splits[-1]}
        computed = np.arange(len(lengths))
        if "mask" in self.spec.per.values():
            computed = np.flatnonzero(masks)
        # With fewer groups, some threads of `several` would have nothing to do.
        parallel = 1 if one_at_a_time or len(computed) < self.parallel else self.parallel
        groups = [
            computed[g] for g in sort_into_groups(lengths[computed], masks[computed], parallel)
        ]
        inputs = (self._inputs(rows, group, is_mask) for group in groups)
        if parallel > 1:
            results = self._threads.map(self._several, inputs)
        else:
            results = map(self._single, inputs)
        outputs: dict[str, np.ndarray] = {}
        for group, result in zip(groups, results, strict=True):
            real, tokens = _tokens_of(rows, group)
            indices = {"row": group, "token": tokens, "mask": mask_splits[tokens[is_mask[tokens]]]}
            for name, kind in self.spec.per.items():
                values = result[name][real] if kind == "token" else result[name]
                if name not in outputs:
                    outputs[name] = np.zeros((counts[kind], *values.shape[1:]), values.dtype)
                outputs[name][indices[kind]] = values
        return outputs or self._empty

    def _inputs(self, rows: Rows, group: np.ndarray, is_mask: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the network for a group, with padding."""
        real, tokens = _tokens_of(rows, group)
        inputs = {"input_mask": real.astype(np.int32)}
        for name in ("input_ids", "segment_ids"):
            inputs[name] = np.zeros(real.shape, np.int32)
            inputs[name][real] = getattr(rows, name)[tokens]
        if "mask" in self.spec.per.values():
            inputs["mask_places"] = np.flatnonzero(real)[is_mask[tokens]].astype(np.int32)
        return inputs

    @functools.cached_property
    def _empty(self) -> dict[str, np.ndarray]:
        """The outputs of a call without rows or masks; one row shows their shapes and dtypes."""
        row = np.full([3], max(self.spec.mask_token_id, 0), np.int32)
        outputs = self(Rows(row, np.zeros_like(row), np.array([0, 3])))
        return {name: values[:0] for name, values in outputs.items()}


def _tokens_of(rows: Rows, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which positions of a padded group are tokens, bool [b, s], and their indices."""
    starts, ends = rows.splits[group], rows.splits[group + 1]
    columns = np.arange((ends - starts).max())
    positions = starts[:, np.newaxis] + columns
    real = positions < ends[:, np.newaxis]
    return real, positions[real]


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
    """A signature whose network runs on an engine; takes and returns arrays by name.

    `steps` has `preprocess` and `decode` in NumPy; None for the functions of the SavedModel.
    """

    def __init__(self, loaded: Any, signature: str, network: EngineNetwork):
        functions = getattr(loaded, ATTRIBUTE)
        self.network = network
        self.steps: Any = None
        # The concrete functions: a call of the restored ones takes 0.2 ms to find them.
        [self._preprocess] = getattr(functions, f"preprocess_{signature}").concrete_functions
        [self._decode] = getattr(functions, f"decode_{signature}").concrete_functions
        specs = tf.nest.flatten(self._preprocess.structured_input_signature)
        self.input_names = [spec.name for spec in specs]

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Computes the outputs of the signature."""
        rows, prepared = self.preprocess(inputs)
        return self.decode(self.network(rows), prepared)

    def preprocess(self, inputs: Mapping[str, np.ndarray]) -> tuple[Rows, Any]:
        """Returns the rows for the network, and what `decode` needs."""
        columns = [inputs[name] for name in self.input_names]
        # The SavedModel's function has an error message for different shapes.
        if self.steps and len({column.shape for column in columns}) == 1:
            return self.steps.preprocess(*(column.tolist() for column in columns))
        return self.preprocess_in_graph(inputs)

    def preprocess_in_graph(self, inputs: Mapping[str, np.ndarray]) -> tuple[Rows, list[tf.Tensor]]:
        """Implements `preprocess` with the function of the SavedModel."""
        columns = [as_tensor(inputs[name]) for name in self.input_names]
        ids, segments, splits, *parts = _call(self._preprocess, columns)
        return Rows(ids.numpy(), segments.numpy(), splits.numpy()), parts

    def decode(self, outputs: Mapping[str, np.ndarray], prepared: Any) -> dict[str, np.ndarray]:
        """Returns the outputs of the signature."""
        if not isinstance(prepared, list):
            return self.steps.decode(outputs, prepared)
        return as_arrays(_call(self._decode, [*map(tf.constant, outputs.values()), *prepared]))


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Converts an array to a tensor; an array of objects contains byte strings."""
    return tf.constant(array, tf.string if array.dtype == object else array.dtype)


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    """Converts tensors to arrays; those of strings to arrays of byte strings."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def call_saved(
    function: Callable[..., Mapping[str, tf.Tensor]], **inputs: np.ndarray
) -> dict[str, np.ndarray]:
    """Calls a function of a SavedModel with arrays."""
    return as_arrays(function(**{name: as_tensor(array) for name, array in inputs.items()}))


def _call(function: Any, tensors: list[tf.Tensor]) -> Any:
    """Calls a concrete function without TensorFlow's checks of arguments, which take 0.1 ms."""
    return function._call_flat(tensors, function.captured_inputs)


# --- comparison with the SavedModel ---


def example_inputs(names: Sequence[str], times: int = 1) -> dict[str, np.ndarray]:
    """Returns the texts of the check for each input; inputs get the texts in different order."""
    return {
        name: np.array([t.encode() for t in TEXTS[index:] + TEXTS[:index]] * times, object)
        for index, name in enumerate(names)
    }


def saved_outputs(loaded: Any, rows: Rows) -> dict[str, np.ndarray]:
    """Computes the outputs of the network of a SavedModel, or of a module that is exported."""
    outputs = getattr(loaded, ATTRIBUTE).network(*map(tf.constant, rows))
    return {name: value.numpy() for name, value in outputs.items()}


def difference(
    loaded: Any, functions: Mapping[str, EngineFunction], precision: str, compute_type: str
) -> str | None:
    """Compares an engine in some precision with the loaded SavedModel in its compute type.

    `functions` are the signatures on the engine. Returns a description of the first difference, or
    None if the answers agree.
    """
    function = functions[SIGNATURE]
    network = function.network
    inputs = example_inputs(function.input_names, network.parallel)
    rows, prepared = function.preprocess(inputs)
    saved_rows, _ = function.preprocess_in_graph(inputs)
    if not all(map(np.array_equal, rows, saved_rows)):
        return "the token ids differ"
    answers = call_saved(loaded.signatures[SIGNATURE], **inputs)
    expected = _compared(saved_outputs(loaded, rows), answers)
    lower = max(precision, compute_type, key=list(TOLERANCE).index)  # It limits the agreement.
    for one_at_a_time in (False, True):
        outputs = network(rows, one_at_a_time)
        values = _compared(outputs, function.decode(outputs, prepared))
        if problem := different(values, expected, lower):
            return problem
    return None


def _compared(
    outputs: Mapping[str, np.ndarray], answers: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the floats among the outputs of the network, and the other values of the answers.

    Some floats of answers, such as the difference of two logits, are less accurate.
    """
    floats = {name: value for name, value in outputs.items() if value.dtype.kind == "f"}
    return floats | {name: value for name, value in answers.items() if value.dtype.kind != "f"}


def different(
    values: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], precision: str
) -> str | None:
    """Compares arrays by name; returns the first difference, or None if they agree."""
    for name, right in expected.items():
        value = values[name]
        if value.shape != right.shape:
            if precision == "float32":
                return f"{name} has the shape {value.shape}; expected {right.shape}"
            continue  # The width is that of the row with the most entities.
        if right.dtype.kind == "f":
            error = float(np.linalg.norm(value - right) / max(np.linalg.norm(right), 1e-6))
            if not error <= TOLERANCE[precision]:  # NaN, too.
                limit = TOLERANCE[precision]
                return f"{name} differs by {error:.2g}; expected at most {limit:g} in {precision}"
        elif right.size and (equal := float(np.mean(value == right))) < EQUAL[precision]:
            limit = EQUAL[precision]
            return f"{equal:.0%} of {name} are equal; expected at least {limit:.0%} in {precision}"
    return None
