"""Processes that are workers of one run on this machine; worker_tasks.py has their tasks.

Each worker has its own TF_CONFIG and its own file for its output.
"""

import json
import os
import socket
from pathlib import Path

from tests import processes


def free_address() -> str:
    """Returns the address of a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(folder: Path, count: int, task: str, *arguments: object) -> list[processes.Process]:
    """Starts workers with a task of worker_tasks.py and its arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = [free_address() for _ in range(count)]
    workers = []
    for index in range(count):
        log = folder / f"log-{index}.txt"
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        with log.open("w") as file:
            worker = processes.start(
                ["-m", "tests.training.worker_tasks", task, *arguments],
                env=os.environ | {"TF_CONFIG": json.dumps(config)},
                stdout=file,
                stderr=file,
            )
        worker.log = log
        workers.append(worker)
    return workers


def run(folder: Path, count: int, task: str, *arguments: object) -> list[str]:
    """Runs workers until they finish; returns the output of each."""
    workers = start(folder, count, task, *arguments)
    codes = [worker.wait() for worker in workers]
    logs = [worker.log.read_text() for worker in workers]
    assert not any(codes), (codes, logs)
    return logs
