"""Official SQuAD scores, and the training objective."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.question_answering.data import Answer, Question, load_questions
from keras_bert.tasks.question_answering.metrics import (
    SpanObjective,
    best_thresholds,
    normalize_answer,
    score_v1,
    score_v2,
)
from keras_bert.tasks.settings import Distillation
from keras_bert.training.objective import NO_OUTPUT


def question(name, *answers):
    return Question(name, "?", "-", tuple(Answer(text, 0) for text in answers))


def test_published_predictions_get_the_published_scores(shared_data):
    folder = shared_data / "squad"
    predictions = json.loads((folder / "pred_v1.1_bert_ensemble.json").read_text())
    assert score_v1(load_questions(folder / "xquad.en.json"), predictions) == {
        "exact": 74.87394957983193,
        "f1": 86.32474793700983,
    }


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Norse  leader,", "norse leader"),
        ("an A-team of theirs", "ateam of theirs"),
        ("a.the", "athe"),  # punctuation is removed first, so no article remains
        ("«Straße»", "«straße»"),  # only ASCII punctuation is removed
    ],
)
def test_normalization(text, normalized):
    assert normalize_answer(text) == normalized


def test_most_similar_gold_answer_counts_and_a_missing_prediction_scores_0():
    questions = [question("a", "10th century", "in the 10th century"), question("b", "y")]
    scores = score_v1(questions, {"a": "in 10th", "other": "y"})
    assert scores == {"exact": 0.0, "f1": pytest.approx(40.0)}  # 2 of 2 words, 2 of 3


def test_v2_scores_questions_with_and_without_answer_separately():
    # A gold answer of only articles is no answer.
    questions = [question("a", "x y", "the"), question("b", "z"), question("c"), question("d")]
    scores = score_v2(questions, {"a": "x", "b": "", "c": "", "d": "w"})
    assert scores == pytest.approx(
        {
            "exact": 25.0,
            "f1": 100 * (2 / 3 + 1) / 4,
            "total": 4,
            "HasAns_exact": 0.0,
            "HasAns_f1": 100 / 3,
            "HasAns_total": 2,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "NoAns_total": 2,
        }
    )


def test_threshold_search_equals_exhaustive_search():
    names = "abcdef"
    questions = [question(name, *("x y",) * (name in "abcd")) for name in names]
    answers = dict(zip(names, ["x y", "x", "z", "x y", "w", "w"], strict=True))
    odds = dict(zip(names, [-3.0, -1.0, 2.0, 0.5, 0.0, 4.0], strict=True))
    found = best_thresholds(questions, answers, odds)

    def at(threshold):
        return score_v2(questions, {n: answers[n] * (odds[n] <= threshold) for n in names})

    for name in ("exact", "f1"):
        tried = {threshold: at(threshold)[name] for threshold in odds.values()}
        assert found[f"best_{name}"] == pytest.approx(max(tried.values()))
        assert tried[found[f"best_{name}_thresh"]] == pytest.approx(found[f"best_{name}"])


def test_best_threshold_gives_no_answer_without_a_correct_answer():
    questions = [question("a", "x"), question("b")]
    assert best_thresholds(questions, {"a": "y", "b": "y"}, {"a": 1.0, "b": -1.0}) == {
        "best_exact": 50.0,
        "best_exact_thresh": 0.0,
        "best_f1": 50.0,
        "best_f1_thresh": 0.0,
        "null_score_diff_threshold": np.nextafter(-1.0, -2.0),
    }


# --- training objective ---


def batch_of(**changes):
    batch = {
        **dict.fromkeys(("input_ids", "segment_ids"), np.zeros([2, 4], np.int32)),
        "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
        "dropout_seed": np.zeros([2], np.int32),
        "start_positions": np.array([1, 0], np.int32),
        "end_positions": np.array([2, 0], np.int32),
        "example_weights": np.array([1, 1], np.float32),
    } | changes
    return {name: tf.constant(value) for name, value in batch.items()}


START = np.array([[0.0, 2.0, 1.0, 0.0], [1.0, 0.0, 0.0, 9.0]], np.float32)
END = np.array([[0.0, 0.0, 3.0, 1.0], [0.0, 1.0, 0.0, 9.0]], np.float32)


def sums(batch):
    outputs = {"start_logits": tf.constant(START), "end_logits": tf.constant(END)}
    values = SpanObjective().sums(lambda inputs, training: outputs, batch, True)
    return {name: float(value) for name, value in values.items()}


def nll(logits, place):
    return np.log(np.exp(logits).sum()) - logits[place]


def test_loss_is_the_mean_over_both_ends_without_padding():
    first, second = nll(START[0], 1) + nll(END[0], 2), nll(START[1, :3], 0) + nll(END[1, :3], 0)
    expected = {"loss": pytest.approx((first + second) / 2, rel=1e-6)}
    expected["span_accuracy"] = 1  # The end of the second is wrong.
    assert sums(batch_of()) == expected
    # An example that fills the batch has no weight.
    batch = batch_of(example_weights=np.array([1, 0], np.float32))
    assert sums(batch)["loss"] == pytest.approx(first / 2, rel=1e-6)
    assert float(SpanObjective().weights(batch)["loss"]) == 1.0


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

    objective = SpanObjective(Distillation(1.0, 1.0))
    short, long = (
        float(objective.sums(model_of(n), batch_with_teacher(n), True)["soft_loss"]) for n in (4, 9)
    )
    expected = sum(
        -np.log(count) - np.mean([-nll(logits[:count], i) for i in range(count)])
        for logits, count in ((START[0], 4), (END[0], 4), (START[1], 3), (END[1], 3))
    )
    assert (short, long) == pytest.approx((expected / 2, expected / 2), rel=1e-5)
