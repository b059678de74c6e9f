"""The training loop: number of steps between returns to Python, and valid batch sizes."""

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.common.errors import InputError
from keras_bert.training.loop import _steps_to_next_event
from keras_bert.training.run import TrainingSettings, check_batch_sizes


def settings(log_steps, save_checkpoints_steps, steps_per_loop, num_train_steps=100):
    return TrainingSettings(
        num_train_steps=num_train_steps,
        train_batch_size=8,
        log_steps=log_steps,
        save_checkpoints_steps=save_checkpoints_steps,
        steps_per_loop=steps_per_loop,
    )


@pytest.mark.parametrize(
    ("step", "count"),
    [(0, 10), (10, 5), (15, 10), (25, 5), (30, 10), (40, 5), (90, 10), (95, 5), (99, 1)],
)
def test_loop_ends_at_the_next_log_checkpoint_or_last_step(step, count):
    """Logs at 15, 30, ...; checkpoints at 40, 80; the last step is 100; at most 10 steps a loop."""
    assert _steps_to_next_event(step, settings(15, 40, 10)) == count


@given(*(st.integers(1, 40) for _ in range(4)))
def test_loop_ends_at_every_event(log_steps, save_steps, per_loop, last):
    chosen = settings(log_steps, save_steps, per_loop, last)
    step, ends = 0, set()
    while step < last:
        count = _steps_to_next_event(step, chosen)
        assert 1 <= count <= per_loop
        step += count
        ends.add(step)
    events = {e for e in range(1, last + 1) if e % log_steps == 0 or e % save_steps == 0}
    assert step == last
    assert events <= ends


@pytest.mark.parametrize(
    ("train_batch_size", "micro_batches", "eval_batch_size", "message"),
    [
        (10, 2, 8, r"--train_batch_size=10 is not divisible by 2 devices x 2 micro-batches"),
        (8, 1, 7, r"--eval_batch_size=7 is not divisible by 2 devices"),
    ],
)
def test_batch_sizes_that_are_not_divisible_are_rejected(
    mirrored, train_batch_size, micro_batches, eval_batch_size, message
):
    chosen = TrainingSettings(100, train_batch_size, gradient_accumulation_steps=micro_batches)
    with pytest.raises(InputError, match=message):
        check_batch_sizes(mirrored, chosen, eval_batch_size)


def test_divisible_batch_sizes_are_accepted(mirrored):
    check_batch_sizes(mirrored, TrainingSettings(100, 12, gradient_accumulation_steps=3), 2)
    check_batch_sizes(tf.distribute.get_strategy(), TrainingSettings(100, 7), 5)
