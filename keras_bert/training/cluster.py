"""Connects the workers of a multi-worker run and compares their settings.

All workers run the same command. `read_cluster` reads the environment variable TF_CONFIG, or the
variables of Slurm, and `join` waits for all workers and creates the strategy. Worker 0 writes the
run directory, which all workers must share. If a worker is lost, the others raise `EndedEarly`, and
Slurm or Kubernetes starts all of them again (docs/cluster).
"""

import contextlib
import functools
import json
import math
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import EndedEarly, InputError, InUse

_SUM = tf.distribute.ReduceOp.SUM
_FORMAT = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": N}}'
_ADDRESS = re.compile(r"[\w.:\[\]-]+:\d{1,5}")
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


class Cluster(NamedTuple):
    """The addresses, "host:port", of the workers of a run, and the index of this worker."""

    workers: tuple[str, ...]
    index: int


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads the environment variable TF_CONFIG, or without it those that Slurm's srun sets.

    A "chief" of TF_CONFIG becomes worker 0. Slurm's workers use the ports from 20000 + the number
    of the job modulo 10000.
    """
    text = environment.get("TF_CONFIG", "")
    if not text and "SLURM_STEP_NODELIST" in environment:
        return _read_slurm(environment)
    try:
        config = json.loads(text)
        jobs, task = dict(config["cluster"]), config["task"]
        chiefs = list(jobs.pop("chief", []))
        workers = tuple(map(str, chiefs + list(jobs.pop("worker", []))))
        index = {"chief": 0, "worker": len(chiefs)}[task["type"]] + task["index"]
        is_valid = not jobs and index in range(len(workers)) and len({*workers}) == len(workers)
    except (ValueError, KeyError, TypeError):
        is_valid = False
    if not is_valid or not all(map(_ADDRESS.fullmatch, workers)):
        raise InputError(
            f"TF_CONFIG={text!r}: not the configuration of this worker; multi_worker_mirrored "
            f"expects {_FORMAT} with different addresses, or to be started by Slurm's "
            "srun"
        )
    return Cluster(workers, index)


def _read_slurm(environment: Mapping[str, str]) -> Cluster:
    show_hosts = ["scontrol", "show", "hostnames", environment["SLURM_STEP_NODELIST"]]
    hosts = subprocess.run(show_hosts, capture_output=True, text=True, check=True).stdout.split()
    # Such as "2(x3),1": two tasks on each of three machines, then one.
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    num_tasks = [int(tasks) for tasks, machines in groups for _ in range(int(machines or 1))]
    port = 20000 + int(environment["SLURM_JOB_ID"]) % 10000
    workers = [
        f"{host}:{port + task}"
        for host, tasks in zip(hosts, num_tasks, strict=True)
        for task in range(tasks)
    ]
    return Cluster(tuple(workers), int(environment["SLURM_PROCID"]))


def join(cluster: Cluster, timeout: float) -> tf.distribute.Strategy:
    """Waits up to `timeout` seconds for all workers and creates a MultiWorkerMirroredStrategy.

    TensorFlow waits without end and holds Python's lock, so a signal (SIGALRM) ends this process
    if a worker does not connect in time.

    Raises:
        InUse: another process uses the port of this worker.
        EndedEarly: a worker was lost.
    """
    port = int(cluster.workers[cluster.index].rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise InUse(
            f"worker {cluster.index} cannot listen on its port {port}: {os.strerror(error.errno)}; "
            "run the same command again once it is free"
        ) from None
    logging.info("Waiting up to %.0f s (--worker_timeout) for all of %s", timeout, cluster)
    tf.get_logger().setLevel("WARNING")  # TensorFlow logs every all-reduce that it traces.
    signal.alarm(math.ceil(timeout))
    try:
        with _convert_lost_worker_errors(cluster.index):
            strategy = tf.distribute.MultiWorkerMirroredStrategy(
                tf.distribute.cluster_resolver.SimpleClusterResolver(
                    tf.train.ClusterSpec({"worker": cluster.workers}),
                    task_type="worker",
                    task_id=cluster.index,
                    rpc_layer="grpc",
                )
            )
    finally:
        signal.alarm(0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow's handler does nothing.
    return strategy


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of workers; 1 for every strategy not created by `join`."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return strategy.cluster_resolver.cluster_spec().num_tasks("worker")


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the index of this worker; worker 0 writes the run directory."""
    return strategy.cluster_resolver.task_id if num_workers(strategy) > 1 else 0


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
            first = tf.where(replica.replica_id_in_sync_group % devices == 0, values, 0.0)
            return replica.all_reduce(_SUM, first)

        return strategy.experimental_local_results(strategy.run(of_device, args=(values,)))[0]

    return summed


def gather(strategy: tf.distribute.Strategy, value: object) -> list:
    """Returns the JSON value of every worker, in the order of the workers; all must call it."""
    index, workers = share_of(strategy)
    if workers == 1:
        return [value]
    text = np.frombuffer(json.dumps(value, sort_keys=True).encode(), np.uint8)
    with convert_lost_worker_errors(strategy):
        together = all_sum(strategy)
        sizes = np.zeros([workers])
        sizes[index] = len(text)
        sizes = together(sizes).astype(int)
        texts = np.zeros([workers, sizes.max()])
        texts[index, : len(text)] = text
        texts = together(texts).astype(np.uint8)
    return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


def check_agreement(strategy: tf.distribute.Strategy, record: Mapping[str, object]) -> None:
    """Checks that all workers were started with the same settings and data; all must call it.

    `record` must contain everything that affects the results of this worker, as JSON values.
    """
    first, *records = gather(strategy, record)
    for index, other in enumerate(records, 1):
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                raise InputError(
                    f"the workers have different settings: {name} is {json.dumps(first.get(name))} "
                    f"on worker 0 and {json.dumps(other.get(name))} on worker {index}; expected "
                    "the same value on all workers"
                )


@contextlib.contextmanager
def convert_lost_worker_errors(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Converts TensorFlow errors about a lost worker that the block raises to `EndedEarly`."""
    index, workers = share_of(strategy)
    with _convert_lost_worker_errors(index) if workers > 1 else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _convert_lost_worker_errors(index: int) -> Iterator[None]:
    try:
        yield
    except _LOST_WORKER_ERRORS as error:
        # A message may name the worker that raised it, so the name of this worker is removed.
        message = re.sub(rf"task:{index}\b", "", error.message)
        if not _ABOUT_WORKERS.search(message):
            raise
        logging.warning("TensorFlow reports: %s", error.message.splitlines()[-1])
        names = re.findall(r"task:(\d+)", message)
        lost = f"worker {names[0]}" if len({*names}) == 1 else "another worker"
        raise EndedEarly(f"lost the connection to {lost}") from error
