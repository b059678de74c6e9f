"""Processes that are workers of one run on this machine; worker_tasks.py has their tasks.

TensorFlow takes long to import, so a server imports it once, and workers are forked from the
server. Each worker has its own TF_CONFIG and its own file for its output.
"""

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training.worker_tasks"])


def free_address() -> str:
    """Returns the address of a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(folder: Path, count: int, task: Callable[..., None], *arguments: object) -> list:
    """Starts workers; `task` is called with each worker's index and the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = [free_address() for _ in range(count)]
    processes = []
    for index in range(count):
        log = folder / f"log-{index}.txt"
        given = (index, addresses, log, task, arguments)
        process = CONTEXT.Process(target=_enter, args=given, daemon=True)
        process.start()
        process.log = log
        processes.append(process)
    return processes


def ended(process, seconds: float = 900) -> int:
    """Waits for a worker; returns its exit code, negative for a signal."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {seconds} s: {process.log.read_text()}")
    return process.exitcode


def outlived(killed, survivor) -> float:
    """Waits for a killed worker and one that ends as a result; returns the seconds between."""
    ended(killed)
    start = time.monotonic()
    ended(survivor)
    return time.monotonic() - start


def run(folder: Path, count: int, task: Callable[..., None], *arguments: object) -> list[str]:
    """Runs workers until they finish; returns the output of each."""
    processes = start(folder, count, task, *arguments)
    codes = [ended(process) for process in processes]
    logs = [process.log.read_text() for process in processes]
    assert not any(codes), (codes, logs)
    return logs


def _enter(
    index: int, addresses: list[str], log: Path, task: Callable[..., None], arguments: tuple
) -> None:
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    os.environ["TF_CONFIG"] = json.dumps(config)
    try:
        task(index, *arguments)
    except SystemExit as end:
        if end.code:
            raise
    # The last messages must arrive. A process that is not forked takes as long to exit.
    time.sleep(1)
