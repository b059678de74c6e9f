"""Reads the training, development and test questions of a run.

Questions that cannot be used for training or scoring are skipped, and a warning reports how many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.questions import (
    Question,
    aligned,
    check_answered,
    load_questions,
)
from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.question_answering.tfds import read_tfds


@dataclass(frozen=True)
class SquadSettings:
    """The questions of a run, and the settings for reading and answering them.

    Attributes:
        answers: window and decoding settings. If they have no threshold, a test set other than the
            development set uses the threshold with the best F1 on the development set.
        train_file: file of the training questions.
        eval_file: file of the development questions, which are scored.
        predict_file: file of the questions to answer; if empty, `eval_file`.
        tfds: whether to use SQuAD from TensorFlow Datasets for each file that is not given.
        data_dir: the folder of TensorFlow Datasets, with `tfds`.
        strict: whether a training answer that is not in its context is an error; otherwise its
            question is skipped.
    """

    answers: AnswerSettings = field(default_factory=AnswerSettings)
    train_file: str = ""
    eval_file: str = ""
    predict_file: str = ""
    tfds: bool = False
    data_dir: str = ""
    strict: bool = False

    @property
    def version_2(self) -> bool:
        """Whether a question may have no answer."""
        return self.answers.version_2_with_negative


@dataclass(frozen=True)
class QuestionSplits:
    """The questions of a run; None for a split that is not used.

    `dev` are questions to score, and `test` those to answer; both may be the same list.
    """

    train: Sequence[Question] | None = None
    dev: Sequence[Question] | None = None
    test: Sequence[Question] | None = None


def read_data(
    squad: SquadSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> QuestionSplits:
    """Reads the questions of a run; the development and test questions may be missing.

    Raises:
        InputError: a file is invalid, the training questions are missing, or there is nothing to
            do.
    """
    if do_train and not (squad.train_file or squad.tfds):
        raise InputError("--train_file is missing; expected a SQuAD file, --tfds or --nodo_train")

    def answered(path: str, split: str) -> list[Question] | None:
        if path:
            questions = load_questions(path)
            check_answered(questions, path)
            return questions
        version = "v2.0" if squad.version_2 else "v1.1"
        return read_tfds(version, split, squad.data_dir) if squad.tfds else None

    train = answered(squad.train_file, "train") if do_train else None
    needs_dev = do_eval or (do_predict and not squad.predict_file)
    dev = answered(squad.eval_file, "validation") if needs_dev else None
    test = None
    if do_predict:
        is_dev = not squad.predict_file or (
            dev and Path(squad.predict_file) == Path(squad.eval_file)
        )
        test = dev if is_dev else load_questions(squad.predict_file)
    splits = QuestionSplits(train, dev if do_eval else None, test)
    if splits == QuestionSplits():
        raise InputError(
            "nothing to do: there are no questions to score or to answer; expected --eval_file, "
            "--predict_file, --tfds or --do_train"
        )
    return splits


def trainable(questions: Sequence[Question], squad: SquadSettings) -> list[Question]:
    """Returns the questions to train on, with the position of their first answer corrected.

    Questions whose answer is not found in the context (see `aligned`) are skipped, and in v1.1
    those without an answer.

    Raises:
        InputError: no question is left; or, with `strict`, an answer is not found in its context.
    """
    questions = scorable(questions, squad, "training")
    found = aligned(questions)
    absent = [q for q, kept in zip(questions, found, strict=True) if kept is None]
    if absent:
        first = absent[0]
        message = (
            f"{len(absent)} of {len(questions)} training answers are not in their context at the "
            f"given position, such as {first.answers[0].text[:60]!r} at {first.answers[0].start} "
            f"for the question {first.id!r}"
        )
        if squad.strict:
            raise InputError(f"{message}; expected none with --strict")
        logging.warning("%s; these questions are skipped", message)
    kept = [question for question in found if question]
    if not kept:
        raise InputError(
            "no training question has its answer in its context; expected at least one"
        )
    return kept


def scorable(questions: Sequence[Question], squad: SquadSettings, kind: str) -> Sequence[Question]:
    """Returns the questions that can be scored: all in v2.0, those with an answer in v1.1.

    `kind` describes the questions in messages, such as "training". Raises InputError if no question
    of v1.1 has an answer.
    """
    if squad.version_2:
        return questions
    kept = [question for question in questions if question.answers]
    if len(kept) < len(questions):
        logging.warning(
            "%d of %d %s questions have no answer and are skipped; --version_2_with_negative "
            "keeps them",
            len(questions) - len(kept),
            len(questions),
            kind,
        )
    if not kept:
        raise InputError(
            f"no {kind} question has an answer; expected at least one, or --version_2_with_negative"
        )
    return kept
