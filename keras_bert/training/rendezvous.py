"""Lets the workers wait for each other before TensorFlow starts its cluster.

TensorFlow's own wait has no timeout and blocks all other threads of the process. The workers
therefore connect to each other first. During this time each worker listens on its own port; when it
creates the strategy, TensorFlow takes over the port.
"""

import contextlib
import functools
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from keras_bert.common.errors import EndedEarly, InputError

_HELLO = b"keras_bert worker "
_ACCEPTED = b"keras_bert accepted"
_REJECTED = b"keras_bert rejected: "
_CALL_TIMEOUT = 2.0
_MAX_PARALLEL_CALLS = 64
_INDEX = slice(len(_HELLO), len(_HELLO) + 2)


def wait_for_workers(workers: Sequence[str], index: int, timeout: float) -> None:
    """Waits until this worker has exchanged greetings with every other worker.

    The wait may exceed `timeout` seconds by one connection attempt.

    Raises:
        InputError: if this worker's port is in use, or another worker has a different list of
            workers or the same index.
        EndedEarly: if a worker did not connect in time.
    """
    others = [other for other in range(len(workers)) if other != index]
    hello = _hello(workers, index)
    callers: set[int] = set()
    mismatches: list[str] = []
    all_connected = threading.Event()
    deadline = time.monotonic() + timeout
    # Workers are called in parallel, since a call to a machine that is off waits for its timeout.
    threads = ThreadPoolExecutor(1 + min(len(others), _MAX_PARALLEL_CALLS))
    with _own_port(workers[index]) as listener, threads:
        threads.submit(_accept_calls, listener, hello, callers, mismatches, all_connected)
        try:
            while True:
                left = deadline - time.monotonic()
                call = functools.partial(_call, hello, min(_CALL_TIMEOUT, max(left, 0.2)))
                answers = list(threads.map(call, [workers[other] for other in others]))
                for other, answer in zip(others, answers, strict=True):
                    if answer.startswith(_REJECTED):
                        reason = answer.removeprefix(_REJECTED).decode(errors="replace")
                        mismatches.append(f"worker {other}, {workers[other]}, {reason}")
                if mismatches:
                    raise InputError(
                        f"TF_CONFIG: {mismatches[0]} this worker, which is worker {index} of "
                        f"{json.dumps([*workers])}"
                    )
                if all(answers) and callers.issuperset(others):
                    return
                if time.monotonic() > deadline:
                    missing = [workers[other] for other in others if other not in callers]
                    raise EndedEarly(
                        f"worker {index} of {len(workers)} waited {timeout:.0f} s "
                        "(--worker_timeout); not connected: "
                        f"{', '.join(missing) or 'a worker that connected earlier'}"
                    )
                time.sleep(0.2)
        finally:
            all_connected.set()


@contextlib.contextmanager
def reserved_address() -> Iterator[str]:
    """Reserves a free port of this machine for one worker to listen on; yields "host:port".

    While the port is bound, the system does not assign it to a process that asks for any free port.
    A server that requests it by number with SO_REUSEADDR, as servers do, can still listen on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def _hello(workers: Sequence[str], index: int) -> bytes:
    """Returns the greeting of a worker: its index, and a digest of the list of workers."""
    digest = hashlib.sha256(json.dumps([*workers]).encode()).digest()
    return _HELLO + index.to_bytes(2, "big") + digest[:16]


def _own_port(address: str) -> socket.socket:
    try:
        listener = socket.create_server(("", int(address.rpartition(":")[2])), backlog=128)
    except OSError as error:
        raise InputError(
            f"TF_CONFIG: cannot listen on the port of {address}, the address of this worker: "
            f"{error.strerror}"
        ) from None
    listener.settimeout(0.2)
    return listener


def _call(hello: bytes, seconds: float, address: str) -> bytes:
    """Sends the greeting to another worker; returns its answer, or b"" without one.

    A worker that has already met all others answers too: by then TensorFlow listens on its port,
    and TensorFlow sends data first.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(hello)
            return connection.recv(64)
    except OSError:
        return b""


def _accept_calls(
    listener: socket.socket,
    hello: bytes,
    callers: set[int],
    mismatches: list[str],
    all_connected: threading.Event,
) -> None:
    """Accepts connections, each in its own thread, until this worker has met all others."""
    while not all_connected.is_set():
        try:
            connection, (host, _) = listener.accept()
        except TimeoutError:
            continue
        except OSError:  # The caller closed the connection; it will call again.
            time.sleep(0.05)
            continue
        # A thread each, so that a client that sends nothing does not block the others.
        given = (connection, host, hello, callers, mismatches)
        threading.Thread(target=_handle_call, args=given, daemon=True).start()


def _handle_call(
    connection: socket.socket, host: str, hello: bytes, callers: set[int], mismatches: list[str]
) -> None:
    """Records the caller, or the reason why it does not match, and answers it."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_CALL_TIMEOUT)
        received = connection.recv(64)
        if not received.startswith(_HELLO) or len(received) != len(hello):
            return
        caller, reason = int.from_bytes(received[_INDEX], "big"), _mismatch(received, hello)
        if reason:
            connection.sendall(_REJECTED + reason.encode())
            mismatches.append(f"worker {caller}, which called from {host}, {reason}")
        else:
            callers.add(caller)
            connection.sendall(_ACCEPTED)


def _mismatch(received: bytes, hello: bytes) -> str:
    """Returns the reason why two workers cannot be in one run, or an empty string."""
    if received[_INDEX.stop :] != hello[_INDEX.stop :]:
        return "has a different list of workers than"
    return "has the same index as" if received == hello else ""
