"""Runs a compiled network on rows of any number and length, in groups without much padding."""

import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from keras_bert.serving.engines.compiled import CompiledNetwork
from keras_bert.serving.engines.grouping import Batch, Group, Rows
from keras_bert.serving.engines.spec import NetworkSpec


@dataclass(frozen=True)
class Plan:
    """How an engine runs rows; `tuning.py` chooses it.

    Attributes:
        single: the network that runs one group of rows on all threads.
        several: the network that runs `several.parallel` groups at the same time; may be the same
            object.
        group_rows: the number of rows in a group.
    """

    single: CompiledNetwork
    several: CompiledNetwork
    group_rows: int


class EngineNetwork:
    """The network of a task on an engine; it may be called by several threads at once."""

    def __init__(self, plan: Plan, spec: NetworkSpec):
        self.plan = plan
        self.spec = spec
        self._threads = None
        if plan.several.parallel > 1:
            self._threads = ThreadPoolExecutor(plan.several.parallel, "engine")

    def __call__(self, rows: Rows) -> list[np.ndarray]:
        """Computes the outputs of all rows, in the order of `spec.per`."""
        batch = Batch(rows, self.spec)
        for group, results in self._results(batch):
            batch.set_outputs(group, results)
        outputs = batch.outputs()
        return self._empty if outputs is None else outputs

    def _results(self, batch: Batch) -> Iterator[tuple[Group, dict[str, np.ndarray]]]:
        """Yields the groups of a batch and their outputs."""
        plan = self.plan
        parallel = plan.several.parallel
        # With fewer groups, some threads of `several` would have nothing to do.
        if self._threads is not None and batch.num_rows >= parallel:
            groups = list(batch.groups(plan.group_rows, parallel))
            if len(groups) >= parallel:
                yield from zip(groups, self._threads.map(self._run, groups), strict=True)
                return
        for group in batch.groups(plan.group_rows, 1):
            yield group, plan.single.run(group.inputs)

    @functools.cached_property
    def _empty(self) -> list[np.ndarray]:
        """The outputs of a call without rows or masks; one row shows their shapes and dtypes."""
        row = np.full([3], max(self.spec.mask_token_id, 0), np.int32)
        return [values[:0] for values in self(Rows(row, np.zeros_like(row), np.array([0, 3])))]

    def _run(self, group: Group) -> dict[str, np.ndarray]:
        return self.plan.several.run(group.inputs)


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows.
