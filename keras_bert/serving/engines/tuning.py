"""Chooses the threads and groups of an engine by measuring it on this machine.

The sample has rows of lengths from short to `max_seq_length`, as many as a full batch of the server
by default. For a slow network, it has fewer and then shorter rows, so that the measurements take a
few seconds: first the number of groups at a time, then the number of rows in a group. Compiling the
network takes additional time.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from keras_bert.serving.engines.compiled import Compile, CompiledNetwork
from keras_bert.serving.engines.grouping import Rows, sort_into_groups
from keras_bert.serving.engines.network import EngineNetwork, Plan
from keras_bert.serving.engines.spec import NetworkSpec

SAMPLE_ROWS = 64
GROUP_ROWS = (8, 4, 16, 32)  # The first is used while the number of groups at a time is chosen.
_SECONDS = 4.0  # Time for all measurements of an engine.
_REPEATS = 3
_SHORT = 32  # The sample of a slow network has rows of up to this number of tokens.
# The shortest and the mean length of a sample, as shares of the longest.
_SHORTEST, _MEAN = 0.2, 0.6

Clock = Callable[[], float]


def tune(
    compile_network: Compile,
    spec: NetworkSpec,
    max_seq_length: int,
    cores: int,
    clock: Clock = time.perf_counter,
) -> Plan:
    """Compiles the network, and chooses how many groups run at once and how large they are.

    Args:
        compile_network: compiles the network for a number of threads and of calls at a time.
        spec: describes the outputs of the network.
        max_seq_length: the maximum number of tokens of a row.
        cores: the number of cores to use.
        clock: returns the time in seconds.
    """
    single = compile_network(cores, 1)
    counts = parallel_counts(cores)
    search = _Search(single, spec, max_seq_length, counts, clock)
    search.measure(Plan(single, single, GROUP_ROWS[0]))
    for count in counts:
        if search.has_time():
            search.measure(Plan(single, compile_network(cores, count), GROUP_ROWS[0]))
    several = search.best.several
    for size in GROUP_ROWS[1:]:
        search.measure(Plan(single, several, size))
    return search.best


def parallel_counts(cores: int) -> list[int]:
    """Returns the numbers of groups at a time to try besides 1, the largest first."""
    counts = {min(cores // share, SAMPLE_ROWS) for share in (1, 2, 4)}
    return sorted(counts - {0, 1}, reverse=True)


class _Search:
    """Measures plans on a sample of rows, within _SECONDS in total, and keeps the fastest."""

    def __init__(
        self,
        single: CompiledNetwork,
        spec: NetworkSpec,
        max_seq_length: int,
        counts: Sequence[int],
        clock: Clock,
    ):
        self.best = Plan(single, single, GROUP_ROWS[0])
        self._best_seconds = math.inf
        self._spec, self._clock = spec, clock
        self._left = _SECONDS
        self._limit = _SECONDS / (len(counts) + len(GROUP_ROWS))
        self._measured: set[tuple[int, ...]] = set()
        short = min(max_seq_length, _SHORT)
        row = sample_rows(short, 1, spec)
        per_token = self._seconds(Plan(single, single, 1), row) / len(row.input_ids)
        # The number of tokens that a call may have.
        tokens = self._limit / (_REPEATS + 1) / max(per_token, 1e-9)
        least = min(2 * max(counts, default=1), SAMPLE_ROWS)
        count = int(np.clip(tokens / (_MEAN * max_seq_length), least, SAMPLE_ROWS))
        length = int(np.clip(tokens / (_MEAN * count), short, max_seq_length))
        self._rows = sample_rows(length, count, spec)

    def has_time(self) -> bool:
        """Returns whether there is time left for another plan."""
        return self._left > 0

    def measure(self, plan: Plan) -> None:
        """Measures a plan, if there is time left and no measured plan has the same groups."""
        parallel = plan.several.parallel
        groups = sort_into_groups(np.diff(self._rows.splits), plan.group_rows, parallel)
        key = (parallel, *map(len, groups))
        if not self.has_time() or key in self._measured:
            return
        self._measured.add(key)
        taken = self._seconds(plan, self._rows)
        if taken < self._best_seconds:
            self.best, self._best_seconds = plan, taken

    def _seconds(self, plan: Plan, rows: Rows) -> float:
        network = EngineNetwork(plan, self._spec)
        start = self._clock()
        taken = best_seconds(lambda: network(rows), self._clock, self._limit)
        self._left -= self._clock() - start
        return taken


def sample_rows(longest: int, count: int, spec: NetworkSpec) -> Rows:
    """Creates rows of token 0 with evenly spaced lengths; one row has the mean length."""
    shares = np.linspace(_SHORTEST, 1.0, count) if count > 1 else np.array([_MEAN])
    lengths = np.maximum((shares * longest).astype(np.int64), 3)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.zeros(splits[-1], np.int32)
    if spec.mask_token_id >= 0:
        ids[splits[:-1] + 1] = spec.mask_token_id
    return Rows(ids, np.zeros_like(ids), splits)


def best_seconds(
    run: Callable[[], object], clock: Clock = time.perf_counter, limit: float = math.inf
) -> float:
    """Returns the shortest time of a few calls, after one call that is not measured.

    No call starts after `limit` seconds, so a slow first call is the only one, and is measured.
    """
    start = clock()
    run()
    times = [clock() - start]
    while len(times) <= _REPEATS and clock() - start < limit:
        again = clock()
        run()
        times.append(clock() - again)
    return min(times[1:] or times)
