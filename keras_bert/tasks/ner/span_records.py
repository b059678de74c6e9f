r"""Reads annotated texts or words from JSON and Parquet files, and converts spans to tags of words.

A JSON file has one object per line, or is one list of objects. A Parquet or Arrow file has a column
`text` and one of SPAN_KEYS; a null means that there is no value. The forms of an object are:

    {"text": "In Oslo", "entities": [{"start": 3, "end": 7, "type": "LOC"}]}     as for EntityTagger
    {"text": "In Oslo", "label": [[3, 7, "LOC"]]}                                doccano
    {"text": "In Oslo", "entities": [{"start_offset": 3, "end_offset": 7, "label": "LOC"}]}  doccano
    {"text": "In Oslo", "spans": [{"start": 3, "end": 7, "label": "LOC"}]}       Prodigy
    {"text": "In Oslo", "ents": [{"start": 3, "end": 7, "label": "LOC"}]}        spaCy's to_json
    {"data": {"text": "In Oslo"}, "annotations": [{"result": [                   Label Studio
        {"value": {"start": 3, "end": 7, "labels": ["LOC"], "text": "Oslo"}}]}]}
    {"text": "In Oslo", "label": [{"start": 3, "end": 7, "labels": ["LOC"]}]}    its JSON-MIN
    {"tokens": ["In", "Oslo"], "ner_tags": ["O", "B-LOC"]}                       words, not a text

Offsets count characters as in Python's `str`. If a span contains its text, offsets in UTF-16 code
units, as JavaScript counts, are recognized. The spans of Label Studio's HyperText have
`globalOffsets`, which count the characters outside of tags. Other spans with a label, such as those
of other keys or of further annotations, are counted in a warning.

A text is one sentence and one document. It is split into the words that the exported model finds
(`TextWords`). A span that is not made of whole words is extended to whole words. Of overlapping
spans, the longest one is kept. Both are counted, and the first ones are logged.
"""

import functools
import json
import os
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from keras_bert.columnar_files import FORMS, read_schema
from keras_bert.errors import InputError
from keras_bert.files import parse_json, read_lines
from keras_bert.tasks.classification.tables import read_rows
from keras_bert.tasks.ner.processor import TextWords
from keras_bert.tasks.ner.tag_schemes import (
    DOCUMENT_START,
    OUTSIDE,
    UNKNOWN,
    Entity,
    Sentence,
    iob2_tags,
)
from keras_bert.text.tokenizer import BertTokenizer

ENDINGS = (".jsonl", ".json", *FORMS)
SPAN_KEYS = ("entities", "ents", "spans", "label", "labels")
_EXPECTED = 'expected a span such as {"start": 0, "end": 3, "type": "PER"} or [0, 3, "PER"]'
_WORDS = ("tokens", "words")
_TAGS = ("ner_tags", "tags", "ner", "labels")
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
        unit: the unit of `line`, such as "line".
        unknown: (start, end) of the parts of the text whose labels are unknown.
    """

    where: str
    line: int
    text: str
    spans: list[Entity] | None
    unit: str = "line"
    unknown: tuple[tuple[int, int], ...] = ()


def read_annotated(path: str | os.PathLike) -> tuple[list[AnnotatedText], int]:
    """Reads the texts of a file, and the number of texts that Prodigy's annotators rejected.

    Rejected and ignored texts of Prodigy are not in the list.

    Raises:
        InputError: the file cannot be read or has no text, or an object or a span is invalid.
    """
    texts, num_rejected, is_html = [], 0, False
    unread: Counter[str] = Counter()
    first_unread = ""
    for unit, number, record in _objects(Path(path)):
        where = f"{path}, {unit} {number}"
        if not isinstance(record, Mapping):
            raise InputError(f"{where}: expected a JSON object, got {record!r:.80}")
        if record.get("answer", "accept") != "accept":
            num_rejected += 1
            continue
        text = _text_of(record, where)
        places = _span_list(record, where, unread)
        first_unread = first_unread or where * bool(unread)
        spans = None
        if places is not None:
            if any(isinstance(span, Mapping) and "globalOffsets" in span for _, span in places):
                text, is_html = _text_content(text), True
            spans = [entity for key, span in places for entity in _entities(span, key, text, where)]
        texts.append(AnnotatedText(where, number, text, spans, unit))
    if not texts:
        found = f"only {num_rejected} rejected texts" if num_rejected else "no texts"
        raise InputError(f"{path}: contains {found}; expected JSON objects with texts and spans")
    if is_html:
        texts = [t if t.spans else replace(t, text=_text_content(t.text)) for t in texts]
    _log_unread(path, unread, first_unread)
    return texts, num_rejected


def _log_unread(path: object, counts: Mapping[str, int], where: str) -> None:
    """Logs how many spans with a label are not read; the first one of the file is at `where`."""
    if counts:
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        logging.warning(
            "%s: ignored spans with a label: %s; the first is in %s. Their words are read as words "
            "outside of entities",
            path,
            kinds,
            where.removeprefix(f"{path}, "),
        )


def read_tagged_words(path: str | os.PathLike) -> list[Sentence] | None:
    """Reads sentences of a file whose objects or rows are words and tags; None for another file.

    Each has a list of words in `tokens` or `words`, and a list of as many tags in `ner_tags`,
    `tags`, `ner` or `labels`, or no tags. Numbers are the indices of names in the metadata that the
    package datasets writes to Parquet and Arrow files; -100 and -1 are unknown labels. Objects
    without words are skipped, and [-DOCSTART-] starts a document.

    Raises:
        InputError: as `read_annotated`, or the words or tags of an object are invalid.
    """
    sentences: list[Sentence] = []
    names, tag_key, document, is_first = None, None, 0, True
    for unit, number, record in _objects(Path(path)):
        where = f"{path}, {unit} {number}"
        if is_first:
            keys = _token_keys(record)
            if keys is None:
                return None
            word_key, tag_key = keys
            names = _class_names(Path(path), tag_key)
        is_first = False
        words = record.get(word_key) if isinstance(record, Mapping) else None
        if not _is_list_of(words, str) or "" in words:
            raise InputError(f"{where}: {word_key!r} is {words!r:.80}; expected a list of words")
        tags = record.get(tag_key) if tag_key else []
        if tag_key and not (_is_list_of(tags, str | int) and len(tags) == len(words)):
            raise InputError(f"{where}: {tag_key!r} is {tags!r:.80}; expected {len(words)} tags")
        if words == [DOCUMENT_START]:
            document += bool(sentences)
        elif words:
            tags = tuple(_tag_name(tag, names, f"{where}: {tag_key!r}") for tag in tags)
            sentences.append(Sentence(tuple(words), tags, number, document, unit))
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected words and their tags")
    return sentences


def _token_keys(record: Any) -> tuple[str, str | None] | None:
    """Returns the keys of the words and of the tags of an object; None if it is of another form."""
    if not isinstance(record, Mapping):
        return None
    words = next((key for key in _WORDS if _is_list_of(record.get(key), str)), None)
    tags = next((key for key in _TAGS if _is_list_of(record.get(key), str | int)), None)
    is_text = "text" in record and not (words and tags and record[tags])
    return None if words is None or is_text else (words, tags)


def _is_list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _class_names(path: Path, column: str | None) -> list[str] | None:
    """Returns the names of a column's numbers in a file of the package datasets, or None."""
    form = FORMS.get(path.suffix.lower())
    if form is None or column is None:
        return None
    try:
        feature = json.loads(read_schema(path, form)[1][b"huggingface"])["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return feature["names"]
    except (ValueError, LookupError, TypeError):
        return None


def _tag_name(tag: str | int, names: list[str] | None, where: str) -> str:
    if isinstance(tag, str):
        return tag.strip()
    if tag in (-100, -1):
        return UNKNOWN
    if names is None:
        raise InputError(
            f"{where} has the number {tag}; expected names of tags, such as B-PER, or a "
            "Parquet file that the package datasets wrote (Dataset.to_parquet), which has the names"
        )
    if not 0 <= tag < len(names):
        raise InputError(f"{where} has the number {tag}; expected 0 to {len(names) - 1}")
    return names[tag]


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
        yield "line", number, parse_json(line, f"{path}, line {number}")


def _rows(path: Path, form: str) -> Iterator[tuple[str, int, Any]]:
    """Yields ("row", number, object) for each row of a Parquet or Arrow file, without nulls."""
    types, _ = read_schema(path, form)
    lists = {name: kind for name, kind in types.items() if "list" in kind}
    columns = [name for name in ("text", "answer", *SPAN_KEYS) if name in types]
    columns += [name for name in (*_WORDS, *_TAGS) if name in lists and name not in columns]
    # Spans with a label in other columns are counted.
    columns += [
        name
        for name, kind in lists.items()
        if "start" in kind and "label" in kind and name not in columns
    ]
    if "text" not in types and not {*_WORDS} & lists.keys():
        columns = ["text"]  # The error lists the columns.
    for row in read_rows(path, columns):
        cells = zip(columns, row.cells, strict=True)
        yield "row", row.line, {name: cell for name, cell in cells if cell is not None}


def _list_of(path: Path) -> list[Any]:
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise InputError(
            f"{path}: is a JSON list of {path.stat().st_size} bytes; expected at most "
            f"{_MAX_LIST_BYTES}, or one JSON object per line"
        )
    return parse_json("\n".join(line for _, line in read_lines(path)), str(path))


def _text_of(record: Mapping[str, Any], where: str) -> str:
    data = record.get("data")
    if isinstance(data, Mapping) and "text" not in data:
        strings = [value for value in data.values() if isinstance(value, str)]
        text = strings[0] if len(strings) == 1 else None
    else:
        text = (data if isinstance(data, Mapping) else record).get("text")
    if not isinstance(text, str):
        keys = f"the keys of data are {', '.join(data)}" if isinstance(data, Mapping) else ""
        raise InputError(
            f"{where}: expected a text in 'text', got {text!r:.80}; "
            f"{keys or 'its keys are ' + ', '.join(map(str, record)):.120}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: the text has half of a surrogate pair at character {error.start}; expected "
            "valid Unicode"
        ) from None
    return text


def _text_content(html: str) -> str:
    """Returns the text of HTML as Label Studio counts it: without tags, a line break for <br>."""
    texts: list[str] = []
    parser = HTMLParser()
    parser.handle_data = texts.append
    parser.handle_starttag = lambda tag, attributes: texts.append("\n" * (tag == "br"))
    parser.feed(html.replace("\r\n", "\n"))
    parser.close()
    return "".join(texts)


def _span_list(
    record: Mapping[str, Any], where: str, unread: Counter[str]
) -> list[tuple[str, Any]] | None:
    """Returns (name for error messages, span) for each span, or None without annotations.

    Other spans with a label are counted in `unread`, by a description of where they are.
    """
    if "annotations" not in record:
        used = next((key for key in SPAN_KEYS if key in record), None)
        for key, value in record.items():
            for items in value.values() if isinstance(value, Mapping) else [value]:
                if key != used and (count := _num_spans(items)):
                    unread[f"in {key!r}"] += count
        if used is None:
            return [] if "answer" in record else None  # Prodigy may omit an empty list.
        found = _list(record[used], used, where)
        return [(f"{used}[{index}]", span) for index, span in enumerate(found)]
    spans = None  # of Label Studio
    for place, annotation in enumerate(_list(record["annotations"], "annotations", where)):
        key = f"annotations[{place}]"
        if not isinstance(annotation, Mapping):
            raise InputError(f"{where}: {key} is {annotation!r:.80}; expected an object")
        if annotation.get("was_cancelled"):
            continue
        is_first = spans is None
        spans = spans or []
        for index, result in enumerate(_list(annotation.get("result"), f"{key}.result", where)):
            if not isinstance(result, Mapping):
                continue
            value, kind = result.get("value"), result.get("type", "labels")
            is_read = kind == "labels" or (
                kind == "hypertextlabels"
                and isinstance(value, Mapping)
                and "globalOffsets" in value
            )
            if is_first and is_read:
                spans.append((f"{key}.result[{index}].value", value))
            elif _num_spans([value]):
                unread["in further annotations" if is_read else f"of the type {kind}"] += 1
    return spans


def _num_spans(items: Any) -> int:
    """Counts the items of a list that are spans with a label; 0 if it is no list."""
    if not isinstance(items, list):
        return 0
    return sum(
        not {"start", "start_offset", "startOffset"}.isdisjoint(item)
        and any(
            key in ("type", "label", "choices", "taxonomy") or key.endswith("labels")
            for key in item
        )
        if isinstance(item, Mapping)
        else isinstance(item, list) and [type(x) for x in item] == [int, int, str]
        for item in items
    )


def _list(value: Any, key: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: {key} is {value!r:.80}; expected a list of spans")
    return value


def _entities(span: Any, key: str, text: str, where: str) -> list[Entity]:
    """Checks a span; returns (type, start, end) for each of its types, usually one."""
    quoted = None
    if isinstance(span, Mapping):
        offsets = span.get("globalOffsets", span)
        offsets = offsets if isinstance(offsets, Mapping) else {}
        start = offsets.get("start", offsets.get("start_offset"))
        end = offsets.get("end", offsets.get("end_offset"))
        names = ("type", "label", "labels", "hypertextlabels", "htmllabels")
        kinds = next((span[name] for name in names if name in span), None)
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


# --- spans to tags of words ---

_CHUNK_SIZE = 1024  # texts that are split at a time
_NAMED = 3


@dataclass
class SpanCounts:
    """The spans of a file that did not fit the words: how many, and where the first ones are.

    Attributes:
        misaligned: descriptions of spans that were extended to whole words.
        overlapping: descriptions of spans that were dropped because they overlap a longer one.
        without_words: descriptions of spans that were dropped because they contain no word.
    """

    misaligned: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    without_words: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, int]:
        """Returns the numbers of spans, as in results.json."""
        return {
            "misaligned_spans": len(self.misaligned),
            "overlapping_spans": len(self.overlapping),
            "spans_without_words": len(self.without_words),
        }

    def log(self) -> None:
        """Logs a warning for each kind of span that occurs."""
        for problem, found in (
            ("spans extended to whole words", self.misaligned),
            ("spans dropped because they overlap a longer one", self.overlapping),
            ("spans dropped because they contain no word", self.without_words),
        ):
            if found:
                first = "; ".join(found[:_NAMED])
                logging.warning("%s: %d, the first: %s", problem, len(found), first)


def tagged_sentences(
    texts: Sequence[AnnotatedText], tokenizer: BertTokenizer
) -> tuple[list[Sentence], SpanCounts]:
    """Splits texts into words, and converts their spans to IOB2 tags of the words.

    Texts without words are skipped. If a text is not annotated, its sentence has no tags.

    Raises:
        InputError: no text has a word.
    """
    sentences: list[Sentence] = []
    counts = SpanCounts()
    for each, words in zip(texts, _split(texts, tokenizer), strict=True):
        tags: list[str] = []
        if each.spans is not None:
            entities = _fitted(each, words, counts)
            tags = aligned_tags(each.text, entities, words, each.where)
            for start, end in each.unknown:
                covered = slice(*_covered(words, start, end))
                tags[covered] = [UNKNOWN if tag == OUTSIDE else tag for tag in tags[covered]]
        if words:
            strings = tuple(each.text[start:end] for start, end in words)
            sentences.append(Sentence(strings, tuple(tags), each.line, len(sentences), each.unit))
    if not sentences:
        raise InputError(f"{texts[0].where}: contains no words, and neither do the texts after it")
    return sentences, counts


def _split(
    texts: Sequence[AnnotatedText], tokenizer: BertTokenizer
) -> Iterator[list[tuple[int, int]]]:
    """Yields (start, end) of the words of each text, with character offsets."""
    text_words = TextWords(tokenizer)
    for first in range(0, len(texts), _CHUNK_SIZE):
        chunk = tf.constant([each.text for each in texts[first : first + _CHUNK_SIZE]])
        words, spans = text_words.split(chunk)
        places = list(zip(spans.starts.numpy().tolist(), spans.ends.numpy().tolist(), strict=True))
        for start, end in pairwise(words.row_splits.numpy().tolist()):
            yield places[start:end]


def _fitted(
    each: AnnotatedText, words: Sequence[tuple[int, int]], counts: SpanCounts
) -> list[Entity]:
    """Returns the spans of a text that are kept, extended to whole words, in text order."""
    fitted: list[tuple[Entity, int, int]] = []  # A span, its first word and the word after it.
    for kind, start, end in dict.fromkeys(each.spans):
        quoted = each.text[start:end]
        where = f"{each.where}, characters {start} to {end}, {quoted!r:.60}"
        first, last = _covered(words, start, end)
        if first >= last:
            counts.without_words.append(where)
            continue
        fit = (kind, words[first][0], words[last - 1][1])
        stripped = start + len(quoted) - len(quoted.lstrip()), start + len(quoted.rstrip())
        if fit[1:] != stripped:
            counts.misaligned.append(f"{where}, became {each.text[fit[1] : fit[2]]!r:.60}")
        fitted.append((fit, first, last))
    kept: list[Entity] = []
    is_taken = [False] * len(words)
    fitted.sort(key=lambda item: (item[0][1] - item[0][2], item[0][1]))  # The longest span first.
    for (kind, start, end), first, last in fitted:
        # A span overlaps one that is at least as long only if its first or last word is in both.
        if is_taken[first] or is_taken[last - 1]:
            where = f"{each.where}, characters {start} to {end}, {each.text[start:end]!r:.60}"
            counts.overlapping.append(f"{where} ({kind})")
        else:
            kept.append((kind, start, end))
            is_taken[first:last] = [True] * (last - first)
    return sorted(kept, key=lambda entity: entity[1])


def _covered(words: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Returns the first word with characters from `start` to `end`, and the word after the last."""
    return (
        bisect_right(words, start, key=lambda word: word[1]),
        bisect_left(words, end, key=lambda word: word[0]),
    )


def aligned_tags(
    text: str, entities: Sequence[Entity], words: Sequence[tuple[int, int]], where: str
) -> list[str]:
    """Converts the entities of a text to IOB2 tags, one for each word.

    Args:
        text: the text.
        entities: (type, start, end) of each entity, with character offsets.
        words: (start, end) of each word, with character offsets.
        where: the expression for `entities` in error messages, such as "entities[0]".

    Raises:
        InputError: an entity does not consist of complete words, or overlaps another one.
    """
    first = {start: place for place, (start, _) in enumerate(words)}
    last = {end: place for place, (_, end) in enumerate(words)}
    aligned: list[Entity] = []
    owners: dict[int, int] = {}
    for place, (kind, start, end) in enumerate(entities):
        if start not in first or end not in last:
            covered = [(a, b) for a, b in words if a < end and b > start]
            hint = ""
            if covered:
                a, b = covered[0][0], covered[-1][1]
                hint = f", such as {a} to {b}: {text[a:b]!r:.80}"
            raise InputError(
                f"{where}[{place}]: characters {start} to {end}, {text[start:end]!r:.80}, are not "
                f"complete words; expected the start and the end of words{hint}"
            )
        span = range(first[start], last[end] + 1)
        overlapped = next((owners[word] for word in span if word in owners), None)
        if overlapped is not None:
            raise InputError(
                f"{where}[{place}]: characters {start} to {end} overlap {where}[{overlapped}]; "
                "expected entities that do not overlap"
            )
        owners |= dict.fromkeys(span, place)
        aligned.append((kind, span.start, span.stop))
    return iob2_tags(aligned, len(words))
