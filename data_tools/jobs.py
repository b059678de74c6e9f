"""Runs a function on many jobs, in local processes or on any executor, and reports progress.

The result of the function must depend only on the job. The workers must have the same versions of
the packages that determine the bytes of a dataset.
"""

import contextlib
import functools
import logging as std_logging
import multiprocessing
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from absl import logging
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import package_versions

# --- progress ---

_SECONDS_TO_REPORT = 2.0
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_POLLS = 1.0


class Progress:
    """A context manager that counts completed work and reports it on stderr.

    On a terminal, it shows a progress bar, elsewhere it prints plain lines. Work that takes less
    than two seconds shows nothing. Reports start with `label`; `total` is None if it is unknown.
    `measure` returns the amount of work that other processes have completed; it is called every
    second, instead of calls of `add`.
    """

    def __init__(
        self, label: str, total: int | None, unit: str, measure: Callable[[], int] | None = None
    ):
        plain = {
            "file": _Lines(),
            "mininterval": _SECONDS_BETWEEN_LINES,
            "bar_format": "{desc}: {n_fmt}/{total_fmt}{unit}, {rate_fmt}{postfix}",
        }
        self._bar = tqdm(
            desc=label,
            total=total,
            unit=f" {unit}",
            unit_scale=True,
            delay=_SECONDS_TO_REPORT,
            **{} if sys.stderr.isatty() else plain,
        )
        self._measure = measure
        self._finished = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        if self._measure:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._measure:
            self._finished.set()
            self._watcher.join()
        self._bar.close()

    def add(self, amount: int, note: str = "") -> None:
        """Adds completed work to the count; `note` is shown after the rate until it is replaced."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(amount)

    def _watch(self) -> None:
        is_finished = False
        while not is_finished:
            is_finished = self._finished.wait(_SECONDS_BETWEEN_POLLS)
            self.add(self._measure() - self._bar.n)


class _Lines:
    """Writes each state of a progress bar as a line on stderr."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Does nothing, because each line is flushed."""


# --- jobs ---

Result = TypeVar("Result")


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Returns {name: version} of Python, keras_bert and `packages`."""
    return {"python": platform.python_version()} | package_versions(packages)


def version_differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Returns "NAME was VERSION, now VERSION; ..." of the packages whose versions differ."""
    return "; ".join(
        f"{name} was {old.get(name, 'unknown')}, now {new.get(name, 'unknown')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def run_jobs(
    function: Callable[..., Result],
    jobs: Iterable[tuple],
    made_with: Mapping[str, str],
    num_workers: int,
    executor: Executor | None = None,
) -> Iterator[Result]:
    """Runs a function on jobs; yields the results in the order of completion.

    `function`, of a module, and the arguments in `jobs` are pickled. All workers must have the
    versions of packages in `made_with` (`versions_of`). The jobs run in `num_workers` local
    processes (1: in this process), or on an `executor`. If the function raises an exception, it is
    raised here, and no further job is started.
    """
    jobs = list(jobs)
    num_workers = min(num_workers, len(jobs))
    if executor is not None:
        futures = [executor.submit(_run_job, function, made_with, *job) for job in jobs]
        try:
            yield from _results(futures)
        finally:
            for future in futures:
                future.cancel()
    elif num_workers <= 1:
        yield from (function(*job) for job in jobs)
    else:
        # Not forked, because TensorFlow's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_start_worker
        ) as pool:
            try:
                yield from _results([pool.submit(function, *job) for job in jobs])
            finally:
                # To cancel single futures fails if a worker dies at the same moment.
                pool.shutdown(cancel_futures=True)


def _run_job(function: Callable[..., Result], made_with: Mapping[str, str], *job: Any) -> Result:
    """Runs a job in a worker, which must have the package versions of the launching machine."""
    names = tuple(name for name in made_with if name not in ("python", "keras_bert"))
    if differences := version_differences(made_with, _versions_here(names)):
        raise InputError(
            f"worker on {socket.gethostname()}: has other versions than the launching machine, "
            f"which determine the bytes of the dataset: {differences}; expected the same versions"
        )
    return function(*job)


@functools.lru_cache(maxsize=1)
def _versions_here(packages: tuple[str, ...]) -> dict[str, str]:
    return versions_of(packages)


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

_DASK_TIMEOUT_SECONDS = 10


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """Connects to the scheduler of a Dask cluster; provides its executor and number of threads.

    If a worker dies during a job, Dask repeats the job on another worker; if too many die, the
    block raises an `InputError`.
    """
    flag = f"--dask_scheduler={address}"
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--dask_scheduler: Dask is not installed; expected the extra dask: "
            "pip install 'keras-bert-pipeline[dask]'"
        ) from None

    # Dask logs a lost connection with tracebacks. It sets the levels of its loggers one by one.
    for name in [*std_logging.root.manager.loggerDict]:
        if name.split(".")[0] in ("distributed", "asyncio", "tornado"):
            std_logging.getLogger(name).setLevel(std_logging.CRITICAL + 1)
    try:
        client = Client(address, timeout=_DASK_TIMEOUT_SECONDS, set_as_default=False)
        client.wait_for_workers(1, timeout=_DASK_TIMEOUT_SECONDS)
    except (OSError, ValueError) as error:  # also TimeoutError
        raise InputError(
            f"{flag}: no scheduler with a worker answers within {_DASK_TIMEOUT_SECONDS} s "
            f"({error}); start them with `dask scheduler` and `dask worker {address}`"
        ) from None
    with client:
        num_threads = client.nthreads()
        logging.info("%s: number of workers: %d", flag, len(num_threads))
        try:
            yield client.get_executor(pure=False), sum(num_threads.values())
        except Exception as error:
            is_lost = isinstance(error, CancelledError)
            if not is_lost and not type(error).__module__.startswith("distributed."):
                raise
            reason = "the connection to the scheduler was lost" if is_lost else error
            raise InputError(f"{flag}: {reason}; run the same command again to resume") from None
