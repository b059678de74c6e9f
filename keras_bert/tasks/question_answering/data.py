"""Reads and checks the questions of a run: SQuAD files, tables, TensorFlow Datasets, arguments.

A SQuAD file, v1.1 or v2.0:

    {"data": [{"paragraphs": [{"context": str, "qas": [
        {"id": str or int, "question": str, "answers": [{"text": str, "answer_start": int}],
         "is_impossible": bool}]}]}]}

Each row of a table, as on the Hugging Face Hub, is a line or a list item of a JSON file, or a row
of a Parquet or Arrow file:

    {"id": str or int, "context": str, "question": str,
     "answers": {"text": [str], "answer_start": [int]}}

`answer_start` is a character offset in the context. An answer with empty text is no answer. Test
files may have no "answers". Questions that cannot be used for training or scoring are skipped, and
a warning reports how many.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.options import MAX_SEQ_LENGTH, advanced, check, option
from keras_bert.tasks.checks import check_list, check_same_length
from keras_bert.tasks.tables import Row, Splits, open_prepared, read_rows, read_split, read_splits

# --- settings ---

# The minimum number of tokens in a window besides the context: [CLS], two [SEP], one of a question.
_NOT_CONTEXT = 4


@dataclass(frozen=True)
class AnswerSettings:
    """Window and decoding settings, named like the flags of run_squad.

    Raises:
        InputError: a value is out of range, or a threshold is given but every question has an
            answer.
    """

    GROUP: ClassVar[str] = "model"
    max_seq_length: int = option(
        384,
        "Maximum number of tokens in a window, including [CLS] and both [SEP].",
        min=3,
        max=MAX_SEQ_LENGTH,
    )
    max_query_length: int = advanced(64, "Maximum number of tokens in a question.", min=1)
    doc_stride: int = option(
        128, "Number of tokens between the starts of two windows of a context.", min=1
    )
    n_best_size: int = advanced(20, "Number of candidate answers per question.", min=1)
    max_answer_length: int = advanced(30, "Maximum number of tokens in an answer.", min=1)
    version_2_with_negative: bool = option(
        False, "Whether questions may have no answer, as in SQuAD v2.0."
    )
    null_score_diff_threshold: float | None = advanced(
        None,
        "A question gets the empty answer if its null odds (score of no answer - score of the best "
        "text) exceed this threshold. Default: 0. For a --predict_file other than --eval_file: the "
        "threshold of the best F1 on --eval_file. Without training and evaluation: the threshold "
        "stored in the run of --init_checkpoint.",
    )

    def __post_init__(self):
        check(self)
        if self.max_seq_length < self.max_query_length + 4:
            raise InputError(
                f"max_seq_length={self.max_seq_length}: expected at least "
                f"{self.max_query_length + 4}, to fit max_query_length={self.max_query_length}, "
                "[CLS], two [SEP] and one context token"
            )
        threshold = self.null_score_diff_threshold
        if threshold is not None and not self.version_2_with_negative:
            raise InputError(
                f"null_score_diff_threshold={threshold}: needs version_2_with_negative, because "
                "all questions of v1.1 have an answer"
            )

    @property
    def threshold(self) -> float | None:
        """The null odds threshold used in decoding; None if every question has an answer (v1.1)."""
        return (self.null_score_diff_threshold or 0.0) if self.version_2_with_negative else None


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


@dataclass(frozen=True)
class SquadSettings:
    """The questions of a run, and the settings for reading and answering them.

    Attributes:
        answers: window and decoding settings. If they have no threshold, a test set other than the
            development set uses the threshold with the best F1 on the development set.
    """

    GROUP: ClassVar[str] = "data"
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    train_file: str = option("", "File of training questions, in SQuAD's JSON format.")
    eval_file: str = option("", "File of questions with answers, to evaluate on after each epoch.")
    predict_file: str = option(
        "", "File of questions to predict answers for. Default: --eval_file."
    )
    tfds: bool = option(False, "Read SQuAD from TensorFlow Datasets, which must have prepared it.")
    data_dir: str = option("", "Folder of the SQuAD files; with --tfds, TFDS's data_dir.")


# --- questions ---


class Answer(NamedTuple):
    """An answer's text and its start, a character offset in the context."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a context, with its gold answers.

    `answers` is empty if the context has no answer (v2.0), and None if the question has no
    "answers" in the file. All questions about a context share one string object.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...] | None


# --- reading the questions of a run ---


def read_data(squad: SquadSettings, **do: bool) -> Splits:
    """Reads the questions of a run, lists of Question; `do` are arguments of `read_splits`."""
    version = "v2.0" if squad.answers.version_2_with_negative else "v1.1"

    def read(source: Path | str, answered: bool) -> list[Question]:
        if isinstance(source, str):  # A split of TensorFlow Datasets.
            builder = open_prepared(f"squad/{version}", squad.data_dir)
            rows = read_split(builder, source)
            return _questions(rows, f"{builder.data_path}, split {source}")
        questions = load_questions(source)
        for question in questions:
            if answered and question.answers is None:
                raise InputError(
                    f"{source}: the question {question.id!r} has no 'answers'; expected answers in "
                    "a file for training or evaluation"
                )
        return questions

    def source(file: str, split: str = "") -> Path | str:
        return Path(file) if file else split * squad.tfds

    return read_splits(
        read,
        source(squad.train_file, "train"),
        {"": source(squad.eval_file, "validation")},
        {"test": source(squad.predict_file)},
        "--train_file with a SQuAD file, --tfds",
        **do,
    )


def trainable(questions: Sequence[Question], squad: SquadSettings) -> list[Question]:
    """Returns the questions to train on, with the position of their first answer corrected.

    Questions whose answer is not found in the context (see `aligned`) are skipped, and in v1.1
    those without an answer.
    """
    questions = scorable(questions, squad, "training")
    matches = [aligned(question) for question in questions]
    absent = [q for q, match in zip(questions, matches, strict=True) if match is None]
    if absent:
        answer = absent[0].answers[0]
        logging.warning(
            "%d of %d training answers are not in their context at the given position, such as %r "
            "at %d for the question %r; these questions are skipped",
            *(len(absent), len(questions), answer.text[:60], answer.start, absent[0].id),
        )
    if len(absent) == len(questions):
        raise InputError(
            "no training question has its answer in its context; expected at least one"
        )
    return [match for match in matches if match]


def scorable(questions: Sequence[Question], squad: SquadSettings, kind: str) -> Sequence[Question]:
    """Returns the questions that can be scored: all in v2.0, those with an answer in v1.1."""
    if squad.answers.version_2_with_negative:
        return questions
    answered = [question for question in questions if question.answers]
    if len(answered) < len(questions):
        logging.warning(
            "%d of %d %s questions have no answer and are skipped; --version_2_with_negative "
            "keeps them",
            len(questions) - len(answered),
            len(questions),
            kind,
        )
    if not answered:
        raise InputError(
            f"no {kind} question has an answer; expected at least one, or --version_2_with_negative"
        )
    # If all are scored, the same object, which `prepare_sets` prepares once for both sets.
    return answered if len(answered) < len(questions) else questions


# --- files and TensorFlow Datasets ---

_ANSWERS = (
    [{"text": str, "answer_start?": int}],
    {"text": [str], "answer_start": [int]},
)
_QUESTION = {
    "id": (str, int),  # An int as in GermanQuAD; predictions are keyed by strings.
    "question": str,
    "answers?": _ANSWERS,
    "is_impossible?": (bool, int),
}
_PARAGRAPHS = {"paragraphs": [{"context": str, "qas": [_QUESTION]}]}
_ROW = {"context": str, **_QUESTION}


def load_questions(path: str | os.PathLike) -> list[Question]:
    """Reads the questions of a SQuAD file, v1.1 or v2.0, or of a table."""
    columns = [name.removesuffix("?") for name in (*_PARAGRAPHS, *_ROW)]
    return _questions(read_rows(Path(path), (), columns, always_json=True), path)


def _questions(rows: Iterable[Row], path: object) -> list[Question]:
    """Checks the rows of a file or split, which are questions or have paragraphs of questions."""
    questions: dict[str, Question] = {}
    contexts: dict[str, str] = {}
    for row in rows:
        is_question = row.cells.keys() & {"context", "question"}
        check_schema(f"{row.where}:", row.cells, _ROW if is_question else _PARAGRAPHS)
        paragraphs = [{**row.cells, "qas": [row.cells]}] if is_question else row.cells["paragraphs"]
        for paragraph in paragraphs:
            context = paragraph["context"]
            context = contexts.setdefault(context, context)
            for entry in paragraph["qas"]:
                name, text = str(entry["id"]), entry["question"]
                where = f"{path}: the question {name!r}"
                if not context.strip() or not text.strip():
                    raise InputError(f"{where}: has an empty question or context; expected text")
                if name in questions:
                    raise InputError(
                        f"{where}: has the id of another question, {questions[name].text[:60]!r}; "
                        "expected unique ids"
                    )
                questions[name] = Question(name, text, context, _answers(entry, where))
    if not questions:
        raise InputError(f"{path}: contains no questions; expected a SQuAD file")
    return [*questions.values()]


def _answers(entry: Mapping[str, Any], where: str) -> tuple[Answer, ...] | None:
    """Returns the answers of a JSON object, a list or two columns; None if it has none."""
    answers = entry.get("answers")
    if answers is None:
        return () if entry.get("is_impossible") else None
    if isinstance(answers, Mapping):
        pairs = (answers["text"], answers["answer_start"])
        check_same_length(**{f"{where}: text": pairs[0]}, answer_start=pairs[1])
        pairs = zip(*pairs, strict=True)
    else:
        pairs = ((answer["text"], answer.get("answer_start")) for answer in answers)
    answers = tuple(Answer(text, start) for text, start in pairs if text.strip())
    if any(answer.start is None for answer in answers):
        raise InputError(f"{where}: an answer has no 'answer_start'; expected a whole number")
    if answers and entry.get("is_impossible"):
        raise InputError(
            f"{where}: has is_impossible and the answer {answers[0].text!r}; expected only one of "
            "them"
        )
    return answers


# --- arguments of the Python API ---


def questions_of(
    texts: Sequence[str], contexts: Sequence[str], answers: Sequence[Any]
) -> list[Question]:
    """Creates questions from the arguments of `QuestionAnswerer.fit`; their ids are "0", "1", ...

    Each item of `answers` is an answer, a list of answers, or None. An answer is {"text": str,
    "start": int}; with "answer_start", both may also be lists. One with empty text is no answer.
    """
    answers = check_list("answers", answers, "answers")
    check_same_length(questions=texts, answers=answers)
    return [
        Question(str(i), text, context, tuple(_answers_of(value, f"answers[{i}]")))
        for i, (text, context, value) in enumerate(zip(texts, contexts, answers, strict=True))
    ]


def _answers_of(value: Any, where: str) -> Iterator[Answer]:
    """Yields the answers to one question; none if `value` is None."""
    text = value.get("text") if isinstance(value, Mapping) else None
    if isinstance(text, Iterable) and not isinstance(text, str):  # Two columns, as in `datasets`.
        columns = {key: check_list(f"{where}.{key}", column, key) for key, column in value.items()}
        check_same_length(**{f"{where}.{key}": column for key, column in columns.items()})
        value = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    if value is not None and not isinstance(value, Mapping):
        value = check_list(where, value, "answers")
    for answer in [value] if isinstance(value, Mapping) else value or ():
        is_squad = isinstance(answer, Mapping) and "answer_start" in answer
        start = "answer_start" if is_squad else "start"
        check_schema(where, answer, {"text": str, start: int})
        if answer["text"].strip():
            yield Answer(answer["text"], int(answer[start]))


# --- positions of answers ---


def aligned(question: Question) -> Question | None:
    """Corrects the position of a question's first answer, the one that training uses.

    The answer is where the context has its words: at `start`; or at `start` counted in UTF-16 code
    units, as JavaScript does; or else at the nearest match of the words, with any white space
    between them, in the part of the context that the answer should cover and one word on either
    side. Without an answer, the question is returned unchanged; None if there is no match.
    """
    if not question.answers:
        return question
    (text, start), *further = question.answers
    context, words = question.context, text.split()
    if start < 0 or not words:
        return None
    units = context[:start].encode("utf-16-le", "surrogatepass")[: 2 * start]
    for offset in (start, len(units.decode("utf-16-le", "replace"))):
        if context[offset : offset + len(text)].split() == words:
            return question._replace(answers=(Answer(text, offset), *further))
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    touched = [i for i, (a, b) in enumerate(spans) if a < start + len(text) and b >= start]
    if not touched:
        return None
    around = spans[max(touched[0] - 1, 0) : touched[-1] + 2]  # One more word on either side.
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    matches = [match.span() for match in pattern.finditer(context, around[0][0], around[-1][1])]
    if not matches:
        return None
    start, end = min(matches, key=lambda match: abs(match[0] - start))
    return question._replace(answers=(Answer(context[start:end], start), *further))
