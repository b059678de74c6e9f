"""Processes that are workers of one run on this machine; worker_tasks.py has their tasks.

Each worker has its own TF_CONFIG and its own file for its output, and can have its own network.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import processes

# --- processes ---


def free_address() -> str:
    """Returns the address of a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(
    folder: Path, count: int, task: str, *arguments: object, network: "Network | None" = None
) -> list[processes.Process]:
    """Starts workers with a task of worker_tasks.py and its arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = [free_address() for _ in range(count)]
    if network:
        addresses = [f"{host}:2222" for host in network.hosts()]
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
                network=network.namespace(index) if network else "",
            )
        worker.log = log
        workers.append(worker)
    return workers


def outlived(killed: processes.Process, survivor: processes.Process) -> float:
    """Waits for a killed worker and one that ends as a result; returns the seconds between."""
    killed.wait()
    start = time.monotonic()
    survivor.wait()
    return time.monotonic() - start


def run(folder: Path, count: int, task: str, *arguments: object) -> list[str]:
    """Runs workers until they finish; returns the output of each."""
    workers = start(folder, count, task, *arguments)
    codes = [worker.wait() for worker in workers]
    logs = [worker.log.read_text() for worker in workers]
    assert not any(codes), (codes, logs)
    return logs


# --- networks ---


@dataclass(frozen=True)
class Network:
    """A network namespace for each worker, connected by a switch.

    Worker N has the address 10.0.0.(N + 1). A worker can be unplugged, which drops its packets
    without an error on either side, as a partition between two machines does. Needs root and `ip`
    (Debian's package iproute2).
    """

    name: str
    size: int

    def hosts(self) -> list[str]:
        """Returns the address of each worker."""
        return [f"10.0.0.{index + 1}" for index in range(self.size)]

    def namespace(self, index: int) -> str:
        """Returns the name of the namespace of a worker."""
        return f"{self.name}-{index}"

    def unplug(self, index: int) -> None:
        """Drops all packets from and to a worker."""
        _ip("-n", self.name, "link", "set", f"port{index}", "nomaster")

    def plug(self, index: int) -> None:
        """Connects a worker to the switch."""
        _ip("-n", self.name, "link", "set", f"port{index}", "master", "switch")


@contextlib.contextmanager
def make_network(size: int) -> Iterator[Network]:
    """Creates a network of workers, and deletes it afterwards.

    Raises:
        OSError: the system does not permit it; the message has the reason.
    """
    network = Network(f"kb{os.getpid()}", size)
    with contextlib.ExitStack() as created:
        _add_namespace(created, network.name)
        _ip("-n", network.name, "link", "add", "name", "switch", "up", "type", "bridge")
        for index, host in enumerate(network.hosts()):
            namespace = network.namespace(index)
            _add_namespace(created, namespace)
            peer = ["peer", "name", "eth0", "address", _hardware_address(index), "netns", namespace]
            _ip("-n", network.name, "link", "add", f"port{index}", "up", "type", "veth", *peer)
            network.plug(index)
            _ip("-n", namespace, "address", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            # As behind a router, a lost machine is not noticed because it has no hardware address.
            for other, address in enumerate(network.hosts()):
                entry = [address, "lladdr", _hardware_address(other), "dev", "eth0"]
                if other != index:
                    _ip("-n", namespace, "neighbour", "add", *entry)
        yield network


def _add_namespace(created: contextlib.ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    created.callback(_ip, "netns", "delete", name)


def _hardware_address(index: int) -> str:
    return f"02:00:00:00:00:{index + 1:02x}"


def _ip(*arguments: str) -> None:
    program = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        raise OSError("the program ip is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
