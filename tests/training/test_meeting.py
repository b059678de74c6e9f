"""Workers that wait for each other: how long at most, and what does not end the wait."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bert.errors import EndedEarly
from keras_bert.training import meeting


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def test_workers_that_come_one_after_the_other_meet():
    """Those that have met stay on their port, where TensorFlow speaks first."""
    addresses = free_addresses(3)

    met = []

    def worker(index):
        time.sleep(0.3 * index)
        meeting.meet(addresses, index, timeout=20)
        met.append(index)
        with socket.create_server(("", int(addresses[index].rpartition(":")[2]))) as server:
            server.settimeout(0.2)
            while len(met) < 3:
                with contextlib.suppress(TimeoutError), server.accept()[0] as connection:
                    connection.sendall(b"settings")

    with ThreadPoolExecutor() as threads:
        list(threads.map(worker, range(3)))
    assert sorted(met) == [0, 1, 2]


def test_a_call_whose_caller_is_slow_to_speak_is_not_taken_for_heard():
    """A worker that goes on must know that the others have noted it."""
    (address,) = free_addresses(1)
    with meeting._own_port(address):  # No one takes the call.
        assert meeting._call(1, 0.2, address) is False


def test_many_workers_that_do_not_answer_are_waited_for_at_once(monkeypatch):
    def no_answer(index, seconds, address):
        time.sleep(seconds)
        return False

    monkeypatch.setattr(meeting, "_call", no_answer)
    (own,) = free_addresses(1)
    workers = [own, *(f"host-{number}:2222" for number in range(30))]
    start = time.monotonic()
    with pytest.raises(EndedEarly, match=r"worker 0 of 31 waited 0 s .* not there: host-0:2222, "):
        meeting.meet(workers, 0, timeout=0.3)
    assert time.monotonic() - start < 5  # One after the other: 30 times 0.3.


class GivenUp:
    """A listener whose calls are given up before they are taken; the third ends the wait."""

    def __init__(self, met):
        self.met, self.calls = met, 0

    def accept(self):
        self.calls += 1
        if self.calls == 3:
            self.met.set()
        raise ConnectionAbortedError


def test_a_call_that_was_given_up_is_no_error():
    listener = GivenUp(threading.Event())
    meeting._answer(listener, set(), listener.met)
    assert listener.calls == 3
