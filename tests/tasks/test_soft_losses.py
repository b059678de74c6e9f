"""Losses against a teacher's outputs: the formulas, and places where the teacher has no output."""

import numpy as np

from keras_bert.tasks.classification.metrics import soft_multi_label_losses, soft_score_losses

RANDOM = np.random.default_rng(0)
TEACHER, LOGITS = RANDOM.normal(0, 3, [2, 4, 5]).astype(np.float32)
T = 2.5


def divergence(expected, actual):
    return (expected * np.log(expected / actual)).sum(-1)


def test_multi_label_loss_is_the_mean_of_the_divergences_of_the_classes():
    def pairs(logits):
        share = 1 / (1 + np.exp(-logits.astype(np.float64) / T))
        return np.stack([share, 1 - share], -1)

    expected = T**2 * divergence(pairs(TEACHER), pairs(LOGITS)).mean(-1)
    assert np.allclose(soft_multi_label_losses(TEACHER, LOGITS, T), expected, rtol=1e-5)


def test_score_loss_is_the_squared_difference():
    expected = (TEACHER[:, 0] - LOGITS[:, 0]) ** 2
    assert np.allclose(soft_score_losses(TEACHER[:, :1], LOGITS[:, :1], T), expected)
