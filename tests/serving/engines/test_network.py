"""Groups run on `several` only if all of its threads have work; outputs keep their order."""

import os
import threading

import numpy as np
import pytest

from keras_bert.serving.engines.compiled import CompiledNetwork
from keras_bert.serving.engines.grouping import Rows
from keras_bert.serving.engines.network import EngineNetwork, Plan, available_cores
from keras_bert.serving.engines.spec import NetworkSpec

SPEC = NetworkSpec({"length": "row"})


class Lengths(CompiledNetwork):
    """A network that returns the length of each row, and records the shapes of its inputs."""

    def __init__(self, parallel: int):
        self.parallel = parallel
        self.shapes: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def run(self, inputs):
        with self._lock:
            self.shapes.append(inputs["input_mask"].shape)
        return {"length": inputs["input_mask"].sum(1)}


def make_rows(lengths) -> Rows:
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Rows(np.ones(splits[-1], np.int32), np.zeros(splits[-1], np.int32), splits)


@pytest.mark.parametrize(
    ("rows", "single", "several"),
    [(1, 1, 0), (3, 1, 0), (4, 0, 4), (9, 0, 4), (16, 0, 4), (17, 0, 8)],
)
def test_several_groups_run_at_the_same_time_if_each_call_has_one(rows, single, several):
    plan = Plan(Lengths(1), Lengths(4), 4)
    lengths = np.random.default_rng(rows).integers(1, 9, rows)
    [found] = EngineNetwork(plan, SPEC)(make_rows(lengths))
    np.testing.assert_array_equal(found, lengths)
    assert len(plan.single.shapes) == single
    assert len(plan.several.shapes) == several


def test_rows_without_any_group_have_empty_outputs():
    plan = Plan(Lengths(1), Lengths(4), 4)
    [found] = EngineNetwork(plan, SPEC)(make_rows([]))
    assert found.shape == (0,)


def test_cores_are_those_of_the_process_or_else_of_the_machine(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # As on macOS and Windows.
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1
