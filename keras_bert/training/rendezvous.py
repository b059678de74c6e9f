"""Lets several workers wait for each other before TensorFlow starts its cluster.

TensorFlow's own wait has no time limit and lets no other thread run, so this comes first.
A worker's port is its own until it makes the strategy; then TensorFlow answers on it.
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
_HEARD = b"keras_bert heard"
_REFUSED = b"keras_bert refused: "
_SECONDS_A_CALL = 2.0
_CALLS_AT_ONCE = 64
_INDEX = slice(len(_HELLO), len(_HELLO) + 2)


def meet(workers: Sequence[str], index: int, timeout: float) -> None:
    """Waits until this worker has exchanged calls with every other worker.

    Args:
        workers: "host:port" of each.
        index: which of them this process is.
        timeout: seconds to wait; it ends at most a call later.

    Raises:
        InputError: this worker's port is taken, or another one has another list of workers or the
            same index.
        EndedEarly: a worker has not come.
    """
    others = [other for other in range(len(workers)) if other != index]
    hello = _hello(workers, index)
    callers: set[int] = set()
    misfits: list[str] = []
    met = threading.Event()
    deadline = time.monotonic() + timeout
    # All at once: a machine that is off keeps each caller waiting.
    threads = ThreadPoolExecutor(1 + min(len(others), _CALLS_AT_ONCE))
    with _own_port(workers[index]) as listener, threads:
        threads.submit(_answer, listener, hello, callers, misfits, met)
        try:
            while True:
                left = deadline - time.monotonic()
                call = functools.partial(_call, hello, min(_SECONDS_A_CALL, max(left, 0.2)))
                answers = list(threads.map(call, [workers[other] for other in others]))
                for other, answer in zip(others, answers, strict=True):
                    if answer.startswith(_REFUSED):
                        what = answer.removeprefix(_REFUSED).decode(errors="replace")
                        misfits.append(f"worker {other}, {workers[other]}, {what}")
                if misfits:
                    raise InputError(
                        f"TF_CONFIG: {misfits[0]} this worker, which is {index} of "
                        f"{json.dumps([*workers])}"
                    )
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


@contextlib.contextmanager
def held_address() -> Iterator[str]:
    """Keeps a port of this machine for a worker, who alone listens on it.

    A port that a socket holds without listening is given to no one who asks for any free port; a
    server that asks for it by its number, and for SO_REUSEADDR as servers do, gets it.

    Yields:
        "host:port".
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def _hello(workers: Sequence[str], index: int) -> bytes:
    """The greeting of a worker: its index, and a digest of the list of workers."""
    digest = hashlib.sha256(json.dumps([*workers]).encode()).digest()
    return _HELLO + index.to_bytes(2, "big") + digest[:16]


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


def _call(hello: bytes, seconds: float, address: str) -> bytes:
    """Tells another worker that this one is there; returns what it says to that, if anything.

    One that has met all others already says something, too: TensorFlow, which speaks first,
    answers there.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(hello)
            return connection.recv(64)
    except OSError:
        return b""


def _answer(
    listener: socket.socket,
    hello: bytes,
    callers: set[int],
    misfits: list[str],
    met: threading.Event,
) -> None:
    """Takes calls, each in a thread of its own, until this worker has met all others."""
    while not met.is_set():
        try:
            connection, (host, _) = listener.accept()
        except TimeoutError:
            continue
        except OSError:  # This one was given up, and its worker calls again.
            time.sleep(0.05)
            continue
        # A stranger who says nothing must not keep the others waiting.
        given = (connection, host, hello, callers, misfits)
        threading.Thread(target=_hear, args=given, daemon=True).start()


def _hear(
    connection: socket.socket, host: str, hello: bytes, callers: set[int], misfits: list[str]
) -> None:
    """Notes who calls, or what does not fit, and tells the caller."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_SECONDS_A_CALL)
        said = connection.recv(64)
        if not said.startswith(_HELLO) or len(said) != len(hello):
            return
        caller, what = int.from_bytes(said[_INDEX], "big"), _misfit(said, hello)
        if what:
            connection.sendall(_REFUSED + what.encode())
            misfits.append(f"worker {caller}, which called from {host}, {what}")
        else:
            callers.add(caller)
            connection.sendall(_HEARD)


def _misfit(said: bytes, hello: bytes) -> str:
    """Returns the reason why two workers cannot be in one run, or an empty text."""
    if said[_INDEX.stop :] != hello[_INDEX.stop :]:
        return "has another list of workers than"
    return "has the same index as" if said == hello else ""
