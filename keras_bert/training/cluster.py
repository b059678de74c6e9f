"""Connects the workers of a multi-worker run and compares their settings.

All workers run the same command; only the environment variable TF_CONFIG differs. `read_cluster`
parses it, and `join` waits for all workers and creates the strategy. Worker 0 writes the run
directory, which all workers must share. If a worker is lost, the others raise `EndedEarly`.

    TF_CONFIG='{"cluster": {"worker": ["host-a:2222", "host-b:2222"]},
                "task": {"type": "worker", "index": 0}}'
"""

import contextlib
import functools
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.training.keepalive import keep_connections_alive
from keras_bert.training.rendezvous import wait_for_workers

_SUM = tf.distribute.ReduceOp.SUM
_TF_CONFIG_FORMAT = (
    '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": N}}'
)
# The errors that TensorFlow raises in the remaining workers when one is lost. An error of these
# types whose message mentions no worker and no connection has another cause.
_LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
_ABOUT_WORKERS = re.compile(
    "collective|coordination|heartbeat|connect|socket|peer|task:", re.IGNORECASE
)
# Each worker that passes on the error of a call adds the index of the worker that it had called.
_CALLED = re.compile(r"remote target /job:\w+/replica:\d+/task:(\d+) while calling")
# Worker 0 runs this service; if it does not answer, the message names no worker.
_SERVICE_OF_WORKER_0 = "RPC: /tensorflow.CoordinationService/"


@dataclass(frozen=True)
class Cluster:
    """The addresses, "host:port", of the workers of a run, and the index of this worker."""

    workers: tuple[str, ...]
    index: int


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Parses the environment variable TF_CONFIG; a "chief" job becomes worker 0.

    Raises:
        InputError: TF_CONFIG is missing or invalid, or has jobs other than `worker` and `chief`.
    """
    text = environment.get("TF_CONFIG", "")
    if not text:
        raise InputError(
            "the environment variable TF_CONFIG is not set; multi_worker_mirrored expects "
            f"{_TF_CONFIG_FORMAT}"
        )
    try:
        config = json.loads(text)
        jobs, task = dict(config["cluster"]), config["task"]
        kind, index = task["type"], task["index"]
        chiefs, workers = list(jobs.pop("chief", [])), list(jobs.pop("worker", []))
        known = {"chief": chiefs, "worker": workers}.get(kind)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"TF_CONFIG={text!r} cannot be read ({type(error).__name__}: {error}); "
            f"expected {_TF_CONFIG_FORMAT}"
        ) from None
    if jobs:
        raise InputError(
            f"TF_CONFIG: unknown jobs {sorted(jobs)}; expected `worker` and optionally `chief`"
        )
    every = chiefs + workers
    if known is None or type(index) is not int or not 0 <= index < len(known):
        raise InputError(
            f"TF_CONFIG: task {json.dumps(task)} is not in the cluster {json.dumps(every)}"
        )
    for address in every:
        if not _is_address(str(address)):
            raise InputError(f"TF_CONFIG: {address!r} is not an address; expected HOST:PORT")
    if len(set(every)) < len(every):
        raise InputError(
            f"TF_CONFIG: duplicate address in {json.dumps(every)}; expected different addresses"
        )
    return Cluster(tuple(every), index if kind == "chief" else index + len(chiefs))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    try:
        host.encode("idna")  # Rejects empty labels and labels longer than 63 characters.
    except UnicodeError:
        return False
    if not host or "\0" in host:
        return False
    return port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def join(cluster: Cluster, timeout: float) -> tf.distribute.Strategy:
    """Waits up to `timeout` seconds for all workers and creates a MultiWorkerMirroredStrategy.

    Raises:
        InputError, EndedEarly: as in `wait_for_workers`.
    """
    wait_for_workers(cluster.workers, cluster.index, timeout)
    tf.get_logger().setLevel("WARNING")  # TensorFlow logs every all-reduce that it traces.
    in_main_thread = threading.current_thread() is threading.main_thread()
    # TensorFlow waits forever if another worker dies now; the alarm then ends this process.
    signal.alarm(math.ceil(timeout) + 60)
    try:
        with _convert_lost_worker_errors(len(cluster.workers), cluster.index):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
    finally:
        signal.alarm(0)
    keep_connections_alive({int(worker.rpartition(":")[2]) for worker in cluster.workers})
    if in_main_thread:  # TensorFlow has installed its own SIGTERM handler, which does nothing.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of workers; 1 for every strategy not created by `join`."""
    return len(_addresses(strategy)) or 1


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the index of this worker; worker 0 writes the run directory."""
    if num_workers(strategy) == 1:
        return 0
    resolver = strategy.cluster_resolver
    before = len(resolver.cluster_spec().as_dict().get("chief", []))
    return resolver.task_id + (before if resolver.task_type == "worker" else 0)


def share_of(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns (worker index, number of workers), which input pipelines use for sharding."""
    return worker_index(strategy), num_workers(strategy)


@functools.lru_cache(maxsize=1)  # All calls share one traced function.
def all_sum(strategy: tf.distribute.Strategy) -> Callable[[np.ndarray], np.ndarray]:
    """Builds a function that sums a float32 array over the workers.

    All workers must call the function, each with an array of the same shape. The sum is
    bit-identical on all workers. With one worker, the function returns its argument.
    """
    workers = num_workers(strategy)
    if workers == 1:
        return lambda values: values
    summed = _sum_of_firsts(strategy, strategy.num_replicas_in_sync // workers)

    def flat(values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, np.float32)
        return summed(tf.constant(values.ravel())).numpy().reshape(values.shape)

    return flat


def gather(strategy: tf.distribute.Strategy, value: object) -> list:
    """Returns the `value` of every worker, a JSON value, as a list in the order of the workers.

    All workers must call this function.
    """
    workers, index = num_workers(strategy), worker_index(strategy)
    if workers == 1:
        return [value]
    own = np.frombuffer(json.dumps(value, sort_keys=True).encode(), np.uint8)
    with convert_lost_worker_errors(strategy):
        together = all_sum(strategy)
        sizes = np.zeros([workers])
        sizes[index] = len(own)
        sizes = together(sizes).astype(int)
        texts = np.zeros([workers, sizes.max()])
        texts[index, : len(own)] = own
        texts = together(texts).astype(np.uint8)
    return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


def check_agreement(strategy: tf.distribute.Strategy, record: Mapping[str, object]) -> None:
    """Checks that all workers were started with the same settings and data; all must call it.

    `record` must contain everything that affects the results of this worker, as JSON values.

    Raises:
        InputError: the records differ; the message has the first difference.
    """
    records = gather(strategy, record)
    for other, found in enumerate(records[1:], 1):
        for name in sorted(set(records[0]) | set(found)):
            first, second = (json.dumps(each.get(name)) for each in (records[0], found))
            if first != second:
                raise InputError(
                    f"the workers have different settings: {name} is {first} on worker 0 and "
                    f"{second} on worker {other}; expected the same value on all workers"
                )


@contextlib.contextmanager
def convert_lost_worker_errors(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Converts TensorFlow errors about a lost worker that the block raises to `EndedEarly`."""
    with _convert_lost_worker_errors(num_workers(strategy), worker_index(strategy)):
        yield


@contextlib.contextmanager
def _convert_lost_worker_errors(workers: int, index: int) -> Iterator[None]:
    """Implements `convert_lost_worker_errors`, also for use before the strategy exists."""
    try:
        yield
    except _LOST_WORKER_ERRORS as error:
        # A message may name the worker that raised it, so the name of this worker is removed.
        message = re.sub(rf"task:{index}\b", "", error.message)
        if workers == 1 or not _ABOUT_WORKERS.search(message):
            raise
        logging.warning("TensorFlow reports: %s", error.message.splitlines()[-1])
        raise EndedEarly(_lost_connection(error.message, workers, index)) from error


def _lost_connection(message: str, workers: int, index: int) -> str:
    """Describes the lost connection, with the workers that TensorFlow's error message names."""
    # Each worker in the list was called by the next one; the call to the first worker failed.
    calls = [*dict.fromkeys([*map(int, _CALLED.findall(message)), index])]
    if len(calls) > 1:
        called, caller = calls[:2]
        if index in (called, caller):
            return f"lost the connection to worker {called if caller == index else caller}"
        return f"worker {caller} lost the connection to worker {called}"
    named = {int(other) for other in re.findall(r"task:(\d+)", message)} - {index}
    if not named and _SERVICE_OF_WORKER_0 in message:
        named = {0}
    if not named and workers == 2:
        named = {1 - index}
    return f"lost the connection to {f'worker {min(named)}' if named else 'another worker'}"


def _sum_of_firsts(
    strategy: tf.distribute.Strategy, devices: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Builds a function that sums the values on the first device of each worker."""

    @tf.function(reduce_retracing=True)
    def summed(values: tf.Tensor) -> tf.Tensor:
        def of_device(values: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            # The other devices add 0; dividing the sum by the number of devices would round it.
            # The `where` also places the value on a device, which `all_reduce` needs: the
            # argument itself has no device yet.
            own = tf.where(replica.replica_id_in_sync_group % devices == 0, values, 0.0)
            return replica.all_reduce(_SUM, own)

        return strategy.experimental_local_results(strategy.run(of_device, args=(values,)))[0]

    return summed


def _addresses(strategy: tf.distribute.Strategy) -> list[str]:
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    return [a for job in strategy.cluster_resolver.cluster_spec().as_dict().values() for a in job]
