"""The choice of threads and groups by measurement, with a simulated network and clock."""

import threading

import numpy as np
import pytest

from keras_bert.serving.engines import tuning
from keras_bert.serving.engines.compiled import CompiledNetwork
from keras_bert.serving.engines.network import EngineNetwork
from keras_bert.serving.engines.spec import NetworkSpec
from keras_bert.serving.engines.tuning import best_seconds, parallel_counts, sample_rows, tune

SPEC = NetworkSpec({"logits": "row"})


class Clock:
    """A clock that only calls of networks move."""

    def __init__(self):
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.seconds

    def add(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds


class Simulated(CompiledNetwork):
    """A network whose calls take a time per call and a time per 100 tokens, with padding."""

    def __init__(self, clock: Clock, per_call: float, per_100_tokens: float, parallel: int):
        self.parallel = parallel
        self.shapes: list[tuple[int, int]] = []
        self._clock, self._per_call, self._per_100_tokens = clock, per_call, per_100_tokens

    def run(self, inputs):
        rows, length = inputs["input_ids"].shape
        self.shapes.append((rows, length))
        seconds = self._per_call + self._per_100_tokens * rows * length / 100
        self._clock.add(seconds / self.parallel)  # As many calls run at the same time.
        return {"logits": np.zeros([rows, 2], np.float32)}


def tuned(per_call, per_100_tokens, cores, max_seq_length=100):
    """Returns the plan, the clock and the compiled networks for costs that depend on `parallel`."""
    clock, networks = Clock(), []

    def compile_network(threads, parallel):
        assert threads == cores
        costs = per_call(parallel), per_100_tokens(parallel)
        networks.append(Simulated(clock, *costs, parallel))
        return networks[-1]

    return tune(compile_network, SPEC, max_seq_length, cores, clock), clock, networks


def test_expensive_calls_give_large_groups():
    plan, *_ = tuned(lambda p: 5e-3, lambda p: 0.0, 1)
    assert plan.group_rows >= 16
    assert plan.several.parallel == 1


def test_expensive_padding_gives_small_groups_that_run_at_the_same_time():
    plan, *_ = tuned(lambda p: 0.0, lambda p: 1e-3, 2)
    assert plan.group_rows == 4
    assert plan.several.parallel == 2
    assert plan.single.parallel == 1


def test_no_gain_from_several_calls_keeps_one_network():
    plan, *_ = tuned(lambda p: 1e-3 * p**3, lambda p: 0.0, 2)
    assert plan.several is plan.single


@pytest.mark.parametrize("cores", [3, 16, 33, 64, 100, 256])
@pytest.mark.parametrize("per_100_tokens", [1e-4, 1e-2, 0.05])
def test_machines_with_many_cores_measure_several_groups_at_a_time(cores, per_100_tokens):
    # The best number of groups at a time is half of the largest.
    best = sorted(parallel_counts(cores))[-2:][0]
    plan, clock, networks = tuned(
        lambda p: 0.0, lambda p: per_100_tokens * (1 if p == best else p + 1), cores
    )
    assert all(network.shapes for network in networks)
    assert plan.several.parallel == best
    assert clock.seconds < 3 * tuning._SECONDS


@pytest.mark.parametrize("per_100_tokens", [0.5, 2.0])
def test_slow_network_is_measured_on_few_short_rows(per_100_tokens):
    plan, clock, networks = tuned(lambda p: 0.0, lambda p: per_100_tokens, 2, 512)
    assert clock.seconds < 3 * tuning._SECONDS
    assert max(length for network in networks for _, length in network.shapes) <= 32
    assert plan.several.parallel == 2


def test_network_that_exceeds_the_time_with_one_row_runs_one_group_at_a_time():
    plan, clock, networks = tuned(lambda p: 5.0, lambda p: 0.0, 2, 512)
    assert clock.seconds == 5.0
    assert plan.several is plan.single is networks[0]
    assert len(networks) == 1


def test_groups_at_a_time_are_at_most_the_rows_of_the_sample():
    assert parallel_counts(1) == []
    assert parallel_counts(2) == [2]
    assert parallel_counts(4) == [4, 2]
    assert parallel_counts(96) == [64, 48, 24]
    assert parallel_counts(512) == [64]


def test_slow_first_call_is_measured_and_fast_ones_are_repeated():
    clock = Clock()
    costs = iter([2.0, 0.5, 0.2, 0.3])
    assert best_seconds(lambda: clock.add(next(costs)), clock) == pytest.approx(0.2)
    costs = iter([2.0])
    assert best_seconds(lambda: clock.add(next(costs)), clock, 1.0) == 2.0
    costs = iter([1.0, 0.6, 0.3])
    assert best_seconds(lambda: clock.add(next(costs)), clock, 1.5) == pytest.approx(0.6)


@pytest.mark.parametrize("count", [1, 2, 64])
def test_sample_has_rows_of_all_lengths_with_a_mask_where_the_task_has_them(count):
    rows = sample_rows(128, count, NetworkSpec({"scores": "mask"}, 3, 4))
    lengths = np.diff(rows.splits)
    assert len(lengths) == count
    assert 3 <= lengths.min() <= lengths.max() <= 128
    assert (rows.input_ids == 4).sum() == count


def test_plan_of_the_tuner_gives_one_result_per_row():
    plan, *_ = tuned(lambda p: 0.0, lambda p: 1e-3, 2)
    [logits] = EngineNetwork(plan, SPEC)(sample_rows(20, 11, SPEC))
    assert logits.shape == (11, 2)
