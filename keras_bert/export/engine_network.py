"""Runs a network in onnxruntime or OpenVINO, on rows of any number and length, on the CPU.

Rows are sorted by length and divided into groups, which are padded and run at the same time, and
the outputs get back the order of the rows:

    Rows -> Batch.groups -> CompiledNetwork.run -> Batch.set_outputs -> outputs

B rows, S length of a row, T tokens of all rows, P masks in all rows; b rows of a group, s length of
its longest row.
"""

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.export.engines import NetworkSpec

GROUP_ROWS = 8  # The number of rows in a group.
_MAX_PARALLEL = 8  # Groups at the same time; the server has batches of 64 rows by default.
# The maximum number of tokens, with padding, and of masks in the groups that run at the same time.
# They limit the memory for attention scores and for logits over the vocabulary. On many cores, a
# group may have _GROUP_TOKENS nevertheless, because small groups are slow.
_MAX_TOKENS, _GROUP_TOKENS = 4096, 1024
_MAX_MASKS = 256
_OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class Rows(NamedTuple):
    """The token ids and segment ids of all rows, int32 [T] each, and the row splits, [B + 1]."""

    input_ids: np.ndarray
    segment_ids: np.ndarray
    splits: np.ndarray


class Group(NamedTuple):
    """Some rows with padding, and their places among all rows.

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
        kept = np.flatnonzero(masks)
        for chosen in sort_into_groups(self._lengths[kept], group_rows, parallel):
            rows = kept[chosen]
            yield from map(self._group, _limited(rows, masks[rows], _MAX_MASKS // parallel))

    def _group(self, rows: np.ndarray) -> Group:
        lengths = self._lengths[rows]
        place = np.arange(lengths.max())
        real = place < lengths[:, np.newaxis]
        tokens = (self._starts[rows, np.newaxis] + place)[real]
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
        """Stores the outputs of a group at the places of its rows."""
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


class CompiledNetwork(ABC):
    """A network that an engine has compiled; `run` may be called by several threads at once.

    Attributes:
        parallel: the number of calls of `run` that are computed at the same time; they share the
            threads.
    """

    parallel: int

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows, int32 [b, s], as in onnx.py."""


class OnnxRuntimeNetwork(CompiledNetwork):
    """A network in onnxruntime, whose file determines the precision.

    Raises:
        InputError: the file is damaged.
    """

    def __init__(self, path: Path, threads: int, parallel: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Concurrent calls share one pool, and the threads that call take part in the computation.
        # The pool has one thread less than this number.
        options.intra_op_num_threads = max(threads - parallel + 1, 1)
        options.inter_op_num_threads = 1
        # Memory patterns are stored for each shape of the inputs, and here most calls have another.
        options.enable_mem_pattern = False
        options.log_severity_level = 3  # Errors.
        # A thread that spins after a call takes time from decoding, and with several calls at a
        # time also from the others.
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "1" if parallel == 1 else "0"
        )
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers)
        except Exception as error:  # onnxruntime's errors have no common class.
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path}: onnxruntime cannot load the file: {reason:.200}; expected the file that "
                "the export wrote; export the model again"
            ) from error
        self.parallel = parallel
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows."""
        return dict(zip(self._names, self._session.run(self._names, inputs), strict=True))


class OpenVINONetwork(CompiledNetwork):
    """A network in OpenVINO, in `float32` or `bfloat16`, with the outputs `names`.

    Raises:
        InputError: the file is damaged.
    """

    def __init__(
        self, path: Path, names: Sequence[str], precision: str, threads: int, parallel: int
    ):
        config = {
            "INFERENCE_PRECISION_HINT": _OPENVINO_PRECISIONS[precision],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": parallel,
            # Other threads of the process, such as TensorFlow's, may use the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            self._model = _openvino_core().compile_model(str(path), "CPU", config)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path}: OpenVINO cannot load the file: {reason:.200}; expected the file that the "
                "export wrote; export the model again"
            ) from error
        self.parallel = parallel
        self._names = names
        self._requests = threading.local()  # A request computes one call at a time.

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows."""
        import openvino

        request = self._request()
        tensors = {
            name: openvino.Tensor(value, shared_memory=True) for name, value in inputs.items()
        }
        for name, tensor in tensors.items():
            request.set_tensor(name, tensor)
        request.start_async()
        request.wait()
        # Copies, because the next call writes to the same memory.
        return {name: np.array(request.get_tensor(name).data) for name in self._names}

    def _request(self) -> Any:
        if not hasattr(self._requests, "value"):
            self._requests.value = self._model.create_infer_request()
        return self._requests.value


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

    `single` runs one group of rows on all threads. `several` runs `several.parallel` groups at the
    same time; it may be the same object.
    """

    def __init__(self, single: CompiledNetwork, several: CompiledNetwork, spec: NetworkSpec):
        self.parallel = several.parallel
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
                yield from zip(groups, self._threads.map(self._run, groups), strict=True)
                return
        for group in batch.groups(GROUP_ROWS, 1):
            yield group, self._single.run(group.inputs)

    @functools.cached_property
    def _empty(self) -> list[np.ndarray]:
        """The outputs of a call without rows or masks; one row shows their shapes and dtypes."""
        row = np.full([3], max(self.spec.mask_token_id, 0), np.int32)
        return [values[:0] for values in self(Rows(row, np.zeros_like(row), np.array([0, 3])))]

    def _run(self, group: Group) -> dict[str, np.ndarray]:
        return self._several.run(group.inputs)


def open_network(name: str, path: Path, precision: str, spec: NetworkSpec) -> EngineNetwork:
    """Compiles the network in a file for all cores of this process.

    `name` is onnxruntime or openvino. One group runs on all cores; several groups run at the same
    time, one per core, but at most as many as a full batch of the server has.

    Raises:
        InputError: the file is damaged.
    """
    compile_network: Callable[[int, int], CompiledNetwork]
    if name == "openvino":
        compile_network = functools.partial(OpenVINONetwork, path, list(spec.per), precision)
    else:
        compile_network = functools.partial(OnnxRuntimeNetwork, path)
    cores = available_cores()
    parallel = min(cores, _MAX_PARALLEL)
    single = compile_network(cores, 1)
    several = compile_network(cores, parallel) if parallel > 1 else single
    return EngineNetwork(single, several, spec)


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows.
