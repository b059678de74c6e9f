r"""Reads the sentences of a run from column files, annotated texts or TensorFlow Datasets.

The tags of each file, or the spans of its texts, are converted to IOB2. A model trained on them has
the labels O and, for each entity type, B-TYPE and I-TYPE.

A CoNLL column file has a word and its tag on each line:

    # id 7                    a comment, if `comment_prefix` is #
    EU      NNP  B-ORG        columns separated by tabs or white space: one for the words and one
    rejects VBZ  O            for the tags
                              an empty line, or one of white space, ends the sentence
    -DOCSTART- -X- O          a document starts here

A byte-order mark and "\r" at line ends are ignored. A file with one column has words without tags.

A dataset of TensorFlow Datasets, such as conll2003, conll2002/es or wikiann/de, must have a column
`tokens`, and a column `ner` or `tags` with the tags; it does not mark the start of documents.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from numbers import Integral
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import check_no_nul, read_lines, write_bytes
from keras_bert.tasks.checks import check_list, check_same_length, check_strings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.ner.span_records import (
    ENDINGS,
    SPAN_KEYS,
    read_annotated,
    read_tagged_words,
    tagged_sentences,
)
from keras_bert.tasks.ner.tag_schemes import (
    DOCUMENT_START,
    OUTSIDE,
    UNKNOWN,
    Entity,
    Sentence,
    check_tags,
    entity_types,
    iob2_labels,
    is_inside,
    label_tags,
    schemes_of,
    split_tag,
    standard_tag,
    to_iob2,
)
from keras_bert.tasks.prepared_tfds import open_prepared, read_split
from keras_bert.text.tokenizer import BertTokenizer


@dataclass(frozen=True)
class NerSettings:
    """The files of a run, and the settings for reading and labeling words.

    Attributes:
        train_file: file for training: a column file or, if its name ends in .jsonl, .json,
            .parquet or .arrow, texts with spans or words with tags (span_records.py).
        eval_file: file to score.
        test_file: file to predict, with or without tags or spans; if empty, `eval_file`.
        tfds: whether to read a dataset of TensorFlow Datasets instead of files.
        task_name: the name of the dataset, with `tfds`.
        data_dir: the folder of TensorFlow Datasets, with `tfds`.
        token_column: the column of the words, from 0; a negative number counts from the end.
        tag_column: the column of the tags.
        comment_prefix: prefix of comment lines before a sentence; empty for no comments.
        tag_scheme: one of `SCHEMES`; if empty, the scheme that fits each file best.
        strict: whether a tag that violates the scheme is an error.
        document_context: whether to extend windows with neighboring sentences of the document.
        label_all_tokens: whether training labels all tokens of a word, not only the first.
    """

    train_file: str = ""
    eval_file: str = ""
    test_file: str = ""
    tfds: bool = False
    task_name: str = ""
    data_dir: str = ""
    token_column: int = 0
    tag_column: int = -1
    comment_prefix: str = ""
    tag_scheme: str = ""
    strict: bool = False
    document_context: bool = False
    label_all_tokens: bool = False


# The settings that apply only to files, not to TensorFlow Datasets.
_FILE_SETTINGS = (
    "train_file",
    "eval_file",
    "test_file",
    "token_column",
    "tag_column",
    "comment_prefix",
)


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of a file or dataset, and their tags in IOB2.

    `source` names the file or dataset in error messages. `tags` has a list of tags for each
    sentence; None if the file has no tags. `counts` are those of `SpanCounts.to_dict`; empty if the
    file has no spans.
    """

    source: str
    sentences: list[Sentence]
    tags: list[list[str]] | None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def types(self) -> set[str]:
        """The entity types in the file."""
        return {split_tag(tag)[1] for tags in self.tags or [] for tag in tags if is_inside(tag)}


@dataclass(frozen=True)
class SentenceSplits:
    """The sentences of a run; None for a split that is not used.

    `dev` are the sentences to score, and `test` those to predict; both may be the same object.
    """

    train: TaggedSentences | None = None
    dev: TaggedSentences | None = None
    test: TaggedSentences | None = None


def read_data(
    ner: NerSettings,
    *,
    new_tokenizer: Callable[[], BertTokenizer],
    do_train: bool,
    do_eval: bool,
    do_predict: bool,
) -> SentenceSplits:
    """Reads the sentences of a run; the development and test sentences may be missing.

    `new_tokenizer` creates the model's tokenizer, which splits the texts of files with spans.

    Raises:
        InputError: a file is invalid, the training sentences are missing, or there is nothing to
            do.
    """
    wanted = {"do_train": do_train, "do_eval": do_eval, "do_predict": do_predict}
    splits = _read_tfds(ner, **wanted) if ner.tfds else _read_files(ner, new_tokenizer, **wanted)
    if splits == SentenceSplits():
        raise InputError(
            "nothing to do: there are no sentences to score or to predict; expected --eval_file, "
            "--test_file, --tfds or --do_train"
        )
    return splits


def _read_tfds(
    ner: NerSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> SentenceSplits:
    for name in _FILE_SETTINGS:
        if getattr(ner, name) != getattr(NerSettings, name):
            raise InputError(f"--{name} cannot be combined with --tfds; expected --task_name")
    if not ner.task_name:
        raise InputError("--task_name is missing; expected a dataset for --tfds, such as conll2003")
    dataset = open_dataset(ner.task_name, ner.data_dir)

    def read(split: str) -> TaggedSentences | None:
        named_sentences = dataset(split)
        return tagged(*named_sentences, ner) if named_sentences else None

    train = read("train") if do_train else None
    if do_train and train is None:
        raise InputError(f"--task_name={ner.task_name}: has no train split; expected --nodo_train")
    return SentenceSplits(
        train, read("dev") if do_eval else None, read("test") if do_predict else None
    )


def _read_files(
    ner: NerSettings,
    new_tokenizer: Callable[[], BertTokenizer],
    *,
    do_train: bool,
    do_eval: bool,
    do_predict: bool,
) -> SentenceSplits:
    if do_train and not ner.train_file:
        raise InputError(
            "--train_file is missing; expected a CoNLL column file or texts with spans, or "
            "--nodo_train"
        )

    def read(path: str, tags_needed: bool = True) -> TaggedSentences:
        if path.lower().endswith(ENDINGS):
            sentences = read_tagged_words(path)
        else:
            sentences = read_conll(path, ner.token_column, ner.tag_column, ner.comment_prefix)
        if sentences is None:
            return _read_spans(path, new_tokenizer(), tags_needed)
        return tagged(path, sentences, ner, tags_needed)

    train = read(ner.train_file) if do_train else None
    dev = read(ner.eval_file) if do_eval and ner.eval_file else None
    test, predicted = None, ner.test_file or ner.eval_file
    if do_predict and predicted:
        is_dev = dev is not None and Path(predicted) == Path(ner.eval_file)
        test = dev if is_dev else read(predicted, tags_needed=False)
    return SentenceSplits(train, dev, test)


def _read_spans(path: str, tokenizer: BertTokenizer, spans_needed: bool) -> TaggedSentences:
    """Reads texts with spans, and logs statistics; texts that are not annotated are skipped.

    If not `spans_needed` and a text is not annotated, the result has all texts, without tags.
    """
    texts, num_rejected = read_annotated(path)
    unlabeled = [text for text in texts if text.spans is None]
    if unlabeled and not spans_needed:
        texts = [replace(text, spans=None) for text in texts]
    elif len(unlabeled) == len(texts):
        raise InputError(
            f"{texts[0].where}: has no spans, and neither have the other texts; expected a key of "
            f"{', '.join(SPAN_KEYS)}"
        )
    elif unlabeled:
        logging.warning(
            "%s: skipped %d texts without annotations; the first is %s",
            path,
            len(unlabeled),
            unlabeled[0].where,
        )
        texts = [text for text in texts if text.spans is not None]
    sentences, counts = tagged_sentences(texts, tokenizer)
    if num_rejected:
        logging.info("%s: skipped %d texts that were rejected or ignored", path, num_rejected)
    size = f"{len(sentences)} texts, {sum(len(s.words) for s in sentences)} words"
    if texts[0].spans is None:
        logging.info("%s: %s; there are no spans, so no scores are computed", path, size)
        return TaggedSentences(path, sentences, None)
    tags = [list(sentence.tags) for sentence in sentences]
    num_entities = sum(tag.startswith("B") for row in tags for tag in row)
    logging.info("%s: %s, %d entities", path, size, num_entities)
    _log_unknown(path, tags)
    if num_empty := len(texts) - len(sentences):
        logging.warning("%s: skipped %d texts without words", path, num_empty)
    counts.log()
    return TaggedSentences(path, sentences, tags, counts.to_dict())


def _log_unknown(source: str, tags: list[list[str]]) -> None:
    if count := sum(row.count(UNKNOWN) for row in tags):
        logging.warning(
            "%s: the labels of %d words are unknown; they are not trained on or scored",
            source,
            count,
        )


def tagged(
    source: str, sentences: list[Sentence], ner: NerSettings, tags_needed: bool = True
) -> TaggedSentences:
    """Checks the tags of sentences, converts them to IOB2, and logs statistics.

    `source` names the file or dataset in messages.

    Raises:
        InputError: a tag is unknown or, with `strict`, violates the scheme; or there are no tags,
            but `tags_needed` is true.
    """
    if ner.document_context and sentences[-1].document == 0:
        logging.warning("%s: no document boundaries found; all sentences form one document", source)
    size = f"{len(sentences)} sentences, {sum(len(s.words) for s in sentences)} words"
    if not sentences[0].tags:
        if tags_needed:
            raise InputError(f"{source}: has words without tags; expected words and their tags")
        logging.info("%s: %s; there are no tags, so no scores are computed", source, size)
        return TaggedSentences(source, sentences, None)
    rows, scheme, num_disallowed = check_tags(sentences, source, ner.tag_scheme, ner.strict)
    tags = [to_iob2(row) for row in rows]
    num_entities = sum(tag.startswith("B") for row in tags for tag in row)
    logging.info("%s: %s, %d entities, scheme %s", source, size, num_entities, scheme)
    _log_unknown(source, tags)
    if num_disallowed:
        logging.warning(
            "%s: %d tags violate the scheme %s; they are read by the rules of conlleval",
            source,
            num_disallowed,
            scheme,
        )
    return TaggedSentences(source, sentences, tags)


def make_labels(train: TaggedSentences, known: Sequence[str] | None) -> list[str]:
    """Returns the IOB2 labels for the entity types of the training sentences.

    `known` are the checkpoint's labels in the order of its logits, or None. If they are the same
    labels, the result has their order.
    """
    if not train.types:
        raise InputError(f"{train.source}: has no entities (every tag is O); expected at least one")
    labels = iob2_labels(sorted(train.types))
    return in_order_of(known, labels) or labels


def check_types(file: TaggedSentences, labels: Sequence[str], source: object) -> None:
    """Checks that a tagger's labels include all entity types of a file.

    `source` is the file or checkpoint that defines the labels, for the error message.
    """
    known = entity_types(labels)
    for kind in sorted(file.types - {*known}):
        sentence, place = next(
            (sentence, place)
            for sentence, tags in zip(file.sentences, file.tags, strict=True)
            for place, tag in enumerate(tags)
            if is_inside(tag) and split_tag(tag)[1] == kind
        )
        raise InputError(
            f"{file.source}, {sentence.where(place)}: tag {sentence.tags[place]!r}, but "
            f"{source} has no entity of type {kind!r}; expected one of {', '.join(known)}"
        )


# --- column files ---


def read_conll(
    path: str | os.PathLike,
    token_column: int = 0,
    tag_column: int = -1,
    comment_prefix: str = "",
) -> list[Sentence]:
    """Reads the sentences of a column file.

    Columns are counted from 0, or from the end if negative. A line that starts with
    `comment_prefix` is skipped before the first word of a sentence; within a sentence it is a word,
    such as #1.

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
        if comment_prefix and not words and line.startswith(comment_prefix):
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
            hint = "; for comments, set --comment_prefix='#'" * line.startswith("#")
        where = f"{path}, line {number}"
        if len(columns) != width[0]:
            raise InputError(
                f"{where}: expected {width[0]} columns, as in line {width[1]}; got "
                f"{len(columns)}: {line[:80]!r}{hint}"
            )
        if not words:
            first_line = number
        words.append(_column(columns, token_column, "--token_column", where, hint))
        if len(columns) > 1:
            tags.append(_column(columns, tag_column, "--tag_column", where, hint))
    end_sentence()
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected a word and its tag on each line")
    if width[0] > 2 and _are_numbered(sentences):
        raise InputError(
            f"{path}: column {token_column} has the number of each word; expected words, probably "
            f"--token_column={token_column + 1}"
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
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _are_numbered(sentences: Sequence[Sentence]) -> bool:
    """Returns whether the words of all sentences are the numbers from 0 or from 1."""
    first = sentences[0].words[0]
    longest = max(len(sentence.words) for sentence in sentences)
    if longest == 1 or first not in ("0", "1"):
        return False
    numbers = tuple(map(str, range(int(first), int(first) + longest)))
    return all(sentence.words == numbers[: len(sentence.words)] for sentence in sentences)


def _column(columns: Sequence[str], index: int, flag: str, where: str, hint: str) -> str:
    if not -len(columns) <= index < len(columns):
        raise InputError(f"{where}: {flag}={index}, but the line has {len(columns)} columns{hint}")
    value = columns[index].strip(" ")
    if not value:
        raise InputError(f"{where}: column {index} is empty; expected a word and its tag")
    return value


# --- TensorFlow Datasets ---

_TAG_COLUMNS = ("ner", "tags")
_DEV_SPLITS = ("dev", "validation")


def tfds_name(task_name: str) -> str:
    """Adds the default config, named like the dataset: conll2003 becomes conll2003/conll2003."""
    return task_name if "/" in task_name else f"{task_name}/{task_name}"


def open_dataset(
    task_name: str, data_dir: str = ""
) -> Callable[[str], tuple[str, list[Sentence]] | None]:
    """Opens a prepared dataset, and returns a function that reads the split train, dev or test.

    The function returns a name for error messages and the sentences, or None if the dataset has no
    such split. It raises InputError if the split is empty. An empty `data_dir` means TFDS_DATA_DIR
    or ~/tensorflow_datasets.

    Raises:
        InputError: the dataset is not prepared or has no tags, or tensorflow-datasets is not
            installed.
    """
    builder = open_prepared(tfds_name(task_name), data_dir)
    features = builder.info.features
    column = next((name for name in _TAG_COLUMNS if name in features), None)
    if column is None or "tokens" not in features:
        raise InputError(
            f"--task_name={task_name}: has the columns {', '.join(features)}; expected tokens and "
            f"{' or '.join(_TAG_COLUMNS)}"
        )
    tags = features[column].feature

    def read(split: str) -> tuple[str, list[Sentence]] | None:
        names = _DEV_SPLITS if split == "dev" else (split,)
        split = next((name for name in names if name in builder.info.splits), None)
        if split is None:
            return None
        source = f"{builder.data_path}, split {split}"
        rows = [row for row in read_split(builder, split) if len(row["tokens"])]
        # The line number that each sentence would have in a CoNLL column file.
        lines = accumulate((len(row["tokens"]) + 1 for row in rows), initial=1)
        sentences = [
            Sentence(
                tuple(token.decode() for token in row["tokens"]),
                tuple(tags.int2str(int(tag)) for tag in row[column]),
                line,
            )
            for row, line in zip(rows, lines, strict=False)
        ]
        if not sentences:
            raise InputError(f"{source}: contains no sentences; expected words and their tags")
        return source, sentences

    return read


# --- arguments of the Python API ---

_ENTITY = '{"start": 0, "end": 3, "type": "PER"}'


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
        for place, tag in enumerate(row):
            if tag not in tag_of:
                raise InputError(
                    f"tags[{index}][{place}] is {tag!r}; expected one of {', '.join(labels)}"
                )
        checked.append(to_iob2([tag_of[tag] for tag in row]))
    return checked


def check_entities(texts: Sequence[str], value: Any, labels: Sequence[str]) -> list[list[Entity]]:
    """Checks the entities of texts; returns a list of (type, start, end) for each text.

    `value` has a list of entities {"start": int, "end": int, "type": str} for each text, with
    character offsets. The result is in the same order. `labels` are the model's labels.
    """
    rows = check_list("entities", value, f"lists of entities such as {_ENTITY}")
    check_same_length(texts=texts, entities=rows)
    types = entity_types(labels)
    found = []
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        row = check_list(f"entities[{index}]", row, f"entities such as {_ENTITY}")
        found.append([])
        for place, entity in enumerate(row):
            where = f"entities[{index}][{place}] is {entity!r:.80}"
            if not isinstance(entity, Mapping) or not {"start", "end", "type"} <= entity.keys():
                raise InputError(f"{where}; expected an entity such as {_ENTITY}")
            start, end, kind = entity["start"], entity["end"], entity["type"]
            if not all(isinstance(x, Integral) for x in (start, end)) or not (
                0 <= start < end <= len(text)
            ):
                raise InputError(
                    f"{where}; expected whole numbers with 0 <= start < end <= {len(text)}, the "
                    f"length of texts[{index}]"
                )
            if kind not in types:
                raise InputError(f"{where}; expected a type of {', '.join(types)}")
            found[-1].append((kind, int(start), int(end)))
    return found
