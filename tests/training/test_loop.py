"""The training loop: returns to Python, batch sizes, best weights, signals and checks."""

import math
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.training import loop
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.loop import BestWeights, Stopping, check_weights
from keras_bert.training.objective import TrainingSettings, check_batch_sizes

# --- steps ---


@pytest.mark.parametrize("overlaps", [False, True])
def test_next_call_starts_before_metrics_are_read_unless_a_checkpoint_is_due(overlaps):
    started, events = [], []

    class Steps:
        def numpy(self):
            return "metrics"

    def start(iterator, count):
        started.append(int(count))
        return Steps()

    def starts_ahead(step):
        return overlaps and step not in (6, 8)  # A checkpoint, and the last step.

    steps = loop.take_steps(start, range(99), 0, lambda step: 2, starts_ahead)
    for _ in range(4):
        metrics, is_running = next(steps)
        events.append((metrics, sum(started), is_running))
    ahead = [4, 6, 6, 8] if overlaps else [2, 4, 6, 8]
    running = [overlaps, overlaps, False, False]
    assert events == [("metrics", *pair) for pair in zip(ahead, running, strict=True)]


def test_evaluation_batches_must_be_divisible_by_the_devices(mirrored):
    with pytest.raises(InputError, match="--eval_batch_size=7 is not divisible by 2 devices"):
        check_batch_sizes(mirrored, TrainingSettings(100, 8), 7)


# --- best weights ---


def evaluations(*values):
    """Makes evaluations of steps 10, 20, ... from F1 scores, or from pairs of F1 and loss."""
    pairs = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        {"step": 10 * place, **dict(zip(("f1", "loss"), pair, strict=False))}
        for place, pair in enumerate(pairs, 1)
    ]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((), None),
        ((0.1, 0.3, 0.3), 30),  # the later of equal values
        # Of equal values, that of the lowest loss.
        (((0.5, 0.3), (0.5, 0.2), (0.4, 0.1), (0.5, 0.4)), 20),
        (((0.5, math.nan), (0.5, 9.0), (0.5, math.nan)), 20),
        ((math.nan, 0.3, math.nan), 20),
        ((math.nan, math.nan), 20),
    ],
)
def test_step_of_the_best_evaluation(values, best):
    kept = BestWeights("f1", lambda step: None, lambda: None)
    assert kept.step_of_best(evaluations(*values)) == best


@pytest.mark.parametrize(
    ("values", "patience", "stops"),
    [
        ((0.5, 0.4, 0.4), 0, False),  # 0: never stop
        ((0.5, 0.4), 2, False),
        ((0.5, 0.4, 0.5), 2, True),  # an equal value is no improvement
        ((0.5, 0.4, 0.6), 2, False),
        (((1.0, 0.94), (1.0, 0.68), (1.0, 0.58)), 2, False),  # a lower loss is an improvement
        ((math.nan, math.nan, math.nan), 2, True),
        ((), 1, False),
    ],
)
def test_training_stops_when_patience_is_exhausted(values, patience, stops):
    kept = BestWeights("f1", lambda step: None, lambda: None, patience=patience)
    assert kept.has_stopped(evaluations(*values)) == stops


@pytest.mark.parametrize(
    ("saved", "values", "is_saved"),
    [
        (None, (0.5,), True),
        (10, (0.5, 0.5), True),  # a tie
        (10, ((0.5, 0.1), (0.5, 0.2)), False),
        (20, ((0.5, 0.1), (0.5, 0.3), (0.5, 0.2)), True),  # step 10 was lost
        (20, (0.5, 0.4), True),  # by an attempt that was killed
        (30, (0.5, 0.4), True),  # of a step that must be repeated
        (20, (0.9, 0.5, 0.4), False),  # step 10 was lost, so step 20 counts
        (10, (math.nan, 0.1), True),
        (10, (0.1, math.nan), False),
    ],
)
def test_weights_are_compared_with_the_saved_ones(saved, values, is_saved):
    steps = []
    kept = BestWeights("f1", steps.append, lambda: saved)
    kept.save_if_better(evaluations(*values))
    assert steps == [10 * len(values)] * is_saved


# --- stopping ---


ONE = tf.distribute.get_strategy()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_single_worker_at_the_next_call_and_its_handler_is_restored(number):
    before, stopping = signal.getsignal(number), Stopping(ONE, max_steps=10)
    with stopping.on_signals():
        stopping.agree(1, 0.1)
        assert not stopping.requested
        os.kill(os.getpid(), number)
        stopping.agree(1, 0.1)
    assert stopping.requested
    assert stopping.interrupted == (number == signal.SIGINT)
    assert signal.getsignal(number) is before


def test_ctrl_c_ends_one_of_several_workers_at_once(monkeypatch):
    monkeypatch.setattr(loop, "num_workers", lambda strategy: 2)
    with pytest.raises(KeyboardInterrupt), Stopping(ONE, max_steps=10).on_signals():
        os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_ends_an_evaluation_after_the_current_batch():
    done = []

    def evaluation(after_batch):
        for batch in range(5):
            if batch == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            done.append(batch)
            after_batch()
        return {"loss": 1.0}

    stopping = Stopping(ONE, max_steps=10)
    with stopping.on_signals():
        assert stopping.evaluate(evaluation) is None
    assert done == [0, 1, 2]


# --- checks ---


def test_weight_that_is_not_finite_is_named(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="dense")], name="m")
    writer = CheckpointWriter(tmp_path)
    check_weights(ONE, model, 3, writer)
    model.trainable_variables[1].assign([0.0, np.inf, 0.0])
    with pytest.raises(InputError, match="step 3: m/dense/bias has a weight that is not finite"):
        check_weights(ONE, model, 3, writer)
