"""Tests the number of examples of an evaluation: all, a given number, or a sample."""

import pytest

from keras_bert.tasks.pretraining.settings import PretrainingSettings


@pytest.mark.parametrize(
    ("eval_file", "max_eval_steps", "eval_batch_size", "available", "examples"),
    [
        ("held-out", 0, 32, 14_000_000, 14_000_000),
        ("held-out", 5, 32, 14_000_000, 160),
        ("", 0, 32, 14_000_000, 100_000),
        ("", 0, 48, 14_000_000, 100_032),  # whole batches
        ("", 0, 32, 70, 70),
        ("", 5, 32, 14_000_000, 160),
        ("", 5000, 32, 14_000_000, 160_000),
    ],
)
def test_unlimited_evaluation_is_only_for_held_out_records(
    eval_file, max_eval_steps, eval_batch_size, available, examples
):
    settings = PretrainingSettings(
        "", eval_file, max_eval_steps=max_eval_steps, eval_batch_size=eval_batch_size
    )
    assert settings.eval_examples(available) == examples
