"""A run on several machines: reads TF_CONFIG and checks that all workers agree.

    TF_CONFIG -> Cluster -> strategy, once every worker has joined -> one record on all of them

Every worker runs the same program with the same flags; TF_CONFIG alone differs. Worker 0 writes
the run's folder, which all of them can read.

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
from keras_bert.training.rendezvous import meet

_SUM = tf.distribute.ReduceOp.SUM
_FORM = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": N}}'
# What TensorFlow says in the workers that are left when one is gone; an error of these kinds that
# speaks of no other worker and of no connection is something else.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
_SAID = re.compile("collective|coordination|heartbeat|connect|socket|peer|task:", re.IGNORECASE)


@dataclass(frozen=True)
class Cluster:
    """The workers of a run, and which of them this process is.

    Attributes:
        workers: "host:port" of each.
        index: the place of this one; worker 0 writes the run's folder.
    """

    workers: tuple[str, ...]
    index: int


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads TF_CONFIG.

    Args:
        environment: variables by name.

    Returns:
        The workers; a "chief" of TF_CONFIG is the first of them.

    Raises:
        InputError: it is missing, does not parse, or names what a run has not.
    """
    text = environment.get("TF_CONFIG", "")
    if not text:
        raise InputError(f"multi_worker_mirrored needs TF_CONFIG in the environment: {_FORM}")
    try:
        config = json.loads(text)
        jobs, task = dict(config["cluster"]), config["task"]
        kind, index = task["type"], task["index"]
        chiefs, workers = list(jobs.pop("chief", [])), list(jobs.pop("worker", []))
        known = {"chief": chiefs, "worker": workers}.get(kind)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"TF_CONFIG={text!r} cannot be read ({type(error).__name__}: {error}); expected {_FORM}"
        ) from None
    if jobs:
        raise InputError(f"TF_CONFIG: jobs {sorted(jobs)}; expected `worker`, or it and `chief`")
    every = chiefs + workers
    if known is None or type(index) is not int or not 0 <= index < len(known):
        raise InputError(
            f"TF_CONFIG: task {json.dumps(task)} is not in the cluster {json.dumps(every)}"
        )
    for address in every:
        if not _is_address(str(address)):
            raise InputError(f"TF_CONFIG: {address!r} is no address; expected HOST:PORT")
    if len(set(every)) < len(every):
        raise InputError(f"TF_CONFIG: an address comes twice in {json.dumps(every)}")
    return Cluster(tuple(every), index if kind == "chief" else index + len(chiefs))


def _is_address(text: str) -> bool:
    """Returns whether a text is HOST:PORT, with a host that a look-up takes."""
    host, _, port = text.rpartition(":")
    try:
        host.encode("idna")  # Refuses empty labels, and those over 63 characters.
    except UnicodeError:
        return False
    if not host or "\0" in host:
        return False
    return port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def join(cluster: Cluster, timeout: float) -> tf.distribute.Strategy:
    """Waits for all workers and makes their strategy.

    Args:
        cluster: from `read_cluster`.
        timeout: seconds to wait.

    Returns:
        A MultiWorkerMirroredStrategy over the devices of all workers.

    Raises:
        InputError: this worker's port is taken, or another one has another list of workers or the
            same index.
        EndedEarly: a worker has not come, or went away again.
    """
    meet(cluster.workers, cluster.index, timeout)
    tf.get_logger().setLevel("WARNING")  # It tells of every sum that it plans.
    in_main_thread = threading.current_thread() is threading.main_thread()
    # A worker that dies here would leave the others waiting for ever; an alarm ends even that.
    signal.alarm(math.ceil(timeout) + 60)
    try:
        with _naming_lost(len(cluster.workers), cluster.index):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
    finally:
        signal.alarm(0)
    if in_main_thread:  # TensorFlow takes the signal for itself and does nothing with it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Counts the processes of a run.

    Args:
        strategy: any; all but the one of `join` have one.
    """
    return len(_addresses(strategy)) or 1


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the index of this worker; worker 0 writes the run's folder.

    Args:
        strategy: any.
    """
    if num_workers(strategy) == 1:
        return 0
    resolver = strategy.cluster_resolver
    before = len(resolver.cluster_spec().as_dict().get("chief", []))
    return resolver.task_id + (before if resolver.task_type == "worker" else 0)


def share_of(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns this worker's index and the number of workers, as pipelines take them.

    Args:
        strategy: any.
    """
    return worker_index(strategy), num_workers(strategy)


@functools.lru_cache(maxsize=1)  # What TensorFlow made of it serves every call.
def all_sum(strategy: tf.distribute.Strategy) -> Callable[[np.ndarray], np.ndarray]:
    """Makes the function that sums arrays over the workers; each must call it.

    Args:
        strategy: any; without other workers the sum is what is given.

    Returns:
        float32 array -> the sum over the workers, the same on all of them to the bit.
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
    """Shows every worker what each of them has; all must call it.

    Args:
        strategy: any.
        value: this worker's, a JSON value.

    Returns:
        The value of each worker.

    Raises:
        EndedEarly: another worker is gone.
    """
    workers, index = num_workers(strategy), worker_index(strategy)
    if workers == 1:
        return [value]
    own = np.frombuffer(json.dumps(value, sort_keys=True).encode(), np.uint8)
    with lost_workers_end(strategy):
        together = all_sum(strategy)
        sizes = np.zeros([workers])
        sizes[index] = len(own)
        sizes = together(sizes).astype(int)
        texts = np.zeros([workers, sizes.max()])
        texts[index, : len(own)] = own
        texts = together(texts).astype(np.uint8)
    return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


def check_agreement(strategy: tf.distribute.Strategy, record: Mapping[str, object]) -> None:
    """Checks that all workers were started with the same settings on the same data.

    Args:
        strategy: any.
        record: what decides the run's outcome, as JSON values.

    Raises:
        InputError: on every worker, with the first difference.
        EndedEarly: another worker is gone.
    """
    records = gather(strategy, record)
    for other, found in enumerate(records[1:], 1):
        for name in sorted(set(records[0]) | set(found)):
            first, second = (json.dumps(each.get(name)) for each in (records[0], found))
            if first != second:
                raise InputError(
                    f"the workers were started differently: {name} is {first} on worker 0 and "
                    f"{second} on worker {other}"
                )


@contextlib.contextmanager
def lost_workers_end(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's errors about a worker that is gone into one line and an end.

    Args:
        strategy: the one of the block's work.

    Yields:
        Nothing.

    Raises:
        EndedEarly: another worker is gone.
    """
    with _naming_lost(num_workers(strategy), worker_index(strategy)):
        yield


@contextlib.contextmanager
def _naming_lost(workers: int, index: int) -> Iterator[None]:
    """`lost_workers_end` before there is a strategy."""
    try:
        yield
    except _LOST as error:
        # Any error may name the worker it comes from.
        message = re.sub(rf"task:{index}\b", "", error.message)
        if workers == 1 or not _SAID.search(message):
            raise
        logging.warning("%s", error.message.splitlines()[-1])
        named = {int(other) for other in re.findall(r"task:(\d+)", message)}
        who = f"worker {min(named)}" if named else "another worker, or the way to it,"
        raise EndedEarly(f"{who} is gone") from error


def _sum_of_firsts(
    strategy: tf.distribute.Strategy, devices: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the sum over workers of what the first of each one's devices holds."""

    @tf.function(reduce_retracing=True)
    def summed(values: tf.Tensor) -> tf.Tensor:
        def of_device(values: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            # Of the others nothing: a sum divided by their number would be rounded. An argument
            # lies on no device yet, and TensorFlow finds nowhere to sum it; this lies on one.
            own = tf.where(replica.replica_id_in_sync_group % devices == 0, values, 0.0)
            return replica.all_reduce(_SUM, own)

        return strategy.experimental_local_results(strategy.run(of_device, args=(values,)))[0]

    return summed


def _addresses(strategy: tf.distribute.Strategy) -> list[str]:
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    return [a for job in strategy.cluster_resolver.cluster_spec().as_dict().values() for a in job]
