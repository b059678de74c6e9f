"""Reads and checks the questions of SQuAD files, v1.1 and v2.0.

    {"data": [{"paragraphs": [{"context": str, "qas": [
        {"id": str or int, "question": str, "answers": [{"text": str, "answer_start": int}],
         "is_impossible": bool}]}]}]}

`answer_start` is a character offset in the context. Test files may have no "answers".
"""

import numbers
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json
from keras_bert.tasks.checks import check_list, check_same_length


@dataclass(frozen=True)
class Answer:
    """An answer's text and its start, a character offset in the context."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context, with its gold answers.

    `answers` is empty if the context has no answer (v2.0), and None if the question has no
    "answers" in the file. All questions about a context share one string object.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...] | None


def load_questions(path: str | os.PathLike) -> list[Question]:
    """Reads the questions of a SQuAD file, v1.1 or v2.0.

    Raises:
        InputError: the file cannot be read or has another format, there are no questions, a text
            is empty, or two questions have the same id.
    """
    articles = _field(read_json(path), "data", list, f"{path}")
    questions = []
    for i, article in enumerate(articles):
        for j, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}: data[{i}]")):
            where = f"{path}: data[{i}].paragraphs[{j}]"
            context = _text(paragraph, "context", where)
            for k, entry in enumerate(_field(paragraph, "qas", list, where)):
                questions.append(_question(entry, context, f"{where}.qas[{k}]", path))
    check_ids(questions, path)
    return questions


def questions_of(
    texts: Sequence[str], contexts: Sequence[str], answers: Sequence[Any]
) -> list[Question]:
    """Creates questions from the arguments of `QuestionAnswerer.fit`; their ids are "0", "1", ...

    Each item of `answers` is {"text": str, "start": int}, a list of such items, or None.
    """
    answers = check_list("answers", answers, "answers")
    check_same_length(questions=texts, answers=answers)
    return [
        Question(str(i), text, context, tuple(_answers_of(given, f"answers[{i}]")))
        for i, (text, context, given) in enumerate(zip(texts, contexts, answers, strict=True))
    ]


def _answers_of(given: Any, where: str) -> Iterator[Answer]:
    """Yields the answers to one question; none if `given` is None."""
    if given is None:
        return
    for answer in [given] if isinstance(given, Mapping) else check_list(where, given, "answers"):
        text, start = (
            answer.get(name) if isinstance(answer, Mapping) else None for name in ("text", "start")
        )
        is_integer = isinstance(start, numbers.Integral) and not isinstance(start, bool)
        if not isinstance(text, str) or not is_integer:
            raise InputError(
                f'{where} is {answer!r:.60}; expected {{"text": str, "start": int}} or None'
            )
        yield Answer(text, int(start))


def check_ids(questions: Iterable[Question], where: object) -> None:
    """Checks that there are questions and that their ids are unique."""
    seen: dict[str, str] = {}
    for question in questions:
        if question.id in seen:
            raise InputError(
                f"{where}: duplicate question id {question.id!r}, for "
                f"{seen[question.id][:60]!r} and {question.text[:60]!r}; expected unique ids"
            )
        seen[question.id] = question.text
    if not seen:
        raise InputError(f"{where}: contains no questions; expected a SQuAD file")


def check_answered(questions: Iterable[Question], where: object) -> None:
    """Checks that every question of a file has "answers", which may be empty."""
    for question in questions:
        if question.answers is None:
            raise InputError(
                f"{where}: the question {question.id!r} has no 'answers'; expected answers in a "
                "file for training or evaluation"
            )


def aligned(question: Question) -> Question | None:
    """Corrects the position of a question's first answer, the one that training uses.

    If the context has the answer's words at `start`, the question is returned unchanged. Otherwise,
    the words are searched for, with any white space between them, in the part of the context that
    the answer should cover and one word on either side. The nearest match becomes the answer.
    Returns None if there is no match.
    """
    if not question.answers:
        return question
    answer, *others = question.answers
    context, words = question.context, answer.text.split()
    if answer.start < 0 or not words:
        return None
    if context[answer.start : answer.start + len(answer.text)].split() == words:
        return question
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    end = answer.start + len(answer.text)
    touched = [i for i, (first, last) in enumerate(spans) if first < end and last >= answer.start]
    if not touched:
        return None
    around = spans[max(touched[0] - 1, 0) : touched[-1] + 2]  # One more word on either side.
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    places = [match.span() for match in pattern.finditer(context, around[0][0], around[-1][1])]
    if not places:
        return None
    start, end = min(places, key=lambda place: abs(place[0] - answer.start))
    return replace(question, answers=(Answer(context[start:end], start), *others))


def trainable_question(question: Question) -> Question:
    """Corrects a question of `questions_of` with `aligned`; raises InputError without a match."""
    found = aligned(question)
    if found is None:
        answer = question.answers[0]
        raise InputError(
            f"answers[{question.id}] is {answer.text[:60]!r} at {answer.start}; expected a text "
            f"at this offset of contexts[{question.id}]"
        )
    return found


def _question(entry: Any, context: str, where: str, path: str | os.PathLike) -> Question:
    name = _name(entry, where)
    text = _text(entry, "question", f"{path}: the question {name!r}")
    if "answers" not in entry and not entry.get("is_impossible"):
        return Question(name, text, context, None)
    where = f"{path}: the question {name!r}"
    answers = _field(entry, "answers", list, where) if "answers" in entry else []
    found = tuple(
        Answer(_field(a, "text", str, where), _field(a, "answer_start", int, where))
        for a in answers
    )
    if found and entry.get("is_impossible"):
        raise InputError(
            f"{where}: has is_impossible and the answer {found[0].text!r}; expected only one "
            "of them"
        )
    return Question(name, text, context, found)


def _field(value: Any, name: str, kind: type, where: str) -> Any:
    """Returns a field of a JSON object; raises InputError if it is missing or has another type."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        got = f"{found!r:.60}" if isinstance(value, dict) and name in value else "nothing"
        raise InputError(f"{where}: expected {name!r} to be a {kind.__name__}, got {got}")
    return found


def _name(entry: Any, where: str) -> str:
    # Question ids are integers in GermanQuAD; predictions are keyed by strings.
    number = entry.get("id") if isinstance(entry, dict) else None
    return f"{number}" if type(number) is int else _field(entry, "id", str, where)


def _text(value: Any, name: str, where: str) -> str:
    text = _field(value, name, str, where)
    if not text.strip():
        raise InputError(f"{where}: {name!r} is empty; expected text")
    return text
