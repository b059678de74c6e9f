"""A span labeler from start to end: SQuAD in; official scores, predictions and model/ out.

questions -> windows -> the fine-tuning core (tasks/fine_tuning) with this task's loss, scores,
TensorBoard table and prediction files

training questions -> windows with positions ----------------------> training examples
dev questions -> windows -> logits -> candidates -> texts ---------> official scores
test questions -> windows -> logits -> candidates -> texts --------> predictions.json, ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.common.files import write_json
from keras_bert.models import BertSpanLabeler
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import open_pretrained
from keras_bert.tasks.fine_tuning.seeds import fine_tune_seeds
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.tasks.question_answering.data import (
    Splits,
    SquadSettings,
    read_data,
    scorable,
    teachable,
)
from keras_bert.tasks.question_answering.decoding import (
    Decoded,
    decode,
    n_best_of,
    null_odds_of,
    predictions_of,
)
from keras_bert.tasks.question_answering.objective import span_objective
from keras_bert.tasks.question_answering.questions import Question
from keras_bert.tasks.question_answering.scoring import (
    best_f1_threshold,
    best_thresholds,
    score_v1,
    score_v2,
)
from keras_bert.tasks.question_answering.windows import Windows, make_windows, training_examples
from keras_bert.tasks.task import Task
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.board import Board


@dataclass(frozen=True)
class _Length:
    max_seq_length: int


class _SpanTask(Task):
    """Holds the model until QuestionAnswerer takes its place."""

    def make_processor(self) -> None:
        return None


@dataclass(frozen=True)
class _Windowed:
    """Questions to score or to answer, cut into windows.

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
        return (
            score_v2(self.questions, predictions)
            | self.best_thresholds(decoded)
            | {"null_score_diff_threshold": self.threshold(decoded)}
        )

    def best_thresholds(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        """Returns the best scores that another threshold gives, and those thresholds."""
        return best_thresholds(self.questions, *self._answers_and_odds(decoded))

    def threshold(self, decoded: Sequence[Decoded]) -> float:
        """Returns what other questions are answered by: what is given, else what is best here."""
        if self.settings.null_score_diff_threshold is not None:
            return self.settings.null_score_diff_threshold
        return best_f1_threshold(self.questions, *self._answers_and_odds(decoded))

    def _answers_and_odds(
        self, decoded: Sequence[Decoded]
    ) -> tuple[dict[str, str], dict[str, float]]:
        answers = predictions_of(self.questions, decoded, None)
        return answers, null_odds_of(self.questions, decoded)


def fine_tune_span_labeler(squad: SquadSettings, run: FineTuningRun) -> dict[str, object]:
    """Fine-tunes a span labeler once a seed, or goes on with it.

    Args:
        squad: which questions, and how they are read and answered.
        run: the run.

    Returns:
        The figures of the official scorer, as in results.json.

    Raises:
        InputError: anything about the questions or the checkpoint that a user has to mend.
    """
    settings = run.settings
    start = open_pretrained(settings)
    start.checkpoint.check_segments()
    splits = read_data(
        squad,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(squad, splits, start.tokenizer(), settings.max_seq_length)
    return fine_tune_seeds(run, start, task)


def make_task(
    squad: SquadSettings, splits: Splits, tokenizer: BertTokenizer, max_seq_length: int
) -> FineTuningTask:
    """Cuts all questions into windows, and says how they are learnt, scored and answered.

    Args:
        squad: how questions become windows, and logits become answers.
        splits: the questions.
        tokenizer: of the checkpoint.
        max_seq_length: pieces of a window.

    Returns:
        The task.

    Raises:
        InputError: an answer that is not in its context (`strict`), or no question is left.
    """
    version_2 = squad.version_2_with_negative

    def windows_of(questions: Sequence[Question]) -> Windows:
        return make_windows(
            questions, tokenizer, max_seq_length, squad.max_query_length, squad.doc_stride
        )

    dev = test = None
    if splits.dev is not None:
        questions = scorable(splits.dev, squad, "development")
        dev = _Windowed(squad, questions, windows_of(questions))
    if splits.test is not None:
        # The same questions are answered once, unless some of them cannot be scored.
        is_scored = splits.test is splits.dev and len(dev.questions) == len(splits.dev)
        test = dev if is_scored else _Windowed(squad, splits.test, windows_of(splits.test))

    def training() -> Examples:
        questions = teachable(splits.train, squad)
        windows = windows_of(questions)
        logging.info("%d training questions, %d windows", len(questions), len(windows.question))
        return training_examples(windows, questions)

    def write(predict: Predict, folder: Path) -> None:
        threshold = squad.null_score_diff_threshold or 0.0
        if version_2 and test is not dev:
            if dev:
                threshold = dev.threshold(dev.decode(predict))
            logging.info("questions with null odds above %.4f get no answer", threshold)
        decoded = test.decode(predict)
        write_json(folder / "predictions.json", test.predictions(decoded, threshold))
        n_best = n_best_of(test.questions, decoded, version_2)
        write_json(folder / "nbest_predictions.json", n_best)
        if version_2:
            write_json(folder / "null_odds.json", null_odds_of(test.questions, decoded))

    read = {"dev": splits.dev, "test": splits.test}
    return FineTuningTask(
        make=lambda config, dtype: _SpanTask(
            BertSpanLabeler(config, dtype=dtype), tokenizer, _Length(max_seq_length)
        ),
        objective=span_objective(),
        train=training() if splits.train is not None else None,
        score=dev.score if dev else None,
        best="best_f1" if version_2 else "f1",
        show=(lambda predict, board: _show(dev, predict, board)) if dev else None,
        write_predictions=write if test else None,
        data={name: questions for name, questions in read.items() if questions is not None},
    )


def _show(dev: _Windowed, predict: Predict, board: Board) -> None:
    """Puts the wrong answers, and in v2.0 how well no answer is told, on TensorBoard."""
    decoded = dev.decode(predict)
    predictions = dev.predictions(decoded, dev.settings.null_score_diff_threshold or 0.0)
    board.table(
        "wrong_predictions",
        ("id", "question", "answered", "expected", "null odds", "context"),
        _wrong(dev.questions, predictions, decoded),
    )
    if dev.settings.version_2_with_negative:
        odds = np.array([each.null_odds for each in decoded])
        board.pr_curve(
            "no_answer",
            np.array([not question.answers for question in dev.questions]),
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
