"""Workers that wait for each other: the maximum wait, and calls that must not end it."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bert.common.errors import EndedEarly, InputError, InUse
from keras_bert.training import rendezvous


@pytest.fixture
def addresses():
    """Yields three addresses that no other process gets."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(rendezvous.reserved_address()) for _ in range(3)]


def port_of(address):
    return int(address.rpartition(":")[2])


def connect_all(workers, seconds_between=0.0):
    """Lets workers connect. Each then listens on its port and sends first, as TensorFlow does."""
    left = []

    def worker(index):
        time.sleep(seconds_between * index)
        try:
            rendezvous.wait_for_workers(workers, index, timeout=5)
        finally:
            left.append(index)
        with socket.create_server(("", port_of(workers[index]))) as server:
            server.settimeout(0.2)
            while len(left) < len(workers):
                with contextlib.suppress(TimeoutError), server.accept()[0] as connection:
                    connection.sendall(b"settings")
        return index

    with ThreadPoolExecutor() as threads:
        return list(threads.map(worker, range(len(workers))))


def test_workers_that_start_one_after_the_other_connect(addresses):
    assert connect_all(addresses, seconds_between=0.3) == [0, 1, 2]


def test_silent_connection_from_another_process_blocks_no_worker(addresses, monkeypatch):
    """It has four times the timeout to send data; the workers are answered meanwhile."""
    monkeypatch.setattr(rendezvous, "_CALL_TIMEOUT", 20.0)
    with contextlib.ExitStack() as connections:

        def connect(address):
            connections.enter_context(socket.create_connection(("127.0.0.1", port_of(address))))

        call_first(monkeypatch, connect)
        assert connect_all(addresses) == [0, 1, 2]


def call_first(monkeypatch, connect):
    """Calls `connect` with the address of each worker as soon as the worker listens."""
    listen = rendezvous._listen

    def called_by_another_process(address):
        listener = listen(address)
        connect(address)
        return listener

    monkeypatch.setattr(rendezvous, "_listen", called_by_another_process)


FORGED = b"keras_bert worker "


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (FORGED + b"\0\1" + b"x" * 16, "has a different list of workers than this worker"),
        (FORGED + b"\xff\xff" + b"x" * 16, "has a different list of workers than this worker"),
        (FORGED, "sent no greeting of a worker"),
        (b"GET / HTTP/1.1\r\n\r\n", "sent no greeting of a worker"),
        (b"", "sent no greeting of a worker"),
    ],
)
def test_connections_from_other_processes_are_logged_and_ignored(
    addresses, monkeypatch, sent, reason
):
    """Each connects three times before the workers; a flood does not fill the log."""
    lines = []
    monkeypatch.setattr(
        rendezvous.logging, "warning", lambda text, *values: lines.append(text % values)
    )

    def connect(address):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port_of(address))) as connection:
                connection.sendall(sent)

    call_first(monkeypatch, connect)
    assert connect_all(addresses) == [0, 1, 2]
    assert lines == [f"Ignored a connection from 127.0.0.1, which {reason}"] * 3  # one per worker


def test_worker_listens_only_on_its_address_in_tf_config(addresses):
    with rendezvous._listen(addresses[0]) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port_of(addresses[0])))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("127.0.1.1", "is the loopback address 127.0.1.1 on this machine"),
        ("192.0.2.1", "is not an address of this machine"),
    ],
)
def test_worker_listens_on_all_addresses_if_its_own_cannot_be_used(
    addresses, monkeypatch, found, reason
):
    """Debian maps the own name to 127.0.1.1; a container may be behind a router."""
    monkeypatch.setattr(socket, "gethostbyname", lambda host: found)
    warnings = []
    monkeypatch.setattr(rendezvous.logging, "warning", lambda *text: warnings.append(text))
    with rendezvous._listen(f"host-a:{port_of(addresses[0])}") as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    ((text, *values),) = warnings
    assert (text % tuple(values)).startswith(f"TF_CONFIG: host-a {reason}")


def test_port_in_use_can_be_retried(addresses):
    with (
        rendezvous._listen(addresses[0]),
        pytest.raises(InUse, match="Address already in use; run the same command again once it"),
    ):
        rendezvous.wait_for_workers(addresses, 0, timeout=5)


def test_call_that_is_not_accepted_gets_no_answer(addresses):
    """A connection is made as soon as a port listens, so a worker needs an acknowledgement."""
    with rendezvous._listen(addresses[0]):
        assert rendezvous._call(b"hello", 0.2, addresses[0]) == b""


def errors_of(*given):
    """Lets workers connect, each with its own (workers, index); returns the error of each."""

    def worker(each):
        with pytest.raises(InputError) as error:
            rendezvous.wait_for_workers(*each, timeout=5)
        return str(error.value)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(worker, given))


def test_different_worker_lists_are_rejected_on_both_workers(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "_CALL_TIMEOUT", 0.5)
    first, second, third = addresses
    errors = errors_of(([first, second], 0), ([first, second, third], 1))
    reason = "has a different list of workers than this worker, which is worker"
    assert errors[0].startswith(f"TF_CONFIG: worker 1, {second}, {reason} 0 of ")
    assert errors[1].startswith(f"TF_CONFIG: worker 0, {first}, {reason} 1 of ")
    assert errors[1].endswith(f'["{first}", "{second}", "{third}"]')


@pytest.mark.slow
def test_different_worker_list_is_rejected_by_the_worker_that_is_called(addresses):
    """The second worker's list does not contain the first one, so it waits for the third."""
    first, second, third = addresses
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(rendezvous.wait_for_workers, [third, second], 1, timeout=1)
        with pytest.raises(InputError, match=f"worker 1, {second}, has a different list of"):
            rendezvous.wait_for_workers([first, second], 0, timeout=1)
        with pytest.raises(EndedEarly, match=f"not connected: {third}"):
            waiting.result()


@pytest.mark.slow
def test_second_worker_with_the_same_index_is_rejected(addresses):
    """The worker calls itself, as happens with a copied TF_CONFIG."""
    own = [addresses[0], addresses[0].replace("127.0.0.1", "localhost")]
    (errors,) = errors_of((own, 0))
    assert "has the same index as this worker, which is worker 0 of " in errors


def test_workers_that_do_not_answer_are_called_in_parallel(addresses, monkeypatch):
    def no_answer(hello, seconds, address):
        time.sleep(seconds)
        return b""

    monkeypatch.setattr(rendezvous, "_call", no_answer)
    workers = [addresses[0], *(f"host-{number}:2222" for number in range(30))]
    start = time.monotonic()
    with pytest.raises(
        EndedEarly, match=r"worker 0 of 31 waited 0 s .* not connected: host-0:2222, "
    ):
        rendezvous.wait_for_workers(workers, 0, timeout=0.3)
    assert time.monotonic() - start < 5  # Sequential calls would take 30 times 0.3 s.


@pytest.mark.slow
def test_all_workers_end_if_two_cannot_reach_each_other(addresses, monkeypatch):
    """Worker 0 reaches both. TensorFlow's wait, which it would start, never ends."""
    call = rendezvous._call

    def separated(hello, seconds, address):
        caller = int.from_bytes(hello[rendezvous._INDEX], "big")
        return (
            b"" if {caller, addresses.index(address)} == {1, 2} else call(hello, seconds, address)
        )

    monkeypatch.setattr(rendezvous, "_call", separated)

    def worker(index):
        with pytest.raises(EndedEarly) as error:
            # Worker 0 ends first, while the others still answer.
            rendezvous.wait_for_workers(addresses, index, timeout=2 + index)
        return str(error.value)

    with ThreadPoolExecutor() as threads:
        errors = [*threads.map(worker, range(3))]
    _, second, third = addresses
    state = "waiting for each other or a lost worker"
    assert errors[0].endswith(f" (--worker_timeout); {state}: {second}, {third}")
    assert third in errors[1]
    assert second in errors[2]


class AbortedListener:
    """A listener whose connections are aborted before accept; the third one ends the wait."""

    calls = 0

    def accept(self):
        self.calls += 1
        if self.calls == 3:
            self.third_call.set()
        raise ConnectionAbortedError


def test_aborted_connection_is_not_an_error():
    listener = AbortedListener()
    reception = rendezvous._Reception(listener, b"hello")
    listener.third_call = reception._closed
    reception._accept_calls()
    assert listener.calls == 3
