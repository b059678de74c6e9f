"""Fine-tunes a span labeler on SQuAD, and writes official scores, predictions and the model.

training questions -> windows with answer positions -----------------> training examples
dev questions -> windows -> logits -> candidates -> texts -----------> official scores
test questions -> windows -> logits -> candidates -> texts ----------> predictions.json, ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.common.files import write_json
from keras_bert.models import BertSpanLabeler
from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import open_pretrained
from keras_bert.tasks.fine_tuning.run import fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.tasks.prepared import Prepared, decoded, gathered
from keras_bert.tasks.question_answering.data import (
    QuestionSplits,
    SquadSettings,
    read_data,
    scorable,
    trainable,
)
from keras_bert.tasks.question_answering.labels import prepare_questions, training_examples
from keras_bert.tasks.question_answering.objective import span_objective
from keras_bert.tasks.question_answering.predictions import Predictions
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.question_answerer import QuestionAnswerer
from keras_bert.tasks.question_answering.questions import Question
from keras_bert.tasks.question_answering.scoring import (
    score,
    score_v2,
    threshold_for_others,
)
from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.truncation import report_splits
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.log import Board


class _QuestionSet:
    """Questions to score or to answer, split into windows once."""

    def __init__(
        self, questions: Sequence[Question], tokenizer: BertTokenizer, settings: AnswerSettings
    ):
        self.questions = questions
        self.settings = settings
        self._processor = SpanProcessor(tokenizer, settings)
        self.prepared = prepare_questions(self._processor, questions)

    def decode(self, predict: Predict) -> Predictions:
        """Runs the model and decodes the candidate answers of each question."""
        logits = predict(self.prepared.examples)
        chunks = decoded(self._processor, self.prepared, logits)
        return Predictions(self.questions, gathered(list(chunks)))

    def score(self, predict: Predict) -> dict[str, float]:
        """Runs the model and returns the official SQuAD scores, as in results.json."""
        return score(self.decode(predict), self.settings)


def fine_tune_span_labeler(squad: SquadSettings, run: FineTuningRun) -> dict[str, object]:
    """Fine-tunes a span labeler once for each seed, or resumes an unfinished run.

    The `max_seq_length` of the run is the window length. Returns the scores of results.json.
    """
    settings = run.settings
    squad = replace(squad, answers=replace(squad.answers, max_seq_length=settings.max_seq_length))
    start = open_pretrained(settings)
    start.checkpoint.check_segments()
    splits = read_data(
        squad,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(squad, splits, start.tokenizer(), run.distillation)
    return fine_tune(run, start, task)


def make_task(
    squad: SquadSettings,
    splits: QuestionSplits,
    tokenizer: BertTokenizer,
    distillation: Distillation | None = None,
) -> FineTuningTask:
    """Creates the task that trains on, scores and answers the questions of a run."""
    train = dev = test = None
    all_prepared: dict[str, Prepared] = {}
    if splits.dev is not None:
        questions = scorable(splits.dev, squad, "development")
        dev = _QuestionSet(questions, tokenizer, squad.answers)
    if splits.test is not None:
        # Reuse the development windows, unless some of those questions cannot be scored.
        is_scored = splits.test is splits.dev and len(dev.questions) == len(splits.dev)
        test = dev if is_scored else _QuestionSet(splits.test, tokenizer, squad.answers)

    if splits.train is not None:
        questions = trainable(splits.train, squad)
        prepared = prepare_questions(SpanProcessor(tokenizer, squad.answers), questions)
        all_prepared["train"] = prepared
        train = training_examples(prepared, questions)
        logging.info("Training on %d questions in %d windows", len(questions), len(train))
    all_prepared |= {
        name: chosen.prepared for name, chosen in (("dev", dev), ("test", test)) if chosen
    }

    def write(predict: Predict, folder: Path) -> None:
        threshold = squad.answers.threshold
        if squad.version_2 and test is not dev:
            if dev:
                threshold = threshold_for_others(dev.decode(predict), squad.answers)
            logging.info(
                "Questions whose null odds (score of no answer minus score of the best answer) are "
                "above %.4f get the empty answer",
                threshold,
            )
        found = test.decode(predict)
        write_json(folder / "predictions.json", found.answers(threshold))
        write_json(folder / "nbest_predictions.json", found.n_best(squad.version_2))
        if squad.version_2:
            write_json(folder / "null_odds.json", found.null_odds)

    read = {"dev": splits.dev, "test": splits.test}
    return FineTuningTask(
        make=lambda config, dtype: QuestionAnswerer(
            BertSpanLabeler(config, dtype=dtype), tokenizer, squad.answers
        ),
        objective=span_objective(distillation),
        train=train,
        score=dev.score if dev else None,
        best="best_f1" if squad.version_2 else "f1",
        show=(lambda predict, board: _show(dev, predict, board)) if dev else None,
        write_predictions=write if test else None,
        data={name: questions for name, questions in read.items() if questions is not None},
        truncated=report_splits(
            all_prepared, "questions", f"max_query_length={squad.answers.max_query_length}"
        ),
    )


def _show(dev: _QuestionSet, predict: Predict, board: Board) -> None:
    """Writes wrong answers to TensorBoard, and for v2.0 the precision-recall curve of "no answer".

    `dev` are the development questions.
    """
    found = dev.decode(predict)
    board.table(
        "wrong_predictions",
        ("id", "question", "answered", "expected", "null odds", "context"),
        _wrong_answers(found, found.answers(dev.settings.threshold)),
    )
    if dev.settings.version_2_with_negative:
        odds = np.array([*found.null_odds.values()])
        board.pr_curve(
            "no_answer",
            np.array([not question.answers for question in dev.questions]),
            1 / (1 + np.exp(-np.clip(odds, -50, 50))),
        )


def _wrong_answers(found: Predictions, answers: Mapping[str, str]) -> list[tuple[str, ...]]:
    rows = []
    null_odds = found.null_odds
    for question in found.questions:
        if score_v2([question], answers)["exact"]:
            continue
        expected = " / ".join(dict.fromkeys(answer.text for answer in question.answers))
        rows.append(
            (
                question.id,
                question.text,
                answers[question.id] or "(no answer)",
                expected or "(no answer)",
                f"{null_odds[question.id]:.3g}",
                question.context[:300],
            )
        )
        if len(rows) == SHOWN:
            break
    return rows
