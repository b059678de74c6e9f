"""Workers that wait for each other: the maximum wait, and calls that must not end it."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bert.common.errors import EndedEarly, InputError
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
    own_port = rendezvous._own_port

    def called_by_another_process(address):
        listener = own_port(address)
        connections.enter_context(socket.create_connection(("127.0.0.1", port_of(address))))
        return listener

    monkeypatch.setattr(rendezvous, "_own_port", called_by_another_process)
    with contextlib.ExitStack() as connections:
        assert connect_all(addresses) == [0, 1, 2]


def test_call_that_is_not_accepted_gets_no_answer(addresses):
    """A connection is made as soon as a port listens, so a worker needs an acknowledgement."""
    with rendezvous._own_port(addresses[0]):
        assert rendezvous._call(b"hello", 0.2, addresses[0]) == b""


def errors_of(*given):
    """Lets workers connect, each with its own (workers, index); returns the error of each."""

    def worker(each):
        with pytest.raises(InputError) as error:
            rendezvous.wait_for_workers(*each, timeout=5)
        return str(error.value)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(worker, given))


def test_different_worker_lists_are_rejected_on_both_workers(addresses):
    """The second worker's list does not contain the first one."""
    first, second, third = addresses
    errors = errors_of(([first, second], 0), ([third, second], 1))
    reason = "has a different list of workers than this worker, which is worker"
    assert errors[0].startswith(f"TF_CONFIG: worker 1, {second}, {reason} 0 of ")
    assert errors[1].startswith(f"TF_CONFIG: worker 0, which called from 127.0.0.1, {reason} 1 of ")
    assert errors[1].endswith(f'["{third}", "{second}"]')


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


class AbortedListener:
    """A listener whose connections are aborted before accept; the third one ends the wait."""

    def __init__(self, all_connected):
        self.all_connected, self.calls = all_connected, 0

    def accept(self):
        self.calls += 1
        if self.calls == 3:
            self.all_connected.set()
        raise ConnectionAbortedError


def test_aborted_connection_is_not_an_error():
    listener = AbortedListener(threading.Event())
    rendezvous._accept_calls(listener, b"hello", set(), [], listener.all_connected)
    assert listener.calls == 3
