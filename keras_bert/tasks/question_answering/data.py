"""Reads the questions that a run trains on, scores and answers.

They come from SQuAD files, or from SQuAD as TensorFlow Datasets prepared it. Questions that cannot
be trained on or scored are skipped, and counted in a warning.
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
    """The questions of a run, and how they are read and answered.

    Attributes:
        answers: how contexts become windows and logits become answers. Without a threshold,
            predictions of other questions than the development set's use the one that gives the
            development set's best F1.
        train_file: questions to train on.
        eval_file: answered questions to score.
        predict_file: questions to answer; empty for those of `eval_file`.
        tfds: take SQuAD from TensorFlow Datasets where no file is named.
        data_dir: with `tfds`, the folder of TensorFlow Datasets.
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
    """The questions of a run.

    Attributes:
        train: questions to train on, or None.
        dev: answered questions to score, or None.
        test: questions to answer, or None; they may be the list of `dev`.
    """

    train: Sequence[Question] | None = None
    dev: Sequence[Question] | None = None
    test: Sequence[Question] | None = None


def read_data(
    squad: SquadSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> QuestionSplits:
    """Reads the questions that a run needs; those to score or to answer may be absent.

    Args:
        squad: the files, or TensorFlow Datasets.
        do_train: whether to read questions to train on.
        do_eval: whether to read questions to score.
        do_predict: whether to read questions to answer.

    Raises:
        InputError: files that cannot be used, none to train on, or nothing to do.
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
    """Keeps the questions that can be trained on.

    Args:
        questions: to train on.
        squad: the version, and whether a misplaced answer is an error.

    Returns:
        The questions whose answer is in its context, each moved to where it is.

    Raises:
        InputError: an answer that is not in its context (`strict`), or no question is left.
    """
    questions = scorable(questions, squad, "training")
    found = [aligned(question) for question in questions]
    absent = [q for q, kept in zip(questions, found, strict=True) if kept is None]
    if absent:
        first = absent[0]
        message = (
            f"{len(absent)} of {len(questions)} training answers are not in their context where "
            f"they say, such as {first.answers[0].text[:60]!r} at {first.answers[0].start} of the "
            f"question {first.id!r}"
        )
        if squad.strict:
            raise InputError(f"{message}; expected none with --strict")
        logging.warning("%s; these questions are skipped", message)
    kept = [question for question in found if question]
    if not kept:
        raise InputError("no training question is left; expected answers that are in their context")
    return kept


def scorable(questions: Sequence[Question], squad: SquadSettings, kind: str) -> Sequence[Question]:
    """Keeps the questions that the version of SQuAD has: in v1.1, those with an answer.

    Args:
        questions: answered or impossible.
        squad: the version.
        kind: the name of the split, for messages.

    Returns:
        All of them, or those that have an answer.

    Raises:
        InputError: none is left.
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
            f"no {kind} question has an answer; expected some, or --version_2_with_negative"
        )
    return kept
