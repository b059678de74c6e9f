"""Workers that wait for each other: how long at most, and what does not end the wait."""

import time

import pytest

from keras_bert.errors import EndedEarly
from keras_bert.training import meeting


def test_many_workers_that_do_not_answer_are_waited_for_at_once(monkeypatch):
    def no_answer(index, seconds, address):
        time.sleep(seconds)
        return False

    monkeypatch.setattr(meeting, "_call", no_answer)
    monkeypatch.setattr(meeting, "_own_port", lambda address: NoCalls())
    workers = [f"host-{number}:2222" for number in range(30)]
    start = time.monotonic()
    with pytest.raises(EndedEarly, match=r"worker 3 of 30 waited 0 s .* not there: host-0:2222, "):
        meeting.meet(workers, 3, timeout=0.3)
    assert time.monotonic() - start < 5  # One after the other: 29 times 0.3.


class NoCalls:
    """A listener whose calls are given up before they are taken."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def accept(self):
        raise ConnectionAbortedError


def test_a_call_that_was_given_up_is_no_error():
    assert meeting._callers(NoCalls()) == set()
