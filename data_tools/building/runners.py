"""Runs a function on many jobs in local processes.

Processes are spawned, not forked, because TensorFlow's threads do not survive a fork.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from keras_bert.common.errors import InputError

Job = TypeVar("Job")
Result = TypeVar("Result")


def default_num_workers() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_local(
    function: Callable[[Job], Result], jobs: Iterable[Job], num_workers: int
) -> Iterator[Result]:
    """Runs jobs in local processes; yields results in the order of completion.

    Args:
        function: a module-level function, which is pickled by name. Its result must depend only on
            the job.
        jobs: arguments of the function, which are pickled.
        num_workers: number of processes; 1 runs the jobs in the current process.

    Raises:
        InputError: if a worker dies. If `function` raises an exception, it is raised here, and no
            further job is started.
    """
    jobs = list(jobs)
    num_workers = min(num_workers, len(jobs))
    if num_workers <= 1:
        yield from map(function, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            futures = [pool.submit(function, job) for job in jobs]
            workers = multiprocessing.active_children()
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
        finally:
            pool.shutdown(cancel_futures=True)


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
