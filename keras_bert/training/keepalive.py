"""Closes TensorFlow's connections to workers that cannot be reached anymore.

Worker 0 notices the loss of each other worker. Two workers that lose only the connection to each
other would wait forever: TensorFlow sets no timeout for its calls, and a call that waits for its
answer sends no packets that could fail. The kernel can send such packets (TCP keepalive). It closes
a connection whose other end does not answer, and the call then fails. A worker that is only slow
keeps its connections, because its kernel answers.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection

SECONDS = 40  # Until the connection to a worker that does not answer is closed.
_PROBES = 3
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SECONDS // (1 + _PROBES)),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SECONDS // (1 + _PROBES)),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
    # Without this limit, sent data that is not acknowledged is repeated for 15 minutes.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SECONDS * 1000),
)
_SECONDS_BETWEEN_SEARCHES = 5.0  # TensorFlow opens connections in the first steps and after errors.


def keep_connections_alive(ports: Collection[int]) -> None:
    """Starts a thread that sets keepalive for this process's connections to the given ports.

    TensorFlow has no setting for this, so the thread finds its connections in /proc.
    """

    def search() -> None:
        while True:
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # It is no connection, or was just closed.
                    set_keepalive(int(name), ports)
            time.sleep(_SECONDS_BETWEEN_SEARCHES)

    threading.Thread(target=search, name="keepalive", daemon=True).start()


def set_keepalive(descriptor: int, ports: Collection[int]) -> None:
    """Sets keepalive if a file descriptor is a TCP connection to one of the ports.

    Raises:
        OSError: the descriptor is not a connection.
    """
    with contextlib.ExitStack() as opened:
        own = os.dup(descriptor)  # The original may be closed, and its number reused, at any time.
        opened.callback(os.close, own)
        connection = socket.socket(fileno=own)
        opened.callback(connection.detach)
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        if is_tcp and connection.getpeername()[1] in ports:
            for option in _OPTIONS:
                connection.setsockopt(*option)
