"""Runs a function on many jobs, in local processes or on any `concurrent.futures.Executor`.

The result of the function must depend only on the job, and all workers must have the same package
versions.
"""

import contextlib
import functools
import importlib.util
import logging as std_logging
import multiprocessing
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

from absl import logging

from data_tools.corpus import FORMAT_PACKAGES
from keras_bert.common.errors import InputError
from keras_bert.common.package_versions import package_versions

if TYPE_CHECKING:
    from distributed import Client

Job = TypeVar("Job")
Result = TypeVar("Result")

# These packages determine the random numbers, the tokenizer's Unicode tables and the rules of the
# sentence splitter.
_PACKAGES = ("numpy", "sentencex", "tensorflow", "tensorflow-text")
_DASK_TIMEOUT_SECONDS = 10


def default_num_workers() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    num_workers: int,
    executor: Executor | None = None,
) -> Iterator[Result]:
    """Runs a function on jobs; yields the results in the order of completion.

    Args:
        function: a module-level function, which is pickled by name.
        jobs: arguments of the function, which are pickled.
        num_workers: number of local processes; 1 runs the jobs in the current process.
        executor: runs the jobs instead of local processes.

    Raises:
        InputError: if a local worker dies. If `function` raises an exception, it is raised here,
            and no further job is started.
    """
    jobs = list(jobs)
    num_workers = min(num_workers, len(jobs))
    if executor is not None:
        futures = [executor.submit(function, job) for job in jobs]
        try:
            yield from _results(futures)
        finally:
            for future in futures:
                future.cancel()
    elif num_workers <= 1:
        yield from map(function, jobs)
    else:
        # Not forked, because TensorFlow's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_start_worker
        ) as pool:
            try:
                yield from _results([pool.submit(function, job) for job in jobs])
            finally:
                pool.shutdown(cancel_futures=True)


def _results(futures: list[Future]) -> Iterator[Any]:
    workers = multiprocessing.active_children()
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        # Ctrl-C reaches all processes; the death of the workers may be noticed here first.
        for worker in workers:
            worker.join(timeout=5)
        if any(worker.exitcode == -signal.SIGINT for worker in workers):
            raise KeyboardInterrupt from None
        raise InputError(
            "a worker process died, possibly because it ran out of memory; run the same "
            "command again to resume, with a smaller --num_workers if a worker dies again"
        ) from None


def _start_worker() -> None:
    """Limits a worker to one TensorFlow thread, and lets it end with its parent or at Ctrl-C.

    Otherwise, a worker whose parent was killed would wait for jobs forever.
    """
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


# --- Dask ---


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """Connects to the scheduler of a Dask cluster; provides its executor and number of threads.

    If a worker dies during a job, Dask repeats the job on another worker.

    Raises:
        InputError: if Dask is not installed, the scheduler cannot be reached or has no workers, or
            the connection is lost or too many workers die during the block.
    """
    flag = f"--dask_scheduler={address}"
    if importlib.util.find_spec("distributed") is None:
        raise InputError(
            "--executor=dask: Dask is not installed; expected the extra dask: "
            "pip install 'keras-bert-pipeline[dask]'"
        )
    from distributed import Client

    # Dask logs a lost connection with tracebacks. It sets the levels of its loggers one by one.
    for name in [*std_logging.root.manager.loggerDict]:
        if name.split(".")[0] in ("distributed", "asyncio", "tornado"):
            std_logging.getLogger(name).setLevel(std_logging.CRITICAL + 1)
    try:
        client = Client(address, timeout=_DASK_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{flag}: no scheduler answers within {_DASK_TIMEOUT_SECONDS} s ({error}); start one "
            "with `dask scheduler`, or correct the address"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_DASK_TIMEOUT_SECONDS)
        except TimeoutError:
            raise InputError(
                f"{flag}: the scheduler has no workers after {_DASK_TIMEOUT_SECONDS} s; start "
                f"workers with `dask worker {address}`"
            ) from None
        num_threads = client.nthreads()
        logging.info("%s: number of workers: %d", flag, len(num_threads))
        try:
            with _watched(client):
                yield client.get_executor(pure=False), sum(num_threads.values())
        except CancelledError:
            raise InputError(
                f"{flag}: the connection to the scheduler was lost; start the scheduler and the "
                "workers, then run the same command again to resume"
            ) from None
        except Exception as error:
            if not type(error).__module__.startswith("distributed."):
                raise
            raise InputError(
                f"Dask failed: {error}; run the same command again to resume"
            ) from None


@contextlib.contextmanager
def _watched(client: "Client") -> Iterator[None]:
    """Logs a warning every ten seconds during the block if the cluster has no workers."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_DASK_TIMEOUT_SECONDS):
            with contextlib.suppress(Exception):  # A lost connection is reported elsewhere.
                if not client.nthreads():
                    logging.warning("Dask: no workers; waiting until some connect")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join(_DASK_TIMEOUT_SECONDS)


# --- package versions ---


def build_versions(input_format: str) -> dict[str, str]:
    """Returns {name: version} of Python and the packages that determine the bytes of a dataset.

    The manifest stores it as made_with. `input_format` is the format of the corpus.
    """
    return dict(_versions(_PACKAGES + FORMAT_PACKAGES.get(input_format, ())))


@functools.lru_cache(maxsize=1)
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {"python": platform.python_version()} | package_versions(packages)


def version_differences(
    old: Mapping[str, str], new: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Returns (name, old version, new version) of the packages whose versions differ."""
    both = [
        (name, old.get(name, "unknown"), new.get(name, "unknown"))
        for name in sorted(old.keys() | new.keys())
    ]
    return [entry for entry in both if entry[1] != entry[2]]


def check_worker(made_with: Mapping[str, str], input_format: str) -> None:
    """Checks that this process, a worker, has the package versions of the launching machine.

    Raises:
        InputError: if a version differs; the message lists the differences.
    """
    differing = version_differences(made_with, build_versions(input_format))
    if differing:
        found = ", ".join(f"{name} {here}" for name, _, here in differing)
        wanted = ", ".join(f"{name} {there}" for name, there, _ in differing)
        raise InputError(
            f"worker on {socket.gethostname()}: has {found}; expected {wanted}, as on the "
            "launching machine, because the versions determine the bytes of the dataset"
        )
