"""SQuAD for the fine-tuning run: questions in; its examples, scores, predictions and tables out.

training questions -> windows with positions ----------------------> training examples
dev questions -> windows -> logits -> candidates -> texts ---------> official scores
predict questions -> windows -> logits -> candidates -> texts -----> predictions.json, ...
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.models import BertSpanLabeler
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.run import FineTuningTask
from keras_bert.tasks.squad.decoding import (
    Decoded,
    decode,
    n_best_of,
    null_odds_of,
    predictions_of,
)
from keras_bert.tasks.squad.questions import Question, aligned
from keras_bert.tasks.squad.scoring import best_f1_threshold, best_thresholds, score_v1, score_v2
from keras_bert.tasks.squad.task import span_task
from keras_bert.tasks.squad.windows import Windows, make_windows, training_examples
from keras_bert.tokenization import BertTokenizer
from keras_bert.training.board import Board

# Rows in TensorBoard's table of wrong predictions.
SHOWN = 100


@dataclass(frozen=True)
class SquadSettings:
    """How questions become windows, and logits become answers.

    Attributes:
        max_seq_length: pieces of a window.
        max_query_length: pieces of a question; the rest is not read.
        doc_stride: pieces from the start of one window to that of the next.
        n_best_size: candidates a question.
        max_answer_length: pieces of an answer.
        version_2_with_negative: whether a question may have no answer.
        null_score_diff_threshold: null odds above it give the empty answer. None is 0, and for
            predictions of other questions than the development set's the threshold that gives its
            best F1.
        strict: whether a training answer that is not in its context is an error; else its question
            is left out.
    """

    max_seq_length: int = 384
    max_query_length: int = 64
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float | None = None
    strict: bool = False

    def __post_init__(self):
        for name in ("n_best_size", "max_answer_length", "max_query_length", "doc_stride"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name}={getattr(self, name)}: expected at least 1")
        if not math.isfinite(self.null_score_diff_threshold or 0.0):
            raise InputError("--null_score_diff_threshold: expected a finite number")


@dataclass(frozen=True)
class Squad:
    """Questions with their windows, and how to answer them with a model.

    Attributes:
        settings: how windows become answers.
        questions: Q of them.
        windows: theirs.
    """

    settings: SquadSettings
    questions: Sequence[Question]
    windows: Windows

    def decode(self, predict: Predict) -> list[Decoded]:
        """Returns the candidates of each question."""
        logits = predict(self.windows.examples)
        return decode(
            self.questions,
            self.windows,
            logits["start_logits"],
            logits["end_logits"],
            self.settings.n_best_size,
            self.settings.max_answer_length,
        )

    def predictions(self, decoded: Sequence[Decoded], threshold: float = 0.0) -> dict[str, str]:
        """Returns the answers, in v2.0 empty where the null odds are above the threshold."""
        version_2 = self.settings.version_2_with_negative
        return predictions_of(self.questions, decoded, threshold if version_2 else None)

    def score(self, predict: Predict) -> dict[str, float]:
        """Returns the figures of the official scorer."""
        decoded = self.decode(predict)
        predictions = self.predictions(decoded, self.settings.null_score_diff_threshold or 0.0)
        if not self.settings.version_2_with_negative:
            return score_v1(self.questions, predictions)
        return score_v2(self.questions, predictions) | self.best_thresholds(decoded)

    def best_thresholds(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        """Returns the best scores that another threshold gives, and those thresholds."""
        return best_thresholds(self.questions, *self._answers_and_odds(decoded))

    def best_f1_threshold(self, decoded: Sequence[Decoded]) -> float:
        """Returns the threshold to predict other questions with."""
        return best_f1_threshold(self.questions, *self._answers_and_odds(decoded))

    def _answers_and_odds(
        self, decoded: Sequence[Decoded]
    ) -> tuple[dict[str, str], dict[str, float]]:
        answers = predictions_of(self.questions, decoded, None)
        return answers, null_odds_of(self.questions, decoded)


def squad_task(
    settings: SquadSettings,
    tokenizer: BertTokenizer,
    train: Sequence[Question] | None = None,
    dev: Sequence[Question] | None = None,
    predict: Sequence[Question] | None = None,
) -> FineTuningTask:
    """Makes what the fine-tuning run needs for SQuAD.

    Args:
        settings: how questions become windows, and logits become answers.
        tokenizer: of the checkpoint.
        train: answered questions to train on.
        dev: answered questions to score.
        predict: questions to write predictions for; those of `dev` may be the same list.

    Returns:
        The task, for `fine_tune`.

    Raises:
        InputError: an answer that is not in its context (`strict`), or no question is left.
    """
    version_2 = settings.version_2_with_negative

    def squad_of(questions: Sequence[Question]) -> Squad:
        return Squad(settings, questions, _windows(settings, tokenizer, questions))

    scored = squad_of(_answerable(dev, "dev", version_2)) if dev is not None else None
    asked = None
    if predict is not None:
        # The same questions are answered once, unless some of them cannot be scored.
        is_scored = predict is dev and len(scored.questions) == len(dev)
        asked = scored if is_scored else squad_of(predict)

    def write_predictions(run: Predict, folder: Path) -> None:
        threshold = settings.null_score_diff_threshold
        if threshold is None and version_2 and scored and asked is not scored:
            threshold = scored.best_f1_threshold(scored.decode(run))
            logging.info("predictions by the development set's best threshold, %.4f", threshold)
        decoded = asked.decode(run)
        write_json(folder / "predictions.json", asked.predictions(decoded, threshold or 0.0))
        n_best = n_best_of(asked.questions, decoded, version_2)
        write_json(folder / "nbest_predictions.json", n_best)
        if version_2:
            write_json(folder / "null_odds.json", null_odds_of(asked.questions, decoded))

    return FineTuningTask(
        make_model=lambda config, policy: BertSpanLabeler(config, dtype=policy),
        sums=span_task(),
        train=_training(settings, tokenizer, train) if train is not None else None,
        score=scored.score if scored else None,
        best="best_f1" if version_2 else "f1",
        show=(lambda run, board: _show(scored, run, board)) if scored else None,
        write_predictions=write_predictions if asked else None,
    )


def digest(questions: Sequence[Question]) -> str:
    """Computes a checksum of questions, so that a run notices changed files.

    Args:
        questions: any number.

    Returns:
        SHA-256 in hexadecimal.
    """
    total = hashlib.sha256()
    for question in questions:
        total.update(repr(question).encode())
    return total.hexdigest()


def _windows(
    settings: SquadSettings, tokenizer: BertTokenizer, questions: Sequence[Question]
) -> Windows:
    return make_windows(
        questions,
        tokenizer,
        settings.max_seq_length,
        settings.max_query_length,
        settings.doc_stride,
    )


def _training(
    settings: SquadSettings, tokenizer: BertTokenizer, questions: Sequence[Question]
) -> Examples:
    """Makes training examples of the questions that have something to teach."""
    questions = _answerable(questions, "training", settings.version_2_with_negative)
    realigned = [aligned(question) for question in questions]
    absent = [q for q, found in zip(questions, realigned, strict=True) if found is None]
    if absent:
        first = absent[0]
        message = (
            f"{len(absent)} of {len(questions)} training answers are not in their context where "
            f"they say, such as {first.answers[0].text[:60]!r} at {first.answers[0].start} of the "
            f"question {first.id!r}"
        )
        if settings.strict:
            raise InputError(f"{message}; expected none with --strict")
        logging.warning("%s; these questions are left out", message)
    questions = [question for question in realigned if question]
    if not questions:
        raise InputError("no training question is left; expected answers that are in their context")
    windows = _windows(settings, tokenizer, questions)
    logging.info("%d training questions, %d windows", len(questions), len(windows.question))
    return training_examples(windows, questions)


def _answerable(questions: Sequence[Question], kind: str, version_2: bool) -> Sequence[Question]:
    """Leaves out the questions without answer, which SQuAD v1.1 does not know."""
    if version_2:
        return questions
    kept = [question for question in questions if question.answers]
    if len(kept) < len(questions):
        logging.warning(
            "%d of %d %s questions have no answer and are left out; --version_2_with_negative "
            "keeps them",
            len(questions) - len(kept),
            len(questions),
            kind,
        )
    if not kept:
        raise InputError(
            f"no {kind} question has an answer; expected some, or --version_2_with_negative"
        )
    return kept


def _show(squad: Squad, predict: Predict, board: Board) -> None:
    """Puts the wrong answers, and in v2.0 how well no answer is told, on TensorBoard."""
    decoded = squad.decode(predict)
    predictions = squad.predictions(decoded, squad.settings.null_score_diff_threshold or 0.0)
    board.table(
        "wrong_predictions",
        ("id", "question", "answered", "expected", "null odds", "context"),
        _wrong(squad.questions, predictions, decoded),
    )
    if squad.settings.version_2_with_negative:
        odds = np.array([each.null_odds for each in decoded])
        board.pr_curve(
            "no_answer",
            np.array([not question.answers for question in squad.questions]),
            1 / (1 + np.exp(-np.clip(odds, -50, 50))),
        )


def _wrong(
    questions: Sequence[Question], predictions: Mapping[str, str], decoded: Sequence[Decoded]
) -> list[tuple[str, ...]]:
    rows = []
    for question, candidates in zip(questions, decoded, strict=True):
        if score_v2([question], predictions)["exact"]:
            continue
        expected = " / ".join(dict.fromkeys(answer.text for answer in question.answers))
        rows.append(
            (
                question.id,
                question.text,
                predictions[question.id] or "(no answer)",
                expected or "(no answer)",
                f"{candidates.null_odds:.3g}",
                question.context[:300],
            )
        )
        if len(rows) == SHOWN:
            break
    return rows
