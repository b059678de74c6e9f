"""The connections to other workers get keepalive; other connections and files are not changed."""

import os
import socket
import time

import pytest

from keras_bert.training import keepalive


def has_keepalive(connection):
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def user_timeout(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.fixture
def connect():
    """Returns a function that connects to a new server; it returns the connection and the port."""
    opened = []

    def to_server(family=socket.AF_INET, host="127.0.0.1"):
        server = socket.create_server((host, 0), family=family)
        opened.extend([server, socket.create_connection((host, server.getsockname()[1]))])
        return opened[-1], server.getsockname()[1]

    yield to_server
    for each in opened:
        each.close()


def test_only_connections_to_the_ports_get_keepalive(connect):
    (worker, port), (other, _) = connect(), connect()
    for connection in (worker, other):
        keepalive.set_keepalive(connection.fileno(), {port})
    assert [has_keepalive(worker), has_keepalive(other)] == [True, False]
    assert [user_timeout(worker), user_timeout(other)] == [40_000, 0]
    idle = worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    between = worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
    probes = worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
    assert idle + between * probes == keepalive.SECONDS
    worker.sendall(b"still open")


def test_connection_by_ipv6_gets_keepalive(connect):
    try:
        worker, port = connect(socket.AF_INET6, "::1")
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    keepalive.set_keepalive(worker.fileno(), {port})
    assert has_keepalive(worker)


def test_other_descriptors_are_not_changed_and_stay_open(tmp_path):
    left, right = socket.socketpair()
    with open(tmp_path / "file", "w") as file, left, right, socket.socket() as unconnected:
        before = set(os.listdir("/proc/self/fd"))
        keepalive.set_keepalive(left.fileno(), {0})
        for each in (file, unconnected):
            with pytest.raises(OSError):  # noqa: PT011  (the kernel's message)
                keepalive.set_keepalive(each.fileno(), {0})
        assert set(os.listdir("/proc/self/fd")) == before
        file.write("still open")


def test_connections_are_found_also_if_they_are_opened_later(connect, monkeypatch):
    monkeypatch.setattr(keepalive, "_SECONDS_BETWEEN_SEARCHES", 0.01)
    ports = set()
    keepalive.keep_connections_alive(ports)
    for _ in range(2):
        connection, port = connect()
        ports.add(port)
        deadline = time.monotonic() + 10
        while not has_keepalive(connection):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    monkeypatch.setattr(keepalive, "_SECONDS_BETWEEN_SEARCHES", 1e6)
