"""The examples of an evaluation: all, those that are asked for, or a sample of those trained on."""

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
def test_an_evaluation_without_an_end_is_of_held_out_records_alone(
    eval_file, max_eval_steps, eval_batch_size, available, examples
):
    settings = PretrainingSettings(
        "", eval_file, max_eval_steps=max_eval_steps, eval_batch_size=eval_batch_size
    )
    assert settings.eval_examples(available) == examples
