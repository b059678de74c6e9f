r"""Reads texts with character spans, as annotation tools export them, from JSON and Parquet files.

A JSON file has one object per line, or is one list of objects. A Parquet or Arrow file has a column
`text` and one of SPAN_KEYS; a null means that there is no value. The forms of an object are:

    {"text": "In Oslo", "entities": [{"start": 3, "end": 7, "type": "LOC"}]}     as for EntityTagger
    {"text": "In Oslo", "label": [[3, 7, "LOC"]]}                                doccano
    {"text": "In Oslo", "entities": [{"start_offset": 3, "end_offset": 7, "label": "LOC"}]}  doccano
    {"text": "In Oslo", "spans": [{"start": 3, "end": 7, "label": "LOC"}]}       Prodigy
    {"data": {"text": "In Oslo"}, "annotations": [{"result": [                   Label Studio
        {"value": {"start": 3, "end": 7, "labels": ["LOC"], "text": "Oslo"}}]}]}
    {"text": "In Oslo", "label": [{"start": 3, "end": 7, "labels": ["LOC"]}]}    its JSON-MIN

Offsets count characters as in Python's `str`. If a span contains its text, offsets in UTF-16 code
units, as JavaScript counts, are recognized.
"""

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert.common.columnar_files import FORMS, read_column_names
from keras_bert.common.errors import InputError
from keras_bert.common.text_lines import read_lines
from keras_bert.tasks.classification.tables import read_rows
from keras_bert.tasks.ner.tag_schemes import Entity

ENDINGS = (".jsonl", ".json", *FORMS)
SPAN_KEYS = ("entities", "spans", "label", "labels")

_EXPECTED = 'expected a span such as {"start": 0, "end": 3, "type": "PER"} or [0, 3, "PER"]'
_MAX_LIST_BYTES = 1 << 30
_SPACE = re.compile(r"(?:\s|\\n)+")  # Label Studio writes a line break in a span's text as \n.


@dataclass(frozen=True)
class AnnotatedText:
    """A text and its spans.

    Attributes:
        where: the file and the line or item, for error messages.
        line: number of the line or item, from 1.
        text: the text.
        spans: (type, start, end) of each span; None if the text is not annotated.
    """

    where: str
    line: int
    text: str
    spans: list[Entity] | None


def read_annotated(path: str | os.PathLike) -> tuple[list[AnnotatedText], int]:
    """Reads the texts of a file, and the number of texts that Prodigy's annotators rejected.

    Rejected and ignored texts of Prodigy are not in the list.

    Raises:
        InputError: the file cannot be read or has no text, or an object or a span is invalid.
    """
    texts, num_rejected = [], 0
    for unit, number, record in _objects(Path(path)):
        where = f"{path}, {unit} {number}"
        if not isinstance(record, Mapping):
            raise InputError(f"{where}: expected a JSON object, got {record!r:.80}")
        if record.get("answer", "accept") != "accept":
            num_rejected += 1
            continue
        text = _text_of(record, where)
        places = _span_list(record, where)
        spans = None
        if places is not None:
            spans = [entity for key, span in places for entity in _entities(span, key, text, where)]
        texts.append(AnnotatedText(where, number, text, spans))
    if not texts:
        found = f"only {num_rejected} rejected texts" if num_rejected else "no texts"
        raise InputError(f"{path}: contains {found}; expected JSON objects with texts and spans")
    return texts, num_rejected


def _objects(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yields (unit, number, JSON value) for each line or row, or each item of one JSON list."""
    if form := FORMS.get(path.suffix.lower()):
        yield from _rows(path, form)
        return
    is_first = True
    for number, line in read_lines(path):
        if not line.strip():
            continue
        if is_first and line.lstrip().startswith("["):
            for index, record in enumerate(_list_of(path), start=1):
                yield "item", index, record
            return
        is_first = False
        yield "line", number, _parsed(line, f"{path}, line {number}")


def _rows(path: Path, form: str) -> Iterator[tuple[str, int, Any]]:
    """Yields ("row", number, object) for each row of a Parquet or Arrow file, without nulls."""
    try:
        with open(path, "rb") as file:
            names = read_column_names(path, file, form)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    columns = ["text", *(name for name in (*SPAN_KEYS, "answer") if name in names)]
    for row in read_rows(path, columns):
        cells = zip(columns, row.cells, strict=True)
        yield "row", row.line, {name: cell for name, cell in cells if cell is not None}


def _list_of(path: Path) -> list[Any]:
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise InputError(
            f"{path}: is a JSON list of {path.stat().st_size} bytes; expected at most "
            f"{_MAX_LIST_BYTES}, or one JSON object per line"
        )
    return _parsed("\n".join(line for _, line in read_lines(path)), str(path))


def _parsed(content: str, where: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{where}: is nested too deeply; expected a JSON object") from None
    except ValueError as error:
        raise InputError(f"{where}: is not JSON: {error}") from None


def _text_of(record: Mapping[str, Any], where: str) -> str:
    data = record.get("data")
    if isinstance(data, Mapping) and "text" not in data:
        strings = [value for value in data.values() if isinstance(value, str)]
        text = strings[0] if len(strings) == 1 else None
    else:
        text = (data if isinstance(data, Mapping) else record).get("text")
    if not isinstance(text, str):
        raise InputError(
            f"{where}: expected a text in 'text', got {text!r:.80}; its keys are "
            f"{', '.join(map(str, record)):.80}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: the text has half of a surrogate pair at character {error.start}; expected "
            "valid Unicode"
        ) from None
    return text


def _span_list(record: Mapping[str, Any], where: str) -> list[tuple[str, Any]] | None:
    """Returns (name for error messages, span) for each span, or None without annotations."""
    if "annotations" in record:  # Label Studio
        annotations = _list(record["annotations"], "annotations", where)
        for place, annotation in enumerate(annotations):
            key = f"annotations[{place}]"
            if not isinstance(annotation, Mapping):
                raise InputError(f"{where}: {key} is {annotation!r:.80}; expected an object")
            if not annotation.get("was_cancelled"):
                results = _list(annotation.get("result"), f"{key}.result", where)
                return [
                    (f"{key}.result[{index}].value", result.get("value"))
                    for index, result in enumerate(results)
                    if isinstance(result, Mapping) and result.get("type", "labels") == "labels"
                ]
        return None
    for key in SPAN_KEYS:
        if key in record:
            found = _list(record[key], key, where)
            return [(f"{key}[{index}]", span) for index, span in enumerate(found)]
    return [] if "answer" in record else None  # Prodigy may omit an empty list.


def _list(value: Any, key: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: {key} is {value!r:.80}; expected a list of spans")
    return value


def _entities(span: Any, key: str, text: str, where: str) -> list[Entity]:
    """Checks a span; returns (type, start, end) for each of its types, usually one."""
    quoted = None
    if isinstance(span, Mapping):
        start = span.get("start", span.get("start_offset"))
        end = span.get("end", span.get("end_offset"))
        kinds = span.get("type", span.get("label", span.get("labels")))
        quoted = span.get("text")
    elif isinstance(span, list) and len(span) == 3:
        start, end, kinds = span
    else:
        raise InputError(f"{where}: {key} is {span!r:.80}; {_EXPECTED}")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not kinds or not all(isinstance(kind, str) and kind.strip() for kind in kinds):
        raise InputError(f"{where}: {key} is {span!r:.80}, without a type; {_EXPECTED}")
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in (start, end)):
        raise InputError(f"{where}: {key} is {span!r:.80}; {_EXPECTED}, with whole numbers")
    if isinstance(quoted, str) and not _is_at(text, start, end, quoted):
        start, end = _from_utf16(text, start, end)
        if not _is_at(text, start, end, quoted):
            raise InputError(
                f"{where}: {key} has the text {quoted!r:.80}, but the characters "
                f"{start} to {end} are {text[max(start, 0) : max(end, 0)]!r:.80}; expected the "
                "offsets of its text"
            )
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{where}: {key} has the characters {start} to {end}; expected 0 <= start < end <= "
            f"{len(text)}, the length of the text"
        )
    return [(kind.strip(), start, end) for kind in kinds]


def _is_at(text: str, start: int, end: int, quoted: str) -> bool:
    if not 0 <= start < end <= len(text):
        return False
    return _SPACE.sub(" ", text[start:end]).strip() == _SPACE.sub(" ", quoted).strip()


def _from_utf16(text: str, start: int, end: int) -> tuple[int, int]:
    """Converts offsets in UTF-16 code units to characters; returns other offsets unchanged."""
    offsets = _utf16_offsets(text)
    if not 0 <= start < end < len(offsets):
        return start, end
    return offsets[start], offsets[end]


@functools.lru_cache(maxsize=1)  # All spans of a text follow each other.
def _utf16_offsets(text: str) -> list[int]:
    """Returns the character offset of each UTF-16 code unit of a text, and of its end."""
    sizes = (2 if ord(character) > 0xFFFF else 1 for character in text)
    return [place for place, size in enumerate(sizes) for _ in range(size)] + [len(text)]
