"""Tests the number of examples of an evaluation, and the default length of the warm-up."""

import pytest

from keras_bert.pretraining.settings import PretrainingSettings


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
        "",
        eval_file,
        max_eval_steps=max_eval_steps,
        eval_batch_size=eval_batch_size,
    )
    assert settings.eval_examples(available, 3_200_000) == examples


@pytest.mark.parametrize(
    ("trained", "examples"),
    [
        (160, 32),  # at least one batch
        (1000 * 32, 3200),  # evaluation takes at most half the time of training: 5% of it
        (32_000 * 32, 100_000),
    ],
)
def test_evaluation_of_training_records_takes_a_twentieth_of_the_training(trained, examples):
    assert PretrainingSettings("").eval_examples(14_000_000, trained) == examples
    for settings in (
        PretrainingSettings("", do_train=False),
        PretrainingSettings("", max_eval_steps=3125),
        PretrainingSettings("", "held-out", max_eval_steps=3125),
    ):
        assert settings.eval_examples(14_000_000, trained) == 100_000


@pytest.mark.parametrize(
    ("given", "steps", "schedule_steps", "warmup"),
    [
        (None, 1_000_000, 0, 10_000),  # Devlin et al. 2019
        (None, 100_000, 0, 10_000),
        (None, 6_000, 0, 600),
        (None, 4, 0, 0),
        (None, 5_000, 50_000, 5_000),  # one of several phases with one schedule
        (10_000, 100_000, 0, 10_000),
        (0, 100_000, 0, 0),
    ],
)
def test_default_warm_up_is_a_tenth_of_the_steps(given, steps, schedule_steps, warmup):
    settings = PretrainingSettings("", num_warmup_steps=given, schedule_steps=schedule_steps)
    assert settings.warmup_steps(steps) == warmup
