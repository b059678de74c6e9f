"""Lets the workers wait for each other before TensorFlow starts its cluster.

TensorFlow's own wait has no timeout and blocks all threads of the process. Each worker therefore
listens on its own port and first connects to the others; TensorFlow then takes over the port.

Any process can connect to the port, so an incoming connection alone never ends the wait: a worker
trusts only the answers to its own calls, which go to the addresses in TF_CONFIG.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from absl import logging

from keras_bert.common.errors import EndedEarly, InputError, InUse

_HELLO = b"keras_bert worker "
_ACCEPTED = b"keras_bert accepted"
_CONNECTED = b"keras_bert connected to all"  # Accepted, by a worker that waits only for others.
_REJECTED = b"keras_bert rejected: "
# The first bytes that TensorFlow sends (HTTP/2). A worker that is already connected to all others
# starts TensorFlow, which may connect to this worker while this worker still waits.
_TENSORFLOW = b"PRI * HTTP/2.0"
_CALL_TIMEOUT = 2.0
_MAX_PARALLEL_CALLS = 64
_INDEX = slice(len(_HELLO), len(_HELLO) + 2)


def wait_for_workers(workers: Sequence[str], index: int, timeout: float) -> None:
    """Waits until every worker has connected to every other worker.

    A worker thus does not start TensorFlow's wait, which may never end, while two others cannot
    reach each other.

    Raises:
        InUse: another process uses this worker's port.
        InputError: this worker cannot listen on its port, or another worker has a different list of
            workers or the same index.
        EndedEarly: a worker did not connect within about `timeout` seconds.
    """
    others = [other for other in range(len(workers)) if other != index]
    hello = _hello(workers, index)
    deadline = time.monotonic() + timeout
    # Workers are called in parallel, since a call to a machine that is off waits for its timeout.
    threads = ThreadPoolExecutor(1 + min(len(others), _MAX_PARALLEL_CALLS))
    with _listen(workers[index]) as listener, threads, _Reception(listener, hello) as reception:
        while True:
            left = deadline - time.monotonic()
            call = functools.partial(_call, hello, min(_CALL_TIMEOUT, max(left, 0.2)))
            calls = threads.map(call, [workers[other] for other in others])
            answers = dict(zip(others, calls, strict=True))
            for other, answer in answers.items():
                if answer.startswith(_REJECTED):
                    # The other worker calls this one within this time and is rejected, too.
                    time.sleep(_CALL_TIMEOUT + 0.5)
                    reason = answer.removeprefix(_REJECTED).decode(errors="replace")
                    raise InputError(
                        f"TF_CONFIG: worker {other}, {workers[other]}, {reason} this worker, which "
                        f"is worker {index} of {json.dumps([*workers])}"
                    )
            missing = [o for o in others if not answers[o] or o not in reception.callers]
            reception.is_connected |= not missing
            waiting = [o for o in others if answers[o] == _ACCEPTED]
            if not missing and not waiting:
                return
            if time.monotonic() > deadline:
                state = "not connected" if missing else "waiting for each other or a lost worker"
                raise EndedEarly(
                    f"worker {index} of {len(workers)} waited {timeout:.0f} s (--worker_timeout); "
                    f"{state}: {', '.join(workers[other] for other in missing or waiting)}"
                )
            time.sleep(0.2)


@contextlib.contextmanager
def reserved_address() -> Iterator[str]:
    """Reserves a free port of this machine for one worker to listen on; yields "host:port"."""
    with socket.socket() as held:
        # While the port is bound, the system does not assign it to a process that asks for any free
        # port. A server that requests it by number with SO_REUSEADDR can still listen on it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def _hello(workers: Sequence[str], index: int) -> bytes:
    """Returns the greeting of a worker: its index, and a digest of the list of workers."""
    digest = hashlib.sha256(json.dumps([*workers]).encode()).digest()
    return _HELLO + index.to_bytes(2, "big") + digest[:16]


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        listener = socket.create_server((_own_host(host), int(port)), backlog=128)
    except OSError as error:
        message = (
            f"TF_CONFIG: cannot listen on the port of {address}, the address of this worker: "
            f"{os.strerror(error.errno)}"
        )
        if error.errno == errno.EADDRINUSE:
            raise InUse(f"{message}; run the same command again once it is free") from None
        raise InputError(message) from None
    listener.settimeout(0.2)
    return listener


def _own_host(host: str) -> str:
    """Returns the IP address of a host name of this machine, or "" to listen on all addresses.

    The result is "" if the other workers cannot reach this machine at the IP address: it belongs to
    a router in front of the machine, or it is the loopback address that /etc/hosts gives to the
    name of the machine.
    """
    try:
        found = socket.gethostbyname(host)
        with socket.socket() as probe:
            probe.bind((found, 0))
        if not found.startswith("127.") or host in (found, "localhost"):
            return found
        reason = f"is the loopback address {found} on this machine"
    except OSError as error:
        reason = f"is not an address of this machine ({error.strerror})"
    logging.warning("TF_CONFIG: %s %s; listening on all addresses", host, reason)
    return ""


def _call(hello: bytes, seconds: float, address: str) -> bytes:
    """Sends the greeting to another worker; returns its answer, or b"" without one."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(hello)
            # A worker that is already connected to all others answers too: TensorFlow, which then
            # listens on its port, sends data first.
            return connection.recv(64)
    except OSError:
        return b""


class _Reception:
    """Answers the calls of other workers in threads.

    The answers contain whether this worker `is_connected` to all others. Connections
    that are ignored are logged once for each host and reason.
    """

    def __init__(self, listener: socket.socket, hello: bytes):
        self.callers: set[int] = set()
        self.is_connected = False
        self._listener, self._hello = listener, hello
        self._logged: set[tuple[str, str]] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept_calls, daemon=True)

    def __enter__(self) -> "_Reception":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def _accept_calls(self) -> None:
        while not self._closed.is_set():
            try:
                connection, (host, _) = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # The caller closed the connection; it will call again.
                time.sleep(0.05)
                continue
            # One thread per caller, so that a caller that sends nothing does not block the others.
            threading.Thread(target=self._answer, args=(connection, host), daemon=True).start()

    def _answer(self, connection: socket.socket, host: str) -> None:
        received, mismatch = b"", ""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_CALL_TIMEOUT)
            received = connection.recv(64)
            if self._is_hello(received):
                mismatch = self._mismatch(received)
                if not mismatch:
                    self.callers.add(int.from_bytes(received[_INDEX], "big"))
                accepted = _CONNECTED if self.is_connected else _ACCEPTED
                connection.sendall(_REJECTED + mismatch.encode() if mismatch else accepted)
        if mismatch:
            self._log_ignored(host, f"{mismatch} this worker")
        elif not self._is_hello(received) and not received.startswith(_TENSORFLOW):
            self._log_ignored(host, "sent no greeting of a worker")

    def _is_hello(self, received: bytes) -> bool:
        return received.startswith(_HELLO) and len(received) == len(self._hello)

    def _mismatch(self, received: bytes) -> str:
        """Returns why the caller and this worker cannot be in one run; "" if they can."""
        if received[_INDEX.stop :] != self._hello[_INDEX.stop :]:
            return "has a different list of workers than"
        return "has the same index as" if received == self._hello else ""

    def _log_ignored(self, host: str, reason: str) -> None:
        if (host, reason) not in self._logged and not self._closed.is_set():
            self._logged.add((host, reason))
            logging.warning("Ignored a connection from %s, which %s", host, reason)
