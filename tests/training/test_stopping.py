"""SIGTERM: how often a run checks for it, and how it ends an evaluation."""

import os
import signal
import threading

import pytest
import tensorflow as tf

from keras_bert.training import stopping
from keras_bert.training.stopping import SECONDS_PER_CALL, Stopping

ONE = tf.distribute.get_strategy()


@pytest.fixture
def two_workers(monkeypatch):
    """Simulates two workers with equal values; returns the list of values summed so far."""
    summed = []

    def sum_of_two(values):
        summed.append(values.tolist())
        return 2 * values

    monkeypatch.setattr(stopping, "num_workers", lambda strategy: 2)
    monkeypatch.setattr(stopping, "all_sum", lambda strategy: sum_of_two)
    return summed


def send_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def test_loop_length_follows_step_time_and_ignores_the_first_call():
    stopping_check = Stopping(ONE, max_steps=10)
    assert stopping_check.steps_per_call == 1
    lengths = []
    for seconds in (100.0, SECONDS_PER_CALL / 4, SECONDS_PER_CALL / 4, 1e-6, 3 * SECONDS_PER_CALL):
        assert stopping_check.agree(1, seconds) is False
        lengths.append(stopping_check.steps_per_call)
    assert lengths == [1, 4, 4, 10, 1]


def test_workers_agree_on_the_mean_of_their_step_times(two_workers):
    stopping_check = Stopping(ONE, max_steps=10)
    for _ in range(2):
        stopping_check.agree(2, SECONDS_PER_CALL)
    assert two_workers == [[0, SECONDS_PER_CALL / 2]] * 2
    assert stopping_check.steps_per_call == 2


def test_sigterm_is_reported_at_the_next_call_and_its_handler_restored():
    before, stopping_check = signal.getsignal(signal.SIGTERM), Stopping(ONE, max_steps=10)
    with stopping_check.on_signals():
        assert stopping_check.agree(1, 0.1) is False
        send_sigterm()
        assert stopping_check.agree(1, 0.1) is True
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_stops_a_single_worker_like_sigterm():
    before, stopping_check = signal.getsignal(signal.SIGINT), Stopping(ONE, max_steps=10)
    with stopping_check.on_signals():
        assert not stopping_check.interrupted
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping_check.agree(1, 0.1) is True
    assert stopping_check.interrupted
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_one_of_several_workers_at_once(two_workers):
    stopping_check = Stopping(ONE, max_steps=10)
    with pytest.raises(KeyboardInterrupt), stopping_check.on_signals():
        os.kill(os.getpid(), signal.SIGINT)


def test_signal_handler_is_unchanged_outside_the_main_thread():
    def enter():
        with Stopping(ONE, max_steps=10).on_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    before, found = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]


def test_sigterm_ends_an_evaluation_after_the_current_batch():
    done = []

    def evaluation(after_batch):
        for batch in range(5):
            if batch == 2:
                send_sigterm()
            done.append(batch)
            after_batch()
        return {"loss": 1.0}

    stopping_check = Stopping(ONE, max_steps=10)
    with stopping_check.on_signals():
        assert stopping_check.evaluate(evaluation) is None
    assert done == [0, 1, 2]


def test_uninterrupted_evaluation_returns_its_metrics(two_workers):
    def evaluation(after_batch):
        for _ in range(1000):
            after_batch()
        return {"loss": 1.0}

    stopping_check = Stopping(ONE, max_steps=10)
    for _ in range(2):
        assert stopping_check.evaluate(evaluation) == {"loss": 1.0}
    # Two batches are timed. By their time, the next check comes after more batches than remain.
    assert len(two_workers) == 2
