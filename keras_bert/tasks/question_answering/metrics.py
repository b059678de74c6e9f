"""Defines the training objective of question answering, and computes the official SQuAD scores.

The loss is the mean of two cross-entropies over the positions of a window, for the first and last
token of the answer (Devlin et al. 2019, section 4.2). Padding is excluded, so the loss of a window
does not depend on the other windows of its batch.

The scores are exact match and F1, in percent. Predicted and gold texts are normalized first. Exact
match compares the texts, and F1 the words between white space; both take the best match among the
gold answers (Rajpurkar et al. 2016; 2018 for questions without answer). Chinese has no white space
between words, so its F1 is close to exact match, as in the official scorer.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.tasks.question_answering.processor import ENDS, Predictions
from keras_bert.training.objective import (
    NO_OUTPUT,
    Batch,
    OutputObjective,
    Outputs,
    soft_label_losses,
)

# --- training objective ---


def soft_position_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence of two distributions over positions: logits [B, S] -> [B]."""
    logits = ops.where(teacher > NO_OUTPUT / 2, logits, NO_OUTPUT)
    return soft_label_losses(teacher, logits, temperature)


class SpanObjective(OutputObjective):
    """The objective for batches with "start_positions" and "end_positions", int32 [B].

    "span_accuracy" is the share of windows in which both positions have the highest logit.
    """

    accuracy = "span_accuracy"

    def label_losses(self, outputs: Outputs, batch: Batch) -> tuple[Any, Any]:
        """Returns the losses and hits of the windows, [B]."""
        losses, hits = 0.0, True
        for end in ENDS:
            position = batch[f"{end}_positions"]
            logits = ops.where(batch["input_mask"] == 1, outputs[f"{end}_logits"], -1e9)
            losses += 0.5 * ops.sparse_categorical_crossentropy(position, logits, from_logits=True)
            hits &= ops.argmax(logits, axis=-1) == position
        return losses, hits

    def soft_losses(self, teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        """Returns the losses of the soft targets, [B]."""
        names = [f"{end}_logits" for end in ENDS]
        return sum(
            0.5 * soft_position_losses(teacher[name], outputs[name], temperature) for name in names
        )


# --- official scores ---

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalizes an answer: lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def score(predictions: Predictions, settings: AnswerSettings) -> dict[str, float]:
    """Computes the scores of results.json; for v2.0, they include the best null odds thresholds."""
    questions, answers = predictions.questions, predictions.answers(settings.threshold)
    if not settings.version_2_with_negative:
        return score_v1(questions, answers)
    best = best_thresholds(questions, predictions.best_texts, predictions.null_odds)
    if settings.null_score_diff_threshold is not None:
        best["null_score_diff_threshold"] = settings.null_score_diff_threshold
    return score_v2(questions, answers) | best


def score_v1(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Computes "exact" and "f1" like the official SQuAD v1.1 scorer.

    A missing prediction scores 0; predictions with an unknown question id are ignored.
    """
    exact, f1 = _question_scores(questions, predictions, version_2=False)
    return {"exact": _percent(exact), "f1": _percent(f1)}


def _percent(scores: Sequence[float]) -> float:
    """Returns the mean in percent, without `sum`, which rounds differently since Python 3.12."""
    total = 0.0
    for score in scores:
        total += score
    return 100.0 * total / len(scores)


def score_v2(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Computes the scores of the official SQuAD v2.0 scorer.

    `predictions` is {question id: text} for every question; "" means no answer.

    Returns:
        "exact", "f1" and "total", the number of questions. The prefix "HasAns_" means the questions
        with an answer, and "NoAns_" those without.
    """
    exact, f1 = _question_scores(questions, predictions, version_2=True)
    has_answer = [bool(question.answers) for question in questions]
    results: dict[str, float] = {}
    for prefix, kinds in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        indices = [i for i, kind in enumerate(has_answer) if kind in kinds]
        if indices:
            results[f"{prefix}exact"] = _percent([exact[i] for i in indices])
            results[f"{prefix}f1"] = _percent([f1[i] for i in indices])
            results[f"{prefix}total"] = len(indices)
    return results


def best_thresholds(
    questions: Sequence[Question], answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Finds the null odds thresholds that give the best v2.0 scores on these questions.

    A question whose null odds (see Predictions) are above the threshold gets the empty answer, and
    other questions get their best text in `answers`, {question id: text}.

    Returns:
        "best_exact" and "best_f1" in percent, and their thresholds with the suffix "_thresh".
        "null_score_diff_threshold" is the threshold with the best F1, for use on other questions.
        It is "best_f1_thresh", except if empty answers to all questions are best. The official
        scorer then reports 0, which would still answer some questions; this threshold is below all
        null odds.
    """
    odds = np.array([null_odds[question.id] for question in questions], np.float64)
    has_answer = np.array([bool(question.answers) for question in questions])
    is_empty = np.array([not answers[question.id] for question in questions])
    order = np.argsort(odds, kind="stable")
    odds, results = odds[order], {}
    scores = _question_scores(questions, answers, version_2=True)
    for name, values in zip(("exact", "f1"), scores, strict=True):
        # The gain of answering: the score of the answer, or -1 (the lost point) if there is none.
        gains = np.where(has_answer, values, np.where(is_empty, 0.0, -1.0))[order]
        totals = np.cumsum(np.concatenate([[(~has_answer).sum()], gains]))
        count = int(np.argmax(totals))  # The first maximum; 0 means only empty answers.
        results[f"best_{name}"] = 100.0 * float(totals[count]) / len(questions)
        results[f"best_{name}_thresh"] = float(odds[count - 1]) if count else 0.0
    threshold = float(odds[count - 1] if count else np.nextafter(odds[0], -np.inf))
    return results | {"null_score_diff_threshold": threshold}


def _question_scores(
    questions: Sequence[Question], predictions: Mapping[str, str], version_2: bool
) -> tuple[list[float], list[float]]:
    """Returns the best exact match and F1 among the gold answers, from 0 to 1, of each question."""
    exact, f1 = [], []
    for question in questions:
        gold = [normalize_answer(answer.text) for answer in question.answers]
        if version_2:
            gold = [text for text in gold if text] or [""]
        text = predictions.get(question.id)
        predicted = None if text is None else normalize_answer(text)
        exact.append(float(predicted in gold))
        f1.append(
            0.0 if predicted is None else max(_f1(predicted, text, version_2) for text in gold)
        )
    return exact, f1


def _f1(predicted_text: str, gold_text: str, version_2: bool) -> float:
    predicted, gold = predicted_text.split(), gold_text.split()
    if version_2 and not (predicted and gold):
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)
