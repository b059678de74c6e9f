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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from keras_bert.columnar_files import FORMS, read_metadata
from keras_bert.errors import InputError
from keras_bert.files import check_no_nul, check_schema, read_lines, write_bytes
from keras_bert.tasks.checks import check_list, check_same_length, check_strings, in_order_of
from keras_bert.tasks.ner.processor import split_words
from keras_bert.tasks.ner.tag_schemes import (
    ENTITY,
    OUTSIDE,
    PROBLEMS,
    UNKNOWN,
    Entity,
    check_entities_of_text,
    check_tags,
    entity_types,
    fit_entities,
    iob2_labels,
    is_inside,
    label_tags,
    schemes_of,
    split_tag,
    standard_tag,
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
# The settings that apply only to files, not to TensorFlow Datasets.
_FILE_SETTINGS = ("train_file", "eval_file", "test_file", "columns")


class Sentence(NamedTuple):
    """A sentence of W words.

    Attributes:
        words: the W words.
        tags: the W tags in the scheme of the file; empty if the file has no tags.
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


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of a file or dataset, and their tags in IOB2.

    `source` names the file or dataset in error messages. `tags` has a list of tags for each
    sentence; None if the file has no tags. `counts` are the numbers of entities that do not fit the
    words of their texts, {name of PROBLEMS: number}.
    """

    source: str
    sentences: list[Sentence]
    tags: list[list[str]] | None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def types(self) -> set[str]:
        """The entity types in the file."""
        return {split_tag(tag)[1] for tags in self.tags or [] for tag in tags if is_inside(tag)}


def read_data(
    ner: NerSettings, *, new_tokenizer: Callable[[], BertTokenizer], **do: bool
) -> Splits:
    """Reads the sentences of a run, `TaggedSentences`; `do` has do_train, do_eval and do_predict.

    `new_tokenizer` creates the model's tokenizer, which splits the texts of files with spans.

    Raises:
        InputError: a file is invalid, the training sentences are missing, or there is nothing to
            do.
    """
    if ner.tfds:
        read, splits = _dataset_reader(ner)
        return read_splits(read, *splits, f"a train split of --task_name={ner.task_name}", **do)

    def read_file(path: Path, tagged: bool) -> TaggedSentences:
        return _read_file(path, ner, new_tokenizer, tagged)

    names = (ner.train_file, ner.eval_file, ner.test_file)
    files = [Path(name) if name else None for name in names]
    expected = "--train_file with a CoNLL column file or texts with entities"
    return read_splits(read_file, *files, expected, **do)


def _read_file(
    path: Path, ner: NerSettings, new_tokenizer: Callable[[], BertTokenizer], tags_needed: bool
) -> TaggedSentences:
    if path.suffix.lower() not in (*JSON_ENDINGS, *FORMS):
        columns = ner.column_indices
        sentences = read_conll(path, columns["token"], columns["tag"])
        return tagged(str(path), sentences, ner, tags_needed)
    rows = list(read_rows(path, (), _COLUMNS))
    if not rows:
        raise InputError(f"{path}: contains no texts; expected texts and their entities")
    cells = rows[0].cells
    if cells.get("tokens") is not None and cells.get("entities") is None:
        tag_column = next((x for x in ("ner_tags", "tags") if cells.get(x) is not None), "")
        names = _class_names(path, tag_column)
        sentences = _sentences_of_words(path, rows, tag_column, names)
        return tagged(str(path), sentences, ner, tags_needed)
    sentences, counts = _sentences_of_texts(path, rows, new_tokenizer(), tags_needed)
    return tagged(str(path), sentences, replace(ner, tag_scheme="iob2"), tags_needed, counts)


def tagged(
    source: str,
    sentences: list[Sentence],
    ner: NerSettings,
    tags_needed: bool = True,
    counts: Mapping[str, int] | None = None,
) -> TaggedSentences:
    """Checks the tags of sentences, converts them to IOB2, and logs statistics.

    `source` names the file or dataset in messages. `counts` are those of the result.

    Raises:
        InputError: a tag is unknown, or there are no tags, but `tags_needed` is true.
    """
    if ner.document_context and sentences[-1].document == 0:
        logging.warning("%s: no document boundaries found; all sentences form one document", source)
    size = f"{len(sentences)} sentences, {sum(len(s.words) for s in sentences)} words"
    if not sentences[0].tags:
        if tags_needed:
            raise InputError(f"{source}: has words without tags; expected words and their tags")
        logging.info("%s: %s; there are no tags, so no scores are computed", source, size)
        return TaggedSentences(source, sentences, None)
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
    tags = [to_iob2(row) for row in rows]
    num_entities = sum(tag.startswith("B") for row in tags for tag in row)
    logging.info("%s: %s, %d entities, scheme %s", source, size, num_entities, scheme)
    if num_unknown := sum(row.count(UNKNOWN) for row in tags):
        logging.warning(
            "%s: the labels of %d words are unknown; they are not trained on or scored",
            source,
            num_unknown,
        )
    if num_disallowed:
        logging.warning(
            "%s: %d tags violate the scheme %s; they are read by the rules of conlleval",
            source,
            num_disallowed,
            scheme,
        )
    return TaggedSentences(source, sentences, tags, counts or {})


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
    """Checks that a tagger's labels include all entity types of a file.

    `source` is the file or checkpoint that defines the labels, for the error message.
    """
    types = entity_types(labels)
    for kind in sorted(file.types - {*types}):
        sentence, index = next(
            (sentence, index)
            for sentence, tags in zip(file.sentences, file.tags, strict=True)
            for index, tag in enumerate(tags)
            if is_inside(tag) and split_tag(tag)[1] == kind
        )
        raise InputError(
            f"{file.source}, {sentence.where(index)}: tag {sentence.tags[index]!r}, but "
            f"{source} has no entity of type {kind!r}; expected one of {', '.join(types)}"
        )


# --- column files ---


def read_conll(
    path: str | os.PathLike,
    token_column: int = 0,
    tag_column: int = -1,
) -> list[Sentence]:
    """Reads the sentences of a column file.

    Columns are counted from 0, or from the end if negative.

    Raises:
        InputError: the file cannot be read or has no sentence; or a line has a NUL character, a
            different number of columns than the first one, too few columns, or an empty word or
            tag; or the words are numbered, and `token_column` is the column of their numbers.
    """
    sentences: list[Sentence] = []
    words, tags, first_line, document, started = [], [], 0, 0, False
    width, hint = None, ""  # width: (number of columns, line number) of the first word.

    def end_sentence() -> None:
        if words:
            sentences.append(Sentence(tuple(words), tuple(tags), first_line, document))
            words.clear()
            tags.clear()

    for number, line in read_lines(Path(path)):
        check_no_nul(path, number, line)
        if not line.strip(" \t"):
            end_sentence()
            continue
        # `split()` would also split at a no-break space, which may be a word.
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if columns[0] == DOCUMENT_START:
            end_sentence()
            document += started
            started = True
            continue
        started = True
        if width is None:
            width = (len(columns), number)
            hint = "; comments are not supported: remove these lines" * line.startswith("#")
        where = f"{path}, line {number}"
        if len(columns) != width[0]:
            raise InputError(
                f"{where}: expected {width[0]} columns, as in line {width[1]}; got "
                f"{len(columns)}: {line[:80]!r}{hint}"
            )
        if not words:
            first_line = number
        words.append(_column(columns, token_column, "token", where, hint))
        if len(columns) > 1:
            tags.append(_column(columns, tag_column, "tag", where, hint))
    end_sentence()
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected a word and its tag on each line")
    if width[0] > 2 and _are_numbered(sentences):
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


def _are_numbered(sentences: Sequence[Sentence]) -> bool:
    """Returns whether the words of all sentences are the numbers from 0 or from 1."""
    first = sentences[0].words[0]
    longest = max(len(sentence.words) for sentence in sentences)
    if longest == 1 or first not in ("0", "1"):
        return False
    numbers = tuple(map(str, range(int(first), int(first) + longest)))
    return all(sentence.words == numbers[: len(sentence.words)] for sentence in sentences)


def _column(columns: Sequence[str], index: int, role: str, where: str, hint: str) -> str:
    if not -len(columns) <= index < len(columns):
        raise InputError(
            f"{where}: --columns={role}={index}, but the line has {len(columns)} columns{hint}"
        )
    value = columns[index].strip(" ")
    if not value:
        raise InputError(f"{where}: column {index} is empty; expected a word and its tag")
    return value


# --- JSON, Parquet and Arrow files ---

_COLUMNS = ("text", "entities", "tokens", "ner_tags", "tags")


def _sentences_of_texts(
    path: Path, rows: Sequence[Row], tokenizer: BertTokenizer, tags_needed: bool
) -> tuple[list[Sentence], dict[str, int]]:
    """Splits texts into words, and converts their entities to IOB2 tags.

    If not `tags_needed` and a text has no entities, not even an empty list, the sentences have no
    tags. Also returns the numbers of entities that do not fit the words, under the names of
    PROBLEMS.
    """
    has_tags = tags_needed or all(row.cells.get("entities") is not None for row in rows)
    schema = {"text": str} | ({"entities": [ENTITY]} if has_tags else {})
    for row in rows:
        check_schema(f"{row.where}:", row.cells, schema)
    texts = [row.cells["text"] for row in rows]
    problems: dict[str, list[str]] = {name: [] for name in PROBLEMS}
    sentences: list[Sentence] = []
    for row, text, words in zip(rows, texts, split_words(texts, tokenizer), strict=True):
        tags: list[str] = []
        if has_tags:
            entities = check_entities_of_text(row.cells["entities"], text, f"{row.where}: entities")
            tags, misfits = fit_entities(text, entities, words)
            for problem, _, description in misfits:
                problems[problem].append(f"{row.where}, {description}")
        if words:
            strings = tuple(text[start:end] for start, end in words)
            sentences.append(Sentence(strings, tuple(tags), row.number, len(sentences), row.unit))
    if not sentences:
        raise InputError(f"{path}: contains no words; expected texts")
    if num_empty := len(texts) - len(sentences):
        logging.warning("%s: skipped %d texts without words", path, num_empty)
    for name, descriptions in problems.items():
        if descriptions:
            first = "; ".join(descriptions[:3])
            logging.warning("%s: %d, the first: %s", PROBLEMS[name], len(descriptions), first)
    counts = (
        {name: len(descriptions) for name, descriptions in problems.items()} if has_tags else {}
    )
    return sentences, counts


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
    form = FORMS.get(path.suffix.lower())
    if not form or not column:
        return []
    try:
        info = json.loads(read_metadata(path, form)[b"huggingface"])
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


# --- TensorFlow Datasets ---

_TAG_COLUMNS = ("ner", "tags")


def _dataset_reader(
    ner: NerSettings,
) -> tuple[Callable[[str, bool], TaggedSentences], list[str | None]]:
    """Opens a prepared dataset.

    Returns:
        A function (split, ...) -> sentences, and the names of its training, development and test
        split; None for a split that it does not have.

    Raises:
        InputError: a setting is only for files, the dataset is not prepared or has no tags, or
            tensorflow-datasets is not installed.
    """
    for name in _FILE_SETTINGS:
        if getattr(ner, name) != getattr(NerSettings, name):
            raise InputError(f"--{name} cannot be combined with --tfds; expected --task_name")
    name = ner.task_name
    if not name:
        raise InputError("--task_name is missing; expected a dataset for --tfds, such as conll2003")
    # The default config has the name of the dataset.
    builder = open_prepared(name if "/" in name else f"{name}/{name}", ner.data_dir)
    features = builder.info.features
    column = next((column for column in _TAG_COLUMNS if column in features), None)
    if column is None or "tokens" not in features:
        raise InputError(
            f"--task_name={name}: has the columns {', '.join(features)}; expected tokens and "
            f"{' or '.join(_TAG_COLUMNS)}"
        )
    names = features[column].feature.names

    def read(split: str, tags_needed: bool) -> TaggedSentences:
        source = f"{builder.data_path}, split {split}"
        sentences = _sentences_of_words(source, read_split(builder, split), column, names)
        return tagged(source, sentences, ner)

    return read, [
        next((split for split in names if split in builder.info.splits), None)
        for names in (("train",), ("dev", "validation"), ("test",))
    ]


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


def check_word_tags(
    sentences: Sequence[Sequence[str]], tags: Any, labels: Sequence[str]
) -> list[list[str]]:
    """Checks the tags of sentences, and converts them to IOB2 by the rules of conlleval.

    `tags` has a list of tags for each sentence, one tag per word. `labels` are the model's labels.
    The tags must be O, - for an unknown label, `labels`, or tags of one scheme with entity types of
    the model, such as B-PER, or PER for all tags.

    Returns:
        A list of IOB2 tags for each sentence.
    """
    rows = check_list("tags", tags, "lists of tags")
    check_same_length(words=sentences, tags=rows)
    rows = [check_strings(f"tags[{index}]", row) for index, row in enumerate(rows)]
    tag_of = {OUTSIDE: OUTSIDE, UNKNOWN: UNKNOWN}
    tag_of |= zip(labels, label_tags(labels), strict=True)
    types = entity_types(labels)
    all_names = {tag for row in rows for tag in row}
    names = all_names - tag_of.keys()
    if names and all_names <= {OUTSIDE, UNKNOWN, *types}:
        tag_of |= {name: f"I-{name}" for name in names}
        logging.info("tags: scheme io")
    elif names and (schemes := schemes_of(names)):
        tag_of |= {name: standard_tag(name) for name in names if split_tag(name)[1] in types}
        logging.info("tags: scheme %s", schemes[0])
    checked = []
    for index, (words, row) in enumerate(zip(sentences, rows, strict=True)):
        check_same_length(**{f"words[{index}]": words, f"tags[{index}]": row})
        for position, tag in enumerate(row):
            if tag not in tag_of:
                raise InputError(
                    f"tags[{index}][{position}] is {tag!r}; expected one of {', '.join(labels)}"
                )
        checked.append(to_iob2([tag_of[tag] for tag in row]))
    return checked


def check_entities(texts: Sequence[str], value: Any, labels: Sequence[str]) -> list[list[Entity]]:
    """Checks the entities of texts; returns a list of (type, start, end) for each text.

    `value` has a list of entities {"start": int, "end": int, "type": str} for each text, with
    character offsets. The result is in the same order. `labels` are the model's labels.
    """
    rows = check_list("entities", value, "lists of entities")
    check_same_length(texts=texts, entities=rows)
    types = entity_types(labels)
    checked = []
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        name = f"entities[{index}]"
        items = check_list(name, row, "entities")
        check_schema(name, items, [ENTITY])
        checked.append(check_entities_of_text(items, text, name))
        for i, (kind, *_) in enumerate(checked[-1]):
            if kind not in types:
                raise InputError(
                    f"{name}[{i}] is {items[i]!r:.80}; expected a type of {', '.join(types)}"
                )
    return checked
