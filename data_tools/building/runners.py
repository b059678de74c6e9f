"""Runs the same function on many jobs, on local processes.

In: a function of one picklable job. Out: its results, in the order in which they come in. What a
job's result is may depend on the job only; then it is the same for any number of workers.

Processes are spawned, not forked: TensorFlow is in use, and its threads don't survive a fork.
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
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_local(
    function: Callable[[Job], Result], jobs: Iterable[Job], num_workers: int
) -> Iterator[Result]:
    """Runs jobs on local processes.

    Args:
        function: what to do with a job; a module's function, so that it can be sent by its name.
        jobs: the jobs.
        num_workers: processes; 1 does the work in this one.

    Yields:
        A result a job, as they come in.

    Raises:
        InputError: when a worker dies; and whatever `function` raises, after which no further job
            is begun.
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
            # Ctrl-C reaches all at once; this process may see what it did to them first.
            for worker in workers:
                worker.join(timeout=5)
            if any(worker.exitcode == -signal.SIGINT for worker in workers):
                raise KeyboardInterrupt from None
            raise InputError(
                "a worker process died, perhaps for want of memory: run the same command again to "
                "go on, with fewer --num_workers if it happens again"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Prepares a worker: one thread for TensorFlow, and an end with the process that it works for.

    Workers share the processors. One whose parent was killed would wait for jobs for ever, or go on
    with its last one beside the workers of the next build. Ctrl-C reaches workers, too: they end
    without a word, and their parent says it.
    """
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
