"""The choice of threads and groups by measurement, with a simulated network."""

import time

import numpy as np
import pytest

from keras_bert.serving.engines import tuning
from keras_bert.serving.engines.compiled import CompiledNetwork
from keras_bert.serving.engines.spec import NetworkSpec
from keras_bert.serving.engines.tuning import sample_rows, tune

SPEC = NetworkSpec({"logits": "row"})


class Simulated(CompiledNetwork):
    """A network whose calls take a fixed time and a time for each row."""

    def __init__(self, per_call: float, per_row: float, parallel: int):
        self.per_call, self.per_row, self.parallel = per_call, per_row, parallel

    def run(self, inputs):
        rows, length = inputs["input_ids"].shape
        time.sleep(self.per_call + self.per_row * rows * length / 100)
        return {"logits": np.zeros([rows, 2], np.float32)}


def test_expensive_calls_give_large_groups():
    plan = tune(lambda threads, parallel: Simulated(5e-3, 0.0, parallel), SPEC, 100, 1)
    assert plan.group_rows >= 16
    assert plan.several.parallel == 1


def test_expensive_padding_gives_small_groups_that_run_at_the_same_time():
    plan = tune(lambda threads, parallel: Simulated(0.0, 1e-3, parallel), SPEC, 100, 2)
    assert plan.group_rows <= 8
    assert plan.several.parallel == 2
    assert plan.single.parallel == 1


def test_no_gain_from_several_calls_keeps_one_network():
    plan = tune(lambda threads, parallel: Simulated(1e-3 * parallel**3, 0.0, parallel), SPEC, 64, 2)
    assert plan.several is plan.single


def test_slow_network_is_not_measured_for_long(monkeypatch):
    monkeypatch.setattr(tuning, "_SECONDS", 0.1)
    start = time.perf_counter()
    plan = tune(lambda threads, parallel: Simulated(0.1, 0.0, parallel), SPEC, 100, 2)
    assert time.perf_counter() - start < 1.0
    assert plan.several.parallel == 2


@pytest.mark.parametrize("count", [1, 2, 64])
def test_sample_has_rows_of_all_lengths_with_a_mask_where_the_task_has_them(count):
    rows = sample_rows(128, count, NetworkSpec({"scores": "mask"}, 3, 4))
    lengths = np.diff(rows.splits)
    assert len(lengths) == count
    assert 3 <= lengths.min() <= lengths.max() <= 128
    assert (rows.input_ids == 4).sum() == count
