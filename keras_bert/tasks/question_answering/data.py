"""What a span labeler learns from: settings in; questions to train on, score and answer out.

From SQuAD files, or from SQuAD as TensorFlow Datasets has prepared it. What cannot be taught or
scored is left out, and counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.question_answering.questions import (
    Question,
    aligned,
    check_answered,
    load_questions,
)
from keras_bert.tasks.question_answering.tfds import read_tfds


@dataclass(frozen=True)
class SquadSettings:
    """Which questions, how they become windows, and how logits become answers.

    Attributes:
        train_file: questions to train on.
        eval_file: answered questions to score.
        predict_file: questions to answer; empty for those of `eval_file`.
        tfds: take SQuAD from TensorFlow Datasets where no file is named.
        data_dir: with `tfds`, TensorFlow Datasets' folder.
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

    Raises:
        InputError: a value out of range, or a threshold without questions that have no answer.
    """

    train_file: str = ""
    eval_file: str = ""
    predict_file: str = ""
    tfds: bool = False
    data_dir: str = ""
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
        threshold = self.null_score_diff_threshold
        if threshold is None:
            return
        if not math.isfinite(threshold):
            raise InputError(f"--null_score_diff_threshold={threshold}: expected a finite number")
        if not self.version_2_with_negative:
            raise InputError(
                f"--null_score_diff_threshold={threshold} needs --version_2_with_negative: "
                "questions of v1.1 have an answer"
            )


@dataclass(frozen=True)
class Splits:
    """What a run trains on, is scored on and answers.

    Attributes:
        train: questions to train on, or None.
        dev: answered questions to score, or None.
        test: questions to answer, or None; they may be the list of `dev`.
    """

    train: Sequence[Question] | None = None
    dev: Sequence[Question] | None = None
    test: Sequence[Question] | None = None


def read_data(squad: SquadSettings, *, do_train: bool, do_eval: bool, do_predict: bool) -> Splits:
    """Reads what a run needs; without questions to score or to answer it does without.

    Args:
        squad: which questions.
        do_train: whether to read questions to train on.
        do_eval: whether to read questions to score.
        do_predict: whether to read questions to answer.

    Returns:
        The questions.

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
        version = "v2.0" if squad.version_2_with_negative else "v1.1"
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
    splits = Splits(train, dev if do_eval else None, test)
    if splits == Splits():
        raise InputError(
            "nothing to do: there are no questions to score or to answer; expected --eval_file, "
            "--predict_file, --tfds or --do_train"
        )
    return splits


def teachable(questions: Sequence[Question], squad: SquadSettings) -> list[Question]:
    """Keeps the training questions that have something to teach.

    Args:
        questions: to train on.
        squad: the version, and whether a misplaced answer is an error.

    Returns:
        Those whose answer is in its context, moved to where it is.

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
        logging.warning("%s; these questions are left out", message)
    kept = [question for question in found if question]
    if not kept:
        raise InputError("no training question is left; expected answers that are in their context")
    return kept


def scorable(questions: Sequence[Question], squad: SquadSettings, kind: str) -> Sequence[Question]:
    """Keeps the questions that the version of SQuAD knows: v1.1 has none without answer.

    Args:
        questions: answered or impossible.
        squad: the version.
        kind: what they are for, for messages.

    Returns:
        All of them, or those that have an answer.

    Raises:
        InputError: none is left.
    """
    if squad.version_2_with_negative:
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
