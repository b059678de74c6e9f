"""Chooses the threads and groups of an engine by measuring it on this machine.

The sample has rows of lengths from short to `max_seq_length`. A slow network is measured on fewer
rows, so that the choice takes a few seconds at most.
"""

import functools
import time
from collections.abc import Callable

import numpy as np

from keras_bert.serving.engines.compiled import Compile, CompiledNetwork
from keras_bert.serving.engines.grouping import Rows
from keras_bert.serving.engines.network import EngineNetwork, Plan
from keras_bert.serving.engines.spec import NetworkSpec

SAMPLE_ROWS = 64
GROUP_ROWS = (4, 8, 16, 32)
_SECONDS = 4.0  # Time for all measurements of an engine.
_REPEATS = 3


def tune(compile_network: Compile, spec: NetworkSpec, max_seq_length: int, cores: int) -> Plan:
    """Compiles the network, and chooses how many groups run at once and how large they are.

    Args:
        compile_network: compiles the network for a number of threads and of calls at a time.
        spec: describes the outputs of the network.
        max_seq_length: the maximum number of tokens of a row.
        cores: the number of cores to use.
    """
    single = compile_network(cores, 1)
    rows = sample_rows(max_seq_length, 1, spec)
    network = EngineNetwork(Plan(single, single, 1), spec)
    one = best_seconds(lambda: network(rows))
    parallel = [count for count in (cores, cores // 2, cores // 4) if count > 1]
    trials = (len(parallel) + 1) * len(GROUP_ROWS) * (_REPEATS + 1)
    count = int(np.clip(_SECONDS / trials / one, 1, SAMPLE_ROWS))
    if count < 2 * cores:  # Too slow to measure: a group of one row per core.
        several = compile_network(cores, cores) if cores > 1 else single
        return Plan(single, several, GROUP_ROWS[0])
    rows = sample_rows(max_seq_length, count, spec)
    best, seconds = Plan(single, single, GROUP_ROWS[0]), float("inf")
    for count in [1, *parallel]:
        several = compile_network(cores, count) if count > 1 else single
        plan, taken = _best_groups(single, several, spec, rows)
        if taken < seconds:
            best, seconds = plan, taken
    return best


def _best_groups(
    single: CompiledNetwork, several: CompiledNetwork, spec: NetworkSpec, rows: Rows
) -> tuple[Plan, float]:
    """Returns the plan with the fastest number of rows in a group, and its seconds."""
    count = len(rows.splits) - 1
    sizes = [size for size in GROUP_ROWS if size <= count] or [count]
    plans = [Plan(single, several, size) for size in sizes]
    networks = [EngineNetwork(plan, spec) for plan in plans]
    seconds = [best_seconds(functools.partial(network, rows)) for network in networks]
    fastest = int(np.argmin(seconds))
    return plans[fastest], seconds[fastest]


def sample_rows(max_seq_length: int, count: int, spec: NetworkSpec) -> Rows:
    """Creates rows of token 0 with evenly spaced lengths; one row has the mean length."""
    shares = np.linspace(0.2, 1.0, count) if count > 1 else np.array([0.6])
    lengths = np.maximum((shares * max_seq_length).astype(np.int64), 3)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.zeros(splits[-1], np.int32)
    if spec.mask_token_id >= 0:
        ids[splits[:-1] + 1] = spec.mask_token_id
    return Rows(ids, np.zeros_like(ids), splits)


def best_seconds(run: Callable[[], object]) -> float:
    """Returns the shortest time of a few calls, after one call that is not measured."""
    run()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
