"""Reads the sentences of a run from column files, annotated texts or TensorFlow Datasets.

The tags of each file, or the spans of its texts, are converted to IOB2. A model trained on them has
the labels O and, for each entity type, B-TYPE and I-TYPE.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner import span_records
from keras_bert.tasks.ner.conll import Sentence, read_conll
from keras_bert.tasks.ner.scheme_detection import check_tags
from keras_bert.tasks.ner.span_sentences import tagged_sentences
from keras_bert.tasks.ner.tag_schemes import UNKNOWN, is_inside, split_tag, to_iob2
from keras_bert.tasks.ner.tfds import open_dataset
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
        if path.lower().endswith(span_records.ENDINGS):
            sentences = span_records.read_tagged_words(path)
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
    texts, num_rejected = span_records.read_annotated(path)
    unlabeled = [text for text in texts if text.spans is None]
    if unlabeled and not spans_needed:
        texts = [replace(text, spans=None) for text in texts]
    elif len(unlabeled) == len(texts):
        raise InputError(
            f"{texts[0].where}: has no spans, and neither have the other texts; expected a key of "
            f"{', '.join(span_records.SPAN_KEYS)}"
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
