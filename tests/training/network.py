"""A network of its own for each worker: namespaces that are connected by a switch.

A worker can be unplugged, which drops its packets without an error on either side, as a partition
between two machines does. Needs root and `ip` (Debian's package iproute2).
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """The namespaces of a network; worker N has the address 10.0.0.(N + 1)."""

    name: str
    size: int

    def hosts(self) -> list[str]:
        """Returns the address of each worker."""
        return [f"10.0.0.{index + 1}" for index in range(self.size)]

    def start(self, index: int, command: Sequence[str], **popen) -> subprocess.Popen:
        """Starts a command in the namespace of a worker."""
        inside = ["ip", "netns", "exec", f"{self.name}-{index}"]
        return subprocess.Popen([*inside, *command], **popen)

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
            own = f"{network.name}-{index}"
            _add_namespace(created, own)
            peer = ["peer", "name", "eth0", "address", _hardware_address(index), "netns", own]
            _ip("-n", network.name, "link", "add", f"port{index}", "up", "type", "veth", *peer)
            network.plug(index)
            _ip("-n", own, "address", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")
            _ip("-n", own, "link", "set", "lo", "up")
            # As behind a router, a lost machine is not noticed because it has no hardware address.
            for other, address in enumerate(network.hosts()):
                known = [address, "lladdr", _hardware_address(other), "dev", "eth0"]
                if other != index:
                    _ip("-n", own, "neighbour", "add", *known)
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
