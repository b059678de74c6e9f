"""Tests the number of examples of an evaluation, and the default length of the warm-up."""

import pytest

from keras_bert.pretraining.settings import PretrainingSettings


@pytest.mark.parametrize(
    ("settings", "trained", "examples"),
    [
        ({"eval_file": "held-out"}, 160, 14_000_000),
        ({"eval_file": "held-out", "max_eval_steps": 5}, 160, 160),
        ({"max_eval_steps": 5000}, 160, 160_000),
        ({"do_train": False}, 160, 100_000),
        # Evaluation of training records takes at most half the time of training: 5% of it.
        ({}, 160, 32),  # at least one batch
        ({}, 32_000, 3200),
        ({}, 1_024_000, 100_000),
        ({"eval_batch_size": 48}, 1_024_000, 100_032),  # whole batches
    ],
)
def test_unlimited_evaluation_is_only_for_held_out_records(settings, trained, examples):
    settings = PretrainingSettings("", **settings)
    assert settings.eval_examples(14_000_000, trained) == examples
    assert settings.eval_examples(70, trained) == min(70, examples)


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
