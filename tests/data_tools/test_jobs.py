"""Tests of running jobs on local processes: results, errors and the end of the workers."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_tools.jobs import run_jobs, versions_of
from keras_bert.errors import InputError


def test_every_job_returns_its_result_and_an_error_is_raised():
    for num_workers in (1, 2):
        results = run_jobs(abs, zip(range(-7, 0)), versions_of([]), num_workers)
        assert sorted(results) == list(range(1, 8))
    with pytest.raises(ValueError, match="invalid literal"):
        list(run_jobs(int, [("1",), ("x",), ("2",)], versions_of([]), 2))


def test_death_of_a_worker_raises_an_error():
    with pytest.raises(InputError, match="a worker process died"):
        list(run_jobs(os._exit, [(9,)] * 2, versions_of([]), 2))


def test_worker_ended_by_ctrl_c_raises_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(signal.raise_signal, [(signal.SIGINT,)] * 2, versions_of([]), 2))


def test_worker_with_other_versions_is_rejected():
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(InputError, match=r"numpy was 1\.0, now [^;]*; expected the same versions"),
    ):
        list(run_jobs(abs, [(1,), (2,)], versions_of(["numpy"]) | {"numpy": "1.0"}, 2, executor))


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(root):
    """Kills the parent process while two workers have half a minute of work left."""
    code = """
import os, time
from data_tools.jobs import run_jobs, versions_of
if __name__ == "__main__":
    for _ in run_jobs(time.sleep, [(0,), *[(30,)] * 4], versions_of([]), 2):
        children = open(f"/proc/self/task/{os.getpid()}/children").read()
        print(children, flush=True)
"""
    script = [sys.executable, "-c", code]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(children) >= 2
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
