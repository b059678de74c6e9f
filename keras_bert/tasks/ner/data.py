r"""Reads the sentences of a run from column files, annotated texts or TensorFlow Datasets.

The tags of each file, or the entities of its texts, are converted to IOB2. A model trained on them
has the labels O and, for each entity type, B-TYPE and I-TYPE.

A CoNLL column file has a word and its tag on each line:

    EU      NNP  B-ORG        columns separated by tabs or white space: one for the words and one
    rejects VBZ  O            for the tags
                              an empty line, or one of white space, ends the sentence
    -DOCSTART- -X- O          a document starts here

A byte-order mark and "\r" at line ends are ignored. A file with one column has words without tags.

A file that ends in .jsonl, .json, .parquet or .arrow has an object or a row for each text, which is
one sentence and one document, or for each sentence:

    {"text": "In Oslo", "entities": [{"start": 3, "end": 7, "type": "LOC"}]}     see tag_schemes.py
    {"tokens": ["In", "Oslo"], "ner_tags": ["O", "B-LOC"]}                       or "tags"

Tags may be numbers in Parquet and Arrow files of the package datasets, whose metadata have their
names; -100 and -1 are unknown labels.

A dataset of TensorFlow Datasets, such as conll2003, conll2002/es or wikiann/de, must have a column
`tokens`, and a column `ner` or `tags` with the tags; it does not mark the start of documents.
"""

import json
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from keras_bert.columnar_files import FORMS, read_metadata
from keras_bert.errors import InputError
from keras_bert.files import check_no_nul, check_schema, read_lines, write_bytes
from keras_bert.tasks.checks import check_list, check_same_length, check_strings, in_order_of
from keras_bert.tasks.ner.processor import split_words
from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    UNKNOWN,
    Entity,
    check_tags,
    entity_types,
    iob2_labels,
    is_inside,
    label_tags,
    split_tag,
    tags_of,
    to_iob2,
)
from keras_bert.tasks.settings import NerSettings
from keras_bert.tasks.tables import (
    JSON_ENDINGS,
    Row,
    Splits,
    open_prepared,
    read_rows,
    read_split,
    read_splits,
)
from keras_bert.text.tokenizer import BertTokenizer

DOCUMENT_START = "-DOCSTART-"  # As the only word of a sentence: a document starts.


class Sentence(NamedTuple):
    """A sentence of W words.

    Attributes:
        words: the W words.
        tags: the W tags; empty if the file has no tags.
        line: the line number of the first word, counted from 1; or the number of the object or row
            with the whole sentence, if `unit` is not empty.
        document: the index of the sentence's document in the file; 0 if no line starts a document.
        unit: the unit of `line` in error messages, such as "row", for a sentence of one object.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int
    document: int = 0
    unit: str = ""

    def where(self, index: int) -> str:
        """Describes where the word with an index is, such as "line 3"."""
        if self.unit:
            return f"{self.unit} {self.line}, word {index + 1}"
        return f"line {self.line + index}"


class TaggedSentences:
    """The sentences of a file or dataset `source`, with tags in IOB2.

    `counts` are the numbers of entities that do not fit the words of their texts, {name of
    PROBLEMS: number}. With `has_context`, the input of a sentence includes its neighbors in the
    document.
    """

    def __init__(
        self,
        source: str,
        sentences: Sequence[Sentence],
        counts: Mapping[str, int],
        has_context: bool,
    ):
        self.source, self.sentences, self.counts = source, sentences, counts
        self.documents = [each.document for each in sentences] if has_context else None

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    @property
    def tags(self) -> list[tuple[str, ...]] | None:
        """The tags of each sentence; None if the file has no tags."""
        tags = [sentence.tags for sentence in self.sentences]
        return tags if tags[0] else None

    @property
    def types(self) -> set[str]:
        """The entity types in the file."""
        return {split_tag(tag)[1] for tags in self.tags or [] for tag in tags if is_inside(tag)}


def read_data(
    ner: NerSettings, *, new_tokenizer: Callable[[], BertTokenizer], **do: bool
) -> Splits:
    """Reads the sentences of a run, `TaggedSentences`; `do` has do_train, do_eval and do_predict.

    `new_tokenizer` creates the model's tokenizer, which splits the texts of files with spans.
    """

    def read(source: Path | str, tags_needed: bool) -> TaggedSentences:
        if isinstance(source, str):  # A split of TensorFlow Datasets.
            rows, source = read_split(builder, source), f"{builder.data_path}, split {source}"
            sentences = _sentences_of_words(source, rows, column, names)
            return _tagged(source, sentences, ner, tags_needed)
        if source.suffix.lower() not in (*JSON_ENDINGS, *FORMS):
            indices = ner.column_indices
            sentences = read_conll(source, indices["token"], indices["tag"])
            return _tagged(source, sentences, ner, tags_needed)
        columns = ("text", *_ENTITY_COLUMNS, "tokens", *_TAG_COLUMNS)
        rows = list(read_rows(source, (), columns))
        if not rows:
            raise InputError(f"{source}: contains no texts; expected texts and their entities")
        cells = {name for name, value in rows[0].cells.items() if value is not None}
        has_words = "tokens" in cells and (cells & {*_TAG_COLUMNS} or "text" not in cells)
        if not has_words or "entities" in cells:
            sentences, counts = _sentences_of_texts(source, rows, new_tokenizer(), tags_needed)
            return _tagged(source, sentences, replace(ner, tag_scheme="iob2"), tags_needed, counts)
        tags = next((name for name in _TAG_COLUMNS if name in cells), "")
        sentences = _sentences_of_words(source, rows, tags, _class_names(source, tags))
        return _tagged(source, sentences, ner, tags_needed)

    if ner.tfds:
        builder, column = _open_dataset(ner)
        names = builder.info.features[column].feature.names
        sources = [
            next((split for split in splits if split in builder.info.splits), None)
            for splits in (("train",), ("dev", "validation"), ("test",))
        ]
        expected = f"a train split of --task_name={ner.task_name}"
    else:
        sources = [
            Path(x) if x else None for x in (ner.train_file, ner.eval_file, ner.predict_file)
        ]
        expected = "--train_file with a CoNLL column file or texts with entities"
    train, dev, test = sources
    return read_splits(read, train, {"": dev}, {"test": test}, expected, **do)


def _tagged(
    source: object,
    sentences: list[Sentence],
    ner: NerSettings,
    tags_needed: bool,
    counts: Mapping[str, int] | None = None,
) -> TaggedSentences:
    """Checks the tags of sentences, converts them to IOB2, and logs statistics."""
    if ner.document_context and sentences[-1].document == 0:
        logging.warning("%s: no document boundaries found; all sentences form one document", source)
    size = f"{len(sentences)} sentences, {sum(len(s.words) for s in sentences)} words"
    if not sentences[0].tags:
        if tags_needed:
            raise InputError(f"{source}: has words without tags; expected words and their tags")
        logging.info("%s: %s; there are no tags, so no scores are computed", source, size)
        return TaggedSentences(str(source), sentences, counts or {}, ner.document_context)
    names = {tag for sentence in sentences for tag in sentence.tags}
    if UNKNOWN in names and OUTSIDE not in names:
        raise InputError(
            f"{source}: has the tag - (unknown label), but not O; expected O for words outside of "
            "entities"
        )
    rows, scheme, num_disallowed = check_tags(
        [sentence.tags for sentence in sentences],
        lambda sentence, word: f"{source}, {sentences[sentence].where(word)}",
        ner.tag_scheme,
    )
    num_entities = sum(tag.startswith("B") for row in rows for tag in row)
    logging.info("%s: %s, %d entities, scheme %s", source, size, num_entities, scheme)
    if num_unknown := sum(row.count(UNKNOWN) for row in rows):
        problem = "words are unknown; they are not trained on or scored"
        logging.warning("%s: the labels of %d %s", source, num_unknown, problem)
    if num_disallowed:
        problem = f"violate the scheme {scheme}; they are read by the rules of conlleval"
        logging.warning("%s: %d tags %s", source, num_disallowed, problem)
    tagged = [
        sentence._replace(tags=tuple(row)) for sentence, row in zip(sentences, rows, strict=True)
    ]
    return TaggedSentences(str(source), tagged, counts or {}, ner.document_context)


def make_labels(train: TaggedSentences, saved: Sequence[str] | None) -> list[str]:
    """Returns the IOB2 labels for the entity types of the training sentences.

    `saved` are the checkpoint's labels in the order of its logits, or None. If they are the same
    labels, the result has their order.
    """
    if not train.types:
        raise InputError(f"{train.source}: has no entities (every tag is O); expected at least one")
    labels = iob2_labels(sorted(train.types))
    return in_order_of(saved, labels) or labels


def check_types(file: TaggedSentences, labels: Sequence[str], source: object) -> None:
    """Checks that a tagger's labels include all entity types of a file."""
    types = entity_types(labels)
    for kind in sorted(file.types - {*types}):
        where = next(
            sentence.where(index)
            for sentence in file.sentences
            for index, tag in enumerate(sentence.tags)
            if is_inside(tag) and split_tag(tag)[1] == kind
        )
        raise InputError(
            f"{file.source}, {where}: has an entity of type {kind!r}, which {source} does not "
            f"have; expected one of {', '.join(types)}"
        )


# --- column files ---


def read_conll(
    path: str | os.PathLike, token_column: int = 0, tag_column: int = -1
) -> list[Sentence]:
    """Reads the sentences of a column file, with the tags in the scheme of the file.

    Columns are counted from 0, or from the end if negative.
    """
    sentences: list[Sentence] = []
    rows: list[tuple[str, ...]] = []  # The word and the tag of each line of the sentence.
    first_line = document = 0
    width, width_line = 0, 0  # The number of columns, and the first line that has it.

    def end_sentence() -> None:
        if rows:
            words, *tags = zip(*rows, strict=True)
            sentences.append(Sentence(words, tags[0] if tags else (), first_line, document))
            rows.clear()

    for number, line in read_lines(Path(path)):
        check_no_nul(path, number, line)
        # `split()` would also split at a no-break space, which may be a word.
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip(" \t") or columns[0] == DOCUMENT_START:
            end_sentence()
            document += bool(line.strip(" \t") and sentences)
            continue
        where = f"{path}, line {number}"
        if not width:
            width, width_line = len(columns), number
            indices = {"token": token_column} | ({"tag": tag_column} if width > 1 else {})
            for role, index in indices.items():
                if not -width <= index < width:
                    raise InputError(
                        f"{where}: --columns={role}={index}, but the line has {width} columns"
                    )
        if len(columns) != width:
            raise InputError(
                f"{where}: expected {width} columns, as in line {width_line}; got {len(columns)}: "
                f"{line[:80]!r}"
            )
        if not rows:
            first_line = number
        rows.append(tuple(columns[index].strip(" ") for index in indices.values()))
        if "" in rows[-1]:
            index = [*indices.values()][rows[-1].index("")]
            raise InputError(f"{where}: column {index} is empty; expected a word and its tag")
    end_sentence()
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected a word and its tag on each line")
    # The first column of CoNLL-U and GermEval has numbers.
    first = int(sentences[0].words[0] == "1")
    numbers = tuple(map(str, range(first, first + max(len(s.words) for s in sentences))))
    if width > 2 and all(s.words == numbers[: len(s.words)] for s in sentences):
        raise InputError(
            f"{path}: column {token_column} has the number of each word; expected words, probably "
            f"--columns=token={token_column + 1}"
        )
    return sentences


def write_conll(path: str | os.PathLike, sentences: Sequence[Sequence[Sequence[str]]]) -> None:
    """Writes sentences in the format of conlleval.

    Columns are separated by spaces, and an empty line follows each sentence. A sentence is given as
    a sequence of columns, such as words, gold tags and predicted tags, each with W strings. White
    space within a word or a tag becomes "_".
    """
    lines = []
    for columns in sentences:
        for word, *tags in zip(*columns, strict=True):
            lines.append(" ".join("_".join(value.split()) or "_" for value in (word, *tags)))
        lines.append("")
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode(errors="replace"))


# --- rows of words: JSON, Parquet and Arrow files, TensorFlow Datasets ---

_TAG_COLUMNS = ("ner_tags", "tags")


def _sentences_of_words(
    path: object, rows: Sequence[Row], tag_column: str, names: Sequence[str]
) -> list[Sentence]:
    """Converts rows of words and, if there is a column of tags, their tags.

    Rows without words are skipped, and [-DOCSTART-] starts a document. `names` are the names of
    tags that are numbers.
    """
    schema = {"tokens": [str]} | ({tag_column: [(str, int)]} if tag_column else {})
    sentences: list[Sentence] = []
    document = 0
    for row in rows:
        check_schema(f"{row.where}:", row.cells, schema)
        words, tags = row.cells["tokens"], row.cells[tag_column] if tag_column else []
        if "" in words:
            raise InputError(f"{row.where}: 'tokens' is {words!r:.80}; expected a list of words")
        if tag_column:
            check_same_length(**{f"{row.where}: tokens": words, tag_column: tags})
        if words == [DOCUMENT_START]:
            document += bool(sentences)
        elif words:
            tags = tuple(_tag_name(tag, names, f"{row.where}: {tag_column!r}") for tag in tags)
            sentences.append(Sentence(tuple(words), tags, row.number, document, row.unit))
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected words and their tags")
    return sentences


def _class_names(path: Path, column: str) -> list[str]:
    """Returns the names of a column's numbers in a file of the package datasets, or []."""
    try:
        info = json.loads(read_metadata(path, FORMS[path.suffix.lower()])[b"huggingface"])
        feature = info["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return feature["names"]
    except (ValueError, LookupError, TypeError):
        return []


def _tag_name(tag: str | int, names: Sequence[str], where: str) -> str:
    if isinstance(tag, str):
        return tag.strip()
    if tag in (-100, -1):
        return UNKNOWN
    if not 0 <= tag < len(names):
        expected = f"0 to {len(names) - 1}"
        if not names:
            expected = (
                "names of tags, such as B-PER, or a Parquet file that the package datasets wrote "
                "(Dataset.to_parquet), which has the names"
            )
        raise InputError(f"{where} has the number {tag}; expected {expected}")
    return names[tag]


def _open_dataset(ner: NerSettings) -> tuple[Any, str]:
    """Opens a prepared dataset of TensorFlow Datasets; returns its builder and column of tags."""
    for name in ("train_file", "eval_file", "predict_file", "columns"):
        if getattr(ner, name):
            raise InputError(f"--{name} cannot be combined with --tfds; expected --task_name")
    name = ner.task_name
    if not name:
        raise InputError("--task_name is missing; expected a dataset for --tfds, such as conll2003")
    # The default config has the name of the dataset.
    builder = open_prepared(name if "/" in name else f"{name}/{name}", ner.data_dir)
    features = builder.info.features
    column = next((column for column in ("ner", "tags") if column in features), None)
    if column is None or "tokens" not in features:
        raise InputError(
            f"--task_name={name}: has the columns {', '.join(features)}; expected tokens and ner "
            "or tags"
        )
    return builder, column


# --- texts with entities ---

_ENTITY = {"start": int, "end": int, "type": str}
# The names of the list of entities: ours, also of doccano; of doccano and Label Studio; Prodigy's.
_ENTITY_COLUMNS = ("entities", "label", "labels", "spans")
# How entities of a text may not fit its words, by the name of their number in results.json.
PROBLEMS = {
    "misaligned_spans": "spans extended to whole words",
    "overlapping_spans": "spans dropped because they overlap a longer one",
    "spans_without_words": "spans dropped because they contain no word",
}


def _sentences_of_texts(
    path: Path, rows: Sequence[Row], tokenizer: BertTokenizer, tags_needed: bool
) -> tuple[list[Sentence], dict[str, int]]:
    """Splits texts into words, and converts their entities to IOB2 tags.

    If not `tags_needed` and a text has no entities, not even an empty list, the sentences have no
    tags. Also returns the numbers of entities that do not fit the words, under the names of
    PROBLEMS.
    """
    for row in rows:
        if "text" not in row.cells and {"annotations", "data"} <= row.cells.keys():
            raise InputError(
                f"{row.where}: is a task of Label Studio's JSON export; expected its export "
                "JSON-MIN"
            )
    num_rows = len(rows)
    rows = [row for row in rows if row.cells.get("answer", "accept") == "accept"]
    if len(rows) < num_rows:
        logging.info("%s: skipped %d texts that are not accepted", path, num_rows - len(rows))
    lists = {name for row in rows for name in _ENTITY_COLUMNS if _is_list(row.cells.get(name))}
    column = next((name for name in _ENTITY_COLUMNS if name in lists), "entities")
    has_tags = tags_needed or all(row.cells.get(column) is not None for row in rows)
    schema = {"text": str} | ({column: [_ENTITY]} if has_tags else {})
    for row in rows:
        if column in row.cells:
            row.cells[column] = plain_entities(row.cells[column], row.cells.get("text"))
        check_schema(f"{row.where}:", row.cells, schema)
    texts = [row.cells["text"] for row in rows]
    problems: dict[str, list[str]] = {name: [] for name in PROBLEMS} if has_tags else {}
    sentences: list[Sentence] = []
    for row, text, words in zip(rows, texts, split_words(texts, tokenizer), strict=True):
        tags: list[str] = []
        if has_tags:
            tags, misfits = fit_entities(row.cells[column], text, words, f"{row.where}: {column}")
            for name, description in misfits:
                problems[name].append(description)
        if words:
            strings = tuple(text[start:end] for start, end in words)
            sentences.append(Sentence(strings, tuple(tags), row.number, len(sentences), row.unit))
    if not sentences:
        raise InputError(f"{path}: contains no words; expected texts")
    if num_empty := len(texts) - len(sentences):
        logging.warning("%s: skipped %d texts without words", path, num_empty)
    _log_problems(problems)
    return sentences, {name: len(descriptions) for name, descriptions in problems.items()}


def _log_problems(problems: Mapping[str, Sequence[str]]) -> None:
    """Warns of the entities that do not fit the words; those of each name of PROBLEMS."""
    for name, descriptions in problems.items():
        if descriptions:
            first = "; ".join(descriptions[:3])
            logging.warning("%s: %d, the first: %s", PROBLEMS[name], len(descriptions), first)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def plain_entities(items: Any, text: Any = None) -> Any:
    """Converts the entities of annotation tools to {"start", "end", "type"}.

    These are [start, end, type] (doccano, spaCy), and objects with a `label` (Prodigy; doccano,
    with start_offset and end_offset) or `labels`, a list of one (Label Studio's JSON-MIN), in place
    of the type. Label Studio counts UTF-16 units, which its copy of the entity's text shows. Other
    values stay as they are.
    """

    def plain(item: Any) -> Any:
        if _is_list(item) and len(item) == 3:
            return dict(zip(("start", "end", "type"), item, strict=True))
        if not isinstance(item, Mapping) or "type" in item:
            return item
        label = item.get("label", item.get("labels"))
        if _is_list(label) and len(label) == 1:
            label = label[0]
        if not isinstance(label, str):
            return item
        start, end = (item.get(name, item.get(f"{name}_offset")) for name in ("start", "end"))
        quoted = item.get("text")
        if isinstance(start, int) and isinstance(end, int) and isinstance(text, str):
            units = text.encode("utf-16-le", "surrogatepass")
            parts = units[: 2 * start], units[2 * start : 2 * end]
            before, inside = (part.decode("utf-16-le", "replace") for part in parts)
            if quoted == inside and text[start:end] != quoted:
                start, end = len(before), len(before) + len(inside)
        return {"start": start, "end": end, "type": label}

    return [*map(plain, items)] if _is_list(items) else items


def fit_entities(
    items: Sequence[Mapping[str, Any]],
    text: str,
    words: Sequence[tuple[int, int]],
    where: str,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Converts the entities of a text to IOB2 tags, one for each word.

    Entities are extended to whole words, and of overlapping ones, the longest is used. White space
    around an entity is ignored, and so are repeated entities. `words` are the (start, end) of each
    word in characters; `where` is the name of `items`, the list of entities, in messages.

    Returns:
        The tags; and for each entity that does not fit the words, a name of PROBLEMS and a
        description.
    """
    problems: list[tuple[str, str]] = []
    spans: dict[tuple[str, int, int], tuple[int, int, str]] = {}  # in characters: in words
    for index, item in enumerate(items):
        start, end, kind = int(item["start"]), int(item["end"]), item["type"].strip()
        if not 0 <= start < end <= len(text) or not kind:
            raise InputError(
                f"{where}[{index}] is {item!r:.80}; expected a type, and 0 <= start < end <= "
                f"{len(text)}, the length of the text"
            )
        if (kind, start, end) in spans:
            continue
        quoted = text[start:end]
        described = f"{where}[{index}]: characters {start} to {end}, {quoted!r:.60} ({kind})"
        # The first word with one of the characters, and the word after the last.
        first = bisect_right(words, start, key=lambda word: word[1])
        last = bisect_left(words, end, key=lambda word: word[0])
        spans[kind, start, end] = first, last, described
        if first >= last:
            problems.append(("spans_without_words", described))
            continue
        stripped = start + len(quoted) - len(quoted.lstrip()), start + len(quoted.rstrip())
        extended = words[first][0], words[last - 1][1]
        if extended != stripped:
            in_words = f"{extended[0]} to {extended[1]}, {text[slice(*extended)]!r:.60}"
            problems.append(("misaligned_spans", f"{described}, in the words {in_words}"))
    # The longest span in characters first.
    fitted = [(kind, *span) for (kind, *_), span in spans.items() if span[0] < span[1]]
    fitted.sort(key=lambda span: (words[span[1]][0] - words[span[2] - 1][1], span[1]))
    is_taken = [False] * len(words)
    entities: list[Entity] = []
    for kind, first, last, described in fitted:
        # A span overlaps one that is at least as long only if its first or last word is in both.
        if is_taken[first] or is_taken[last - 1]:
            problems.append(("overlapping_spans", described))
        else:
            entities.append((kind, first, last))
            is_taken[first:last] = [True] * (last - first)
    return tags_of(entities, len(words)), problems


# --- arguments of the Python API ---


def are_sentences(value: Any) -> bool:
    """Returns whether an argument is a list of sentences (lists of words), and not of texts."""
    items = check_list("inputs", value, "strings, or of lists of words")
    return bool(items) and not isinstance(items[0], str | bytes)


def check_sentences(name: str, value: Any) -> list[list[str]]:
    """Checks that an argument is a list of lists of words, and returns it."""
    items = check_list(name, value, "lists of words")
    sentences = [check_strings(f"{name}[{index}]", item) for index, item in enumerate(items)]
    for index, words in enumerate(sentences):
        if "" in words:
            raise InputError(f"{name}[{index}][{words.index('')}] is ''; expected a word")
    return sentences


def given_types(inputs: Any, targets: Any) -> list[str]:
    """Returns the sorted entity types of the arguments of `EntityTagger.fit`."""
    if are_sentences(inputs):
        rows = check_word_tags(check_sentences("inputs", inputs), targets)
        types = {split_tag(tag)[1] for row in rows for tag in row if is_inside(tag)}
    else:
        rows = check_list("targets", targets, "lists of entities")
        rows = [
            plain_entities(check_list(f"targets[{i}]", row, "entities"))
            for i, row in enumerate(rows)
        ]
        check_schema("targets", rows, [[_ENTITY]])
        types = {item["type"].strip() for row in rows for item in row}
    if not types:
        raise InputError("fit() got no entities; expected at least one")
    return sorted(types)


def check_word_tags(
    sentences: Sequence[Sequence[str]], tags: Any, labels: Sequence[str] | None = None
) -> list[list[str]]:
    """Checks the tags of sentences, and converts them to IOB2 by the rules of conlleval.

    `tags` has a list of tags for each sentence, one tag per word. They are O, - for an unknown
    label, and the model's `labels`; or tags of one scheme, as in files, with its entity types, or
    with any types if there are no `labels`.
    """
    rows = check_list("targets", tags, "lists of tags")
    check_same_length(inputs=sentences, targets=rows)
    rows = [check_strings(f"targets[{index}]", row) for index, row in enumerate(rows)]
    for index, (words, row) in enumerate(zip(sentences, rows, strict=True)):
        check_same_length(**{f"inputs[{index}]": words, f"targets[{index}]": row})
    standard = {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    standard |= zip(labels or (), label_tags(labels or ()), strict=True)
    if all(tag in standard for row in rows for tag in row):
        return [to_iob2([standard[tag] for tag in row]) for row in rows]
    types = entity_types(labels or ())
    checked, scheme, _ = check_tags(
        rows, lambda *index: "targets[{}][{}]".format(*index), "", types
    )
    logging.info("tags: scheme %s", scheme)
    for index, row in enumerate(checked):
        for position, tag in enumerate(row):
            if labels and is_inside(tag) and split_tag(tag)[1] not in types:
                raise InputError(
                    f"targets[{index}][{position}] is {rows[index][position]!r}; expected one of "
                    f"{', '.join(labels)}"
                )
    return checked


def check_entities(
    texts: Sequence[str],
    value: Any,
    labels: Sequence[str],
    words: Sequence[Sequence[tuple[int, int]]],
) -> list[list[str]]:
    """Checks the entities of texts, and converts them to IOB2 tags of the words of each text.

    `value` has a list of entities {"start": int, "end": int, "type": str} for each text, or of
    entities as annotation tools export them, with character offsets. `labels` are the model's
    labels, and `words` the (start, end) of each word. Entities that do not fit the words are
    changed or dropped as in files, with a warning.
    """
    rows = check_list("targets", value, "lists of entities")
    check_same_length(inputs=texts, targets=rows)
    types = entity_types(labels)
    tags = []
    problems: dict[str, list[str]] = {name: [] for name in PROBLEMS}
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        name = f"targets[{index}]"
        items = plain_entities(check_list(name, row, "entities"), text)
        check_schema(name, items, [_ENTITY])
        tags_of_text, misfits = fit_entities(items, text, words[index], name)
        for problem, description in misfits:
            problems[problem].append(description)
        for i, item in enumerate(items):
            if item["type"].strip() not in types:
                raise InputError(
                    f"{name}[{i}] is {item!r:.80}; expected a type of {', '.join(types)}"
                )
        tags.append(tags_of_text)
    _log_problems(problems)
    return tags
