"""Runs the same function on many jobs, on local processes.

In: a function of one picklable job. Out: its results, in the order in which they come in. What a
job's result is may depend on the job only; then it is the same for any number of workers.

Processes are spawned, not forked: TensorFlow is in use, and its threads don't survive a fork.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from keras_bert.errors import InputError

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
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_one_thread) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise InputError(
                "a worker process died, perhaps for want of memory: run the same command again to "
                "go on, with fewer --num_workers if it happens again"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _one_thread() -> None:
    """Keeps a worker's TensorFlow to one thread, before it starts: workers share the processors."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
