"""The start of several workers: their addresses in; back when each has met every other.

TensorFlow's own wait for the others has no end and lets no other thread run, so this comes first.
A worker's port is its own until it makes the strategy; then TensorFlow answers on it.
"""

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from keras_bert.errors import EndedEarly, InputError

_HELLO = b"keras_bert worker "
_HEARD = b"keras_bert heard"
_SECONDS_A_CALL = 2.0
_CALLS_AT_ONCE = 64


def meet(workers: Sequence[str], index: int, timeout: float) -> None:
    """Waits until every other worker has called here, and has heard this one's call.

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
    met = threading.Event()
    deadline = time.monotonic() + timeout
    # All at once: a machine that is off keeps each caller waiting.
    threads = ThreadPoolExecutor(1 + min(len(others), _CALLS_AT_ONCE))
    with _own_port(workers[index]) as listener, threads:
        threads.submit(_answer, listener, callers, met)
        try:
            while True:
                left = deadline - time.monotonic()
                call = functools.partial(_call, index, min(_SECONDS_A_CALL, max(left, 0.2)))
                answers = list(threads.map(call, [workers[other] for other in others]))
                if all(answers) and callers.issuperset(others):
                    return
                if time.monotonic() > deadline:
                    missing = [workers[other] for other in others if other not in callers]
                    raise EndedEarly(
                        f"worker {index} of {len(workers)} waited {timeout:.0f} s "
                        "(--worker_timeout); not there: "
                        f"{', '.join(missing) or 'one that had come'}"
                    )
                time.sleep(0.2)
        finally:
            met.set()


def _own_port(address: str) -> socket.socket:
    try:
        listener = socket.create_server(("", int(address.rpartition(":")[2])), backlog=128)
    except OSError as error:
        raise InputError(
            f"TF_CONFIG: cannot listen on the port of {address}, which is this worker's: "
            f"{error.strerror}"
        ) from None
    listener.settimeout(0.2)
    return listener


def _call(index: int, seconds: float, address: str) -> bool:
    """Tells another worker that this one is there; returns whether it has heard that.

    One that has met all others already has, too: TensorFlow, which speaks first, answers there.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(_HELLO + bytes([index // 256, index % 256]))
            return bool(connection.recv(64))
    except OSError:
        return False


def _answer(listener: socket.socket, callers: set[int], met: threading.Event) -> None:
    """Takes calls, notes who called, and says so, until this worker has met all others."""
    while not met.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        except OSError:  # This one was given up, and its worker calls again.
            time.sleep(0.05)
            continue
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_SECONDS_A_CALL)
            said = connection.recv(64)
            if said.startswith(_HELLO) and len(said) == len(_HELLO) + 2:
                callers.add(said[-2] * 256 + said[-1])
                connection.sendall(_HEARD)
