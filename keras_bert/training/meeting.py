"""The start of several workers: their addresses in; back when each has met every other.

TensorFlow's own wait for the others has no end and lets no other thread run, so this comes first.
A worker's port is its own until it makes the strategy; then TensorFlow answers on it.
"""

import contextlib
import functools
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from keras_bert.errors import EndedEarly, InputError

_HELLO = b"keras_bert worker "
_SECONDS_A_CALL = 2.0
_CALLS_AT_ONCE = 64


def meet(workers: Sequence[str], index: int, timeout: float) -> None:
    """Waits until every other worker has called here and answers calls, too.

    Args:
        workers: "host:port" of each.
        index: which of them this process is.
        timeout: seconds to wait; it ends at most a call later.

    Raises:
        InputError: this worker's port is taken.
        EndedEarly: a worker has not come.
    """
    others = [other for other in range(len(workers)) if other != index]
    callers: set[int] = set()
    deadline = time.monotonic() + timeout
    # All at once: a machine that is off keeps each caller waiting.
    calls = ThreadPoolExecutor(max(1, min(len(others), _CALLS_AT_ONCE)))
    with _own_port(workers[index]) as listener, calls:
        while True:
            left = deadline - time.monotonic()
            call = functools.partial(_call, index, min(_SECONDS_A_CALL, max(left, 0.2)))
            answers = list(calls.map(call, [workers[other] for other in others]))
            callers |= _callers(listener)
            if all(answers) and callers.issuperset(others):
                return
            if time.monotonic() > deadline:
                missing = [workers[other] for other in others if other not in callers]
                raise EndedEarly(
                    f"worker {index} of {len(workers)} waited {timeout:.0f} s "
                    f"(--worker_timeout); not there: {', '.join(missing) or 'one that had come'}"
                )
            time.sleep(0.2)


def _own_port(address: str) -> socket.socket:
    try:
        listener = socket.create_server(("", int(address.rpartition(":")[2])), backlog=128)
    except OSError as error:
        raise InputError(
            f"TF_CONFIG: cannot listen on the port of {address}, which is this worker's: "
            f"{error.strerror}"
        ) from None
    listener.setblocking(False)
    return listener


def _call(index: int, seconds: float, address: str) -> bool:
    """Tells another worker that this one is there; returns whether something answered."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(_HELLO + bytes([index // 256, index % 256]))
            return True
    except OSError:
        return False


def _callers(listener: socket.socket) -> set[int]:
    """Takes the calls that have come in, and returns who called."""
    found = set()
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # None is left, or this one was given up: its worker calls again.
            return found
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.5)
            said = connection.recv(64)
            if said.startswith(_HELLO) and len(said) == len(_HELLO) + 2:
                found.add(said[-2] * 256 + said[-1])
