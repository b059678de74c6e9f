"""Tests the official scorers: the published scores, and each of their rules."""

import json

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.questions import Answer, Question, load_questions
from keras_bert.tasks.question_answering.scoring import (
    best_thresholds,
    normalize_answer,
    score_v1,
    score_v2,
)


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


def test_most_similar_gold_answer_counts():
    scores = score_v1([question("a", "10th century", "in the 10th century")], {"a": "in 10th"})
    assert scores == {"exact": 0.0, "f1": pytest.approx(80.0)}  # 2 of 2 words, 2 of 3


def test_missing_prediction_scores_0_in_v1_and_is_rejected_in_v2():
    questions = [question("a", "x"), question("b", "y")]
    assert score_v1(questions, {"a": "x", "other": "y"}) == {"exact": 50.0, "f1": 50.0}
    with pytest.raises(InputError, match="1 of 2 questions have no prediction, such as 'b'"):
        score_v2(questions, {"a": "x"})


def test_v2_scores_questions_with_and_without_answer_separately():
    questions = [question("a", "x y"), question("b", "z"), question("c"), question("d")]
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


def test_gold_answer_of_only_articles_is_no_answer_in_v2():
    assert score_v2([question("a", "the")], {"a": ""})["f1"] == 100.0


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
    }
