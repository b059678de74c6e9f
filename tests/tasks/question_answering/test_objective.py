"""Tests the span loss against its definition, and that padding has no effect on it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.question_answering.objective import span_objective
from keras_bert.tasks.soft_losses import NO_OUTPUT


def batch_of(**changes):
    batch = {
        "input_ids": np.zeros([2, 4], np.int32),
        "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
        "segment_ids": np.zeros([2, 4], np.int32),
        "dropout_seed": np.zeros([2], np.int32),
        "start_positions": np.array([1, 0], np.int32),
        "end_positions": np.array([2, 0], np.int32),
        "example_weights": np.array([1, 1], np.float32),
    } | changes
    return {name: tf.constant(value) for name, value in batch.items()}


START = np.array([[0.0, 2.0, 1.0, 0.0], [1.0, 0.0, 0.0, 9.0]], np.float32)
END = np.array([[0.0, 0.0, 3.0, 1.0], [0.0, 1.0, 0.0, 9.0]], np.float32)


def sums(batch, start=START, end=END):
    def model(inputs, training):
        return {"start_logits": tf.constant(start), "end_logits": tf.constant(end)}

    return {name: float(value) for name, value in span_objective().sums(model, batch, True).items()}


def nll(logits, place):
    return np.log(np.exp(logits).sum()) - logits[place]


def test_loss_is_the_mean_over_both_ends_without_padding():
    expected = nll(START[0], 1) + nll(END[0], 2) + nll(START[1, :3], 0) + nll(END[1, :3], 0)
    assert sums(batch_of())["loss"] == pytest.approx(expected / 2, rel=1e-6)


def test_soft_loss_is_the_mean_divergence_over_both_ends_without_padding():
    def model_of(length):
        def model(inputs, training):
            more = np.full([2, length - 4], 7.0, np.float32)
            return {"start_logits": np.hstack([START, more]), "end_logits": np.hstack([END, more])}

        return model

    def batch_with_teacher(length):
        mask = np.zeros([2, length], np.int32)
        mask[0, :4] = mask[1, :3] = 1
        teacher = np.where(mask == 1, 0.5, NO_OUTPUT).astype(np.float32)
        outputs = {"teacher_start_logits": teacher, "teacher_end_logits": teacher}
        return batch_of(input_mask=mask, input_ids=mask, segment_ids=mask * 0, **outputs)

    objective = span_objective(Distillation(1.0, 1.0))
    short, long = (
        float(objective.sums(model_of(n), batch_with_teacher(n), True)["soft_loss"]) for n in (4, 9)
    )
    expected = sum(
        -np.log(count) - np.mean([-nll(logits[:count], i) for i in range(count)])
        for logits, count in ((START[0], 4), (END[0], 4), (START[1], 3), (END[1], 3))
    )
    assert (short, long) == pytest.approx((expected / 2, expected / 2), rel=1e-5)


def test_window_is_correct_if_both_ends_are_correct():
    assert sums(batch_of())["span_accuracy"] == 1  # the end of the second is wrong


def test_example_that_pads_the_batch_has_zero_weight():
    batch = batch_of(example_weights=np.array([1, 0], np.float32))
    assert sums(batch)["loss"] == pytest.approx((nll(START[0], 1) + nll(END[0], 2)) / 2, rel=1e-6)
    assert float(span_objective().weights(batch)["loss"]) == 1.0
