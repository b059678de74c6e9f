"""Computes the official SQuAD scores, exact match and F1 in percent.

Both texts are normalized (lower case; no ASCII punctuation, no "a", "an", "the"; single spaces).
Exact match compares them, F1 their words at white space, each against the likest of the gold
answers (Rajpurkar et al. 2016; 2018 for questions without answer). Chinese has no white space
between words, so its F1 is close to its exact match, in the official scorer as here.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.predictions import Predictions
from keras_bert.tasks.question_answering.questions import Question
from keras_bert.tasks.question_answering.settings import AnswerSettings

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Brings an answer into the form that the official scorers compare.

    Args:
        text: the answer.

    Returns:
        It in lower case, without ASCII punctuation and articles, words one space apart.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def score(found: Predictions, settings: AnswerSettings) -> dict[str, float]:
    """Scores predictions as results.json has it.

    Args:
        found: of answered questions.
        settings: the version of SQuAD, and the threshold.

    Returns:
        The figures of `score_v1`, or those of `score_v2` and `best_thresholds` and the
        "null_score_diff_threshold" for other questions.
    """
    predictions = found.answers(settings.threshold)
    if not settings.version_2_with_negative:
        return score_v1(found.questions, predictions)
    return (
        score_v2(found.questions, predictions)
        | best_thresholds(found.questions, found.best_texts, found.null_odds)
        | {"null_score_diff_threshold": threshold_for_others(found, settings)}
    )


def threshold_for_others(found: Predictions, settings: AnswerSettings) -> float:
    """Returns the threshold for other questions.

    Args:
        found: of answered questions.
        settings: the threshold, if it is given.

    Returns:
        The given threshold, or the one with the best F1 on these questions.
    """
    if settings.null_score_diff_threshold is not None:
        return settings.null_score_diff_threshold
    return best_f1_threshold(found.questions, found.best_texts, found.null_odds)


def score_v1(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Scores as the official scorer of SQuAD v1.1.

    Args:
        questions: answered questions.
        predictions: {question id: text}; a missing one scores 0, one for no question is ignored.

    Returns:
        {"exact", "f1"} in percent.
    """
    exact, f1 = _question_scores(questions, predictions, _f1_v1)
    return {"exact": 100.0 * sum(exact) / len(exact), "f1": 100.0 * sum(f1) / len(f1)}


def score_v2(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Scores as the official scorer of SQuAD v2.0.

    Args:
        questions: answered and impossible questions.
        predictions: {question id: text}, "" where there is said to be no answer; one for every
            question.

    Returns:
        {"exact", "f1", "total"} over all, and with "HasAns_" and "NoAns_" before each over the
        questions that have an answer, and that have none.

    Raises:
        InputError: predictions are missing.
    """
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(questions)} questions have no prediction, such as "
            f"{missing[0]!r}; expected one for each"
        )
    exact, f1 = _question_scores(questions, predictions, _f1_v2)
    has_answer = [bool(question.answers) for question in questions]
    results: dict[str, float] = {}
    for prefix, wanted in (("", None), ("HasAns_", True), ("NoAns_", False)):
        chosen = [i for i, has in enumerate(has_answer) if wanted is None or has is wanted]
        if not chosen:
            continue
        for name, scores in (("exact", exact), ("f1", f1)):
            results[prefix + name] = 100.0 * sum(scores[i] for i in chosen) / len(chosen)
        results[f"{prefix}total"] = len(chosen)
    return results


def best_thresholds(
    questions: Sequence[Question], answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Searches the thresholds that would have given the best v2.0 scores.

    An answer stands where its null odds are not above the threshold, else the question counts as
    said to be without answer.

    Args:
        questions: answered and impossible questions.
        answers: {question id: the best text that is not empty}.
        null_odds: {question id: how much likelier no answer is than that text}.

    Returns:
        {"best_exact", "best_f1"} in percent, and each with "_thresh".
    """
    results = {}
    for name, (total, odds, count) in _best_counts(questions, answers, null_odds).items():
        results[f"best_{name}"] = 100.0 * total / len(questions)
        results[f"best_{name}_thresh"] = float(odds[count - 1]) if count else 0.0
    return results


def best_f1_threshold(
    questions: Sequence[Question], answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> float:
    """Searches the threshold that gives the best F1 when predictions are made with it.

    Args:
        questions: answered and impossible questions.
        answers: {question id: the best text that is not empty}.
        null_odds: {question id: how much likelier no answer is than that text}.

    Returns:
        That of `best_thresholds`, but where it is best to answer nothing: the official scorer then
        says 0, which would let questions be answered; here it is below all null odds.
    """
    _, odds, count = _best_counts(questions, answers, null_odds)["f1"]
    return float(odds[count - 1] if count else np.nextafter(odds[0], -np.inf))


def _best_counts(
    questions: Sequence[Question], answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, tuple[float, np.ndarray, int]]:
    """Finds how many questions, those of the lowest null odds, are best answered.

    Returns:
        {"exact", "f1"}: the sum of the scores, the null odds in order, and that number.
    """
    odds = np.array([null_odds[question.id] for question in questions], np.float64)
    has_answer = np.array([bool(question.answers) for question in questions])
    says_none = np.array([not answers[question.id] for question in questions])
    order = np.argsort(odds, kind="stable")
    results = {}
    scores = _question_scores(questions, answers, _f1_v2)
    for name, values in zip(("exact", "f1"), scores, strict=True):
        # What each question gains if it is answered: its score, or minus the point for silence.
        gains = np.where(has_answer, values, np.where(says_none, 0.0, -1.0))[order]
        totals = np.cumsum(np.concatenate([[(~has_answer).sum()], gains]))
        best = int(np.argmax(totals))  # The first of the best; 0 is to answer nothing.
        results[name] = float(totals[best]), odds[order], best
    return results


def _question_scores(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    f1_of: Callable[[list[str], list[str]], float],
) -> tuple[list[float], list[float]]:
    """Returns the exact match and the F1 of each question against its likest gold answer."""
    exact, f1 = [], []
    for question in questions:
        gold = [normalize_answer(answer.text) for answer in question.answers]
        if f1_of is _f1_v2:
            gold = [text for text in gold if text] or [""]
        if question.id not in predictions:
            exact.append(0.0)
            f1.append(0.0)
            continue
        predicted = normalize_answer(predictions[question.id])
        exact.append(float(predicted in gold))
        f1.append(max(f1_of(predicted.split(), text.split()) for text in gold))
    return exact, f1


def _f1_v1(predicted: list[str], gold: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _f1_v2(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return _f1_v1(predicted, gold)
