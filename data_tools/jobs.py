"""Runs a function on many jobs, in local processes or on any executor, and reports progress.

The result of the function must depend only on the job. A worker process cannot print to the
progress bar of the main process. It writes its count to a small file (`Meter`), which the main
process polls (`watched`).
"""

import contextlib
import importlib.util
import logging as std_logging
import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

from absl import logging
from tqdm import tqdm

from keras_bert.errors import InputError

# --- progress ---

_SECONDS_BETWEEN_LINES = 10.0

_SECONDS_BETWEEN_POLLS = 0.5
_AMOUNT_BETWEEN_WRITES = 4 << 20
_AMOUNT = struct.Struct("<Q")


class Progress:
    """A context manager that counts completed work and reports it on stderr.

    On a terminal, it shows a progress bar, elsewhere it prints plain lines.

    The reports start with `label`, for example "reading"; `unit` is the unit of the count, for
    example "B". The total amount of work is None if it is unknown.
    """

    def __init__(self, label: str, total: int | None, unit: str):
        self._label, self._total, self._unit = label, total, unit
        self._done, self._note, self._line = 0, "", ""
        self._started = self._printed = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc=label, total=total, unit=f" {unit}", unit_scale=True, file=sys.stderr
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif error_type is None:
            self._print()

    def add(self, amount: int, note: str = "") -> None:
        """Adds completed work to the count; `note` is shown after the rate until it is replaced."""
        self._done += amount
        self._note = note or self._note
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)
        elif time.monotonic() - self._printed >= _SECONDS_BETWEEN_LINES:
            self._print()

    def _print(self) -> None:
        now = time.monotonic()
        self._printed = now
        done, total = _short(self._done), "" if self._total is None else f"/{_short(self._total)}"
        rate = _short(self._done / max(now - self._started, 1e-9))
        note = f", {self._note}" if self._note else ""
        line = f"{self._label}: {done}{total} {self._unit}"
        if line != self._line:  # avoids printing the same line twice
            print(f"{line}, {rate} {self._unit}/s{note}", file=sys.stderr, flush=True)
        self._line = line


class Meter:
    """Writes the amount of work that a worker has completed to a file; a context manager."""

    def __init__(self, path: str):
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._done = self._written = 0

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._file.close()

    def add(self, amount: int) -> None:
        """Adds to the amount; the file is updated after every 4 MiB of work and at exit."""
        self._done += amount
        if self._done - self._written >= _AMOUNT_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        self._written = self._done
        os.pwrite(self._file.fileno(), _AMOUNT.pack(self._done), 0)


@contextlib.contextmanager
def watched(paths: list[str], progress: Progress) -> Iterator[None]:
    """Adds the work that other processes complete during the block to `progress`.

    `paths` are the files that the `Meter` of each process writes; the files are removed at the end.
    """
    finished = threading.Event()

    def watch() -> None:
        seen = 0
        while True:
            is_finished = finished.wait(_SECONDS_BETWEEN_POLLS)
            done = sum(map(_read_meter, paths))
            progress.add(done - seen)
            seen = done
            if is_finished:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        for path in paths:
            with contextlib.suppress(OSError):
                os.remove(path)


def _read_meter(path: str) -> int:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:  # The worker has not started.
        return 0
    return _AMOUNT.unpack(content)[0] if len(content) == _AMOUNT.size else 0


def _short(number: float) -> str:
    return tqdm.format_sizeof(number) if number >= 1000 else f"{number:.3g}"


# --- jobs ---

if TYPE_CHECKING:
    from distributed import Client

Job = TypeVar("Job")
Result = TypeVar("Result")


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

_DASK_TIMEOUT_SECONDS = 10


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
            with _warned_without_workers(client):
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
def _warned_without_workers(client: "Client") -> Iterator[None]:
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
