"""Losses against a teacher's outputs: the formulas, and places where the teacher has no output."""

import numpy as np
import pytest

from keras_bert.tasks.classification.metrics import soft_multi_label_losses, soft_score_losses
from keras_bert.tasks.question_answering.metrics import soft_position_losses
from keras_bert.training.objective import NO_OUTPUT, soft_label_losses

RANDOM = np.random.default_rng(0)
TEACHER, LOGITS = RANDOM.normal(0, 3, [2, 4, 5]).astype(np.float32)
T = 2.5


def softmax(logits):
    exp = np.exp(np.asarray(logits, np.float64))
    return exp / exp.sum(-1, keepdims=True)


def divergence(expected, actual):
    return (expected * np.log(expected / actual)).sum(-1)


def test_label_loss_is_the_divergence_at_the_temperature_times_its_square():
    expected = T**2 * divergence(softmax(TEACHER / T), softmax(LOGITS / T))
    assert np.allclose(soft_label_losses(TEACHER, LOGITS, T), expected, rtol=1e-5)
    assert np.allclose(soft_label_losses(TEACHER, TEACHER + 7, T), 0, atol=1e-5)


def test_multi_label_loss_is_the_mean_of_the_divergences_of_the_classes():
    def pairs(logits):
        share = 1 / (1 + np.exp(-logits.astype(np.float64) / T))
        return np.stack([share, 1 - share], -1)

    expected = T**2 * divergence(pairs(TEACHER), pairs(LOGITS)).mean(-1)
    assert np.allclose(soft_multi_label_losses(TEACHER, LOGITS, T), expected, rtol=1e-5)


def test_score_loss_is_the_squared_difference():
    expected = (TEACHER[:, 0] - LOGITS[:, 0]) ** 2
    assert np.allclose(soft_score_losses(TEACHER[:, :1], LOGITS[:, :1], T), expected)


@pytest.mark.parametrize("temperature", [0.5, 2.5, 50.0])
def test_positions_without_output_do_not_count(temperature):
    teacher, logits = TEACHER.copy(), LOGITS.copy()
    teacher[:, 3:] = NO_OUTPUT
    logits[:, 3:] = 1000.0
    found = soft_position_losses(teacher, logits, temperature)
    expected = soft_label_losses(TEACHER[:, :3], LOGITS[:, :3], temperature)
    assert np.allclose(found, expected, rtol=1e-5)
