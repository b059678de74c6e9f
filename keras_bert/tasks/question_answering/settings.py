"""Defines the window and decoding settings of question answering."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from keras_bert.common.errors import InputError

if TYPE_CHECKING:
    from keras_bert.tasks.loading import Source

# The minimum number of tokens in a window besides the context: [CLS], two [SEP], one of a question.
_NOT_CONTEXT = 4
_AT_LEAST_ONE = ("n_best_size", "max_answer_length", "max_query_length", "doc_stride")


@dataclass(frozen=True)
class AnswerSettings:
    """Window and decoding settings, named like the flags of run_squad.

    Attributes:
        max_seq_length: maximum number of tokens in a window, including [CLS] and both [SEP].
        max_query_length: maximum number of tokens in a question; longer questions are truncated.
        doc_stride: number of tokens between the starts of two consecutive windows.
        n_best_size: maximum number of candidates for each question.
        max_answer_length: maximum number of tokens in an answer.
        version_2_with_negative: whether a question may have no answer.
        null_score_diff_threshold: a question whose null odds (score of "no answer" - score of the
            best text) are higher gets the empty answer; None means 0.

    Raises:
        InputError: a value is out of range, or a threshold is given but every question has an
            answer.
    """

    max_seq_length: int = 384
    max_query_length: int = 64
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float | None = None

    def __post_init__(self):
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.max_seq_length < self.max_query_length + 4:
            raise InputError(
                f"max_seq_length={self.max_seq_length}: expected at least "
                f"{self.max_query_length + 4}, to fit max_query_length={self.max_query_length}, "
                "[CLS], two [SEP] and one context token"
            )
        threshold = self.null_score_diff_threshold
        if threshold is None:
            return
        if not math.isfinite(threshold):
            raise InputError(f"null_score_diff_threshold={threshold}: expected a finite number")
        if not self.version_2_with_negative:
            raise InputError(
                f"null_score_diff_threshold={threshold}: needs version_2_with_negative, because "
                "all questions of v1.1 have an answer"
            )

    @property
    def threshold(self) -> float | None:
        """The null odds threshold used in decoding; None if every question has an answer (v1.1)."""
        return (self.null_score_diff_threshold or 0.0) if self.version_2_with_negative else None


class AnswerOptions(TypedDict, total=False):
    """Keyword arguments of `from_pretrained`; see AnswerSettings."""

    max_seq_length: int | None
    max_query_length: int | None
    doc_stride: int | None
    n_best_size: int | None
    max_answer_length: int | None
    version_2_with_negative: bool | None
    null_score_diff_threshold: float | None


def answer_settings(source: "Source", given: Mapping[str, Any]) -> AnswerSettings:
    """Completes the settings that are given by the user.

    A setting that is missing or None in `given` is taken from the model, or else from the run that
    wrote the model, or else from the defaults of AnswerSettings.
    """
    default = AnswerSettings()
    settings: dict[str, Any] = {
        name: source.setting(name, int, given.get(name), getattr(default, name))
        for name in ("max_query_length", "doc_stride", "n_best_size", "max_answer_length")
    }
    settings["max_seq_length"] = source.max_seq_length(
        given.get("max_seq_length"), default.max_seq_length
    )
    name = "version_2_with_negative"
    version_2 = settings[name] = source.setting(name, bool, given.get(name), False)
    name = "null_score_diff_threshold"
    threshold = given.get(name)
    if threshold is None and version_2:
        threshold = source.setting(name, float, None)
        threshold = source.run.threshold() if threshold is None else threshold
    answers = AnswerSettings(**settings, null_score_diff_threshold=threshold)
    if given.get("doc_stride") is not None:
        check_doc_stride(answers.doc_stride, answers.max_seq_length)
    return answers


def check_doc_stride(doc_stride: int, max_seq_length: int) -> None:
    """Rejects a `doc_stride` set by the user that exceeds the part of the context in any window.

    The default stride is not checked. If it is larger than a window, the windows do not overlap.
    """
    largest = max_seq_length - _NOT_CONTEXT
    if doc_stride > largest:
        raise InputError(
            f"doc_stride={doc_stride}: is larger than the part of the context in a window; "
            f"expected at most {largest}, for max_seq_length={max_seq_length}"
        )
