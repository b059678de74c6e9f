"""Reads the sentences of a run from CoNLL column files or TensorFlow Datasets.

Entities are read as conlleval reads them, in the scheme of each file, and converted to IOB2 tags,
which the model learns. Its labels are O and for each type B-TYPE and I-TYPE.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence, read_conll
from keras_bert.tasks.ner.scheme_detection import check_tags
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, entities, iob2_tags, split_tag
from keras_bert.tasks.ner.tfds import open_dataset


@dataclass(frozen=True)
class NerSettings:
    """Which files are read, and how words are shown to the model.

    Attributes:
        train_file: column file to train on.
        eval_file: column file to score.
        test_file: column file to predict; empty for `eval_file`. It may be without tags.
        tfds: read a dataset of TensorFlow Datasets instead of files.
        task_name: with `tfds`, the dataset.
        data_dir: with `tfds`, TensorFlow Datasets' folder.
        token_column: the column of the words, from 0; negative counts from the end.
        tag_column: the column of the tags.
        comment_prefix: start of comment lines before a sentence; empty for files without comments.
        tag_scheme: iob1, iob2 or bioes; empty for the one that fits each file best.
        strict: reject tag sequences that their scheme does not allow.
        document_context: extend windows with the sentences around, of the same document.
        label_all_pieces: in training, all tokens of a word carry its tag.
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
    label_all_pieces: bool = False


# Settings that TensorFlow Datasets does not read.
_OF_FILES = (
    "train_file",
    "eval_file",
    "test_file",
    "token_column",
    "tag_column",
    "comment_prefix",
)


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of one file.

    Attributes:
        source: the file or dataset, for messages.
        sentences: in the order of the file.
        tags: IOB2 tags of each sentence; None if the file has no tags.
    """

    source: str
    sentences: list[Sentence]
    tags: list[list[str]] | None

    @property
    def types(self) -> set[str]:
        """The types of the file's entities."""
        return {split_tag(tag)[1] for tags in self.tags or [] for tag in tags if tag != OUTSIDE}

    def words(self) -> Iterable[tuple[Sentence, int]]:
        """Yields each word as its sentence and its place in it."""
        for sentence in self.sentences:
            for place in range(len(sentence.words)):
                yield sentence, place


@dataclass(frozen=True)
class SentenceSplits:
    """The sentences that a run trains on, scores and predicts.

    Attributes:
        train: sentences to train on, or None.
        dev: sentences to score, or None.
        test: sentences to predict, or None; they may be those of `dev`.
    """

    train: TaggedSentences | None = None
    dev: TaggedSentences | None = None
    test: TaggedSentences | None = None


def read_data(
    ner: NerSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> SentenceSplits:
    """Reads the sentences of a run. Sentences to score or to predict are optional.

    Args:
        ner: the settings.
        do_train: whether to read sentences to train on.
        do_eval: whether to read sentences to score.
        do_predict: whether to read sentences to predict.

    Returns:
        The sentences.

    Raises:
        InputError: files that cannot be used, none to train on, or nothing to do.
    """
    read = _read_tfds if ner.tfds else _read_files
    splits = read(ner, do_train=do_train, do_eval=do_eval, do_predict=do_predict)
    if splits == SentenceSplits():
        raise InputError(
            "nothing to do: there are no sentences to score or to predict; expected --eval_file, "
            "--test_file, --tfds or --do_train"
        )
    return splits


def _read_tfds(
    ner: NerSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> SentenceSplits:
    for name in _OF_FILES:
        if getattr(ner, name) != getattr(NerSettings, name):
            raise InputError(f"--tfds takes the sentences of --task_name, not --{name}")
    if not ner.task_name:
        raise InputError("--tfds needs --task_name, such as conll2003 or wikiann/de")
    dataset = open_dataset(ner.task_name, ner.data_dir)

    def read(split: str) -> TaggedSentences | None:
        found = dataset(split)
        return tagged(*found, ner) if found else None

    train = read("train") if do_train else None
    if do_train and train is None:
        raise InputError(f"--task_name={ner.task_name} has no split train; expected --nodo_train")
    return SentenceSplits(
        train, read("dev") if do_eval else None, read("test") if do_predict else None
    )


def _read_files(
    ner: NerSettings, *, do_train: bool, do_eval: bool, do_predict: bool
) -> SentenceSplits:
    if do_train and not ner.train_file:
        raise InputError("--train_file is missing; expected a CoNLL column file, or --nodo_train")

    def read(path: str, tags_needed: bool = True) -> TaggedSentences:
        sentences = read_conll(path, ner.token_column, ner.tag_column, ner.comment_prefix)
        return tagged(path, sentences, ner, tags_needed)

    train = read(ner.train_file) if do_train else None
    dev = read(ner.eval_file) if do_eval and ner.eval_file else None
    test, predicted = None, ner.test_file or ner.eval_file
    if do_predict and predicted:
        is_dev = dev is not None and Path(predicted) == Path(ner.eval_file)
        test = dev if is_dev else read(predicted, tags_needed=False)
    return SentenceSplits(train, dev, test)


def tagged(
    source: str, sentences: list[Sentence], ner: NerSettings, tags_needed: bool = True
) -> TaggedSentences:
    """Checks the tags of sentences, converts them to IOB2, and logs their number.

    Args:
        source: the file or dataset, for messages.
        sentences: its sentences.
        ner: the settings.
        tags_needed: whether sentences without tags are rejected.

    Returns:
        The sentences and their tags.

    Raises:
        InputError: an unknown or impossible tag, or no tags.
    """
    if ner.document_context and sentences[-1].document == 0:
        logging.warning("%s: no second document; the whole file is one", source)
    size = f"{len(sentences)} sentences, {sum(len(s.words) for s in sentences)} words"
    if not sentences[0].tags:
        if tags_needed:
            raise InputError(f"{source}: has one column; expected words and their tags")
        logging.info("%s: %s, no tags", source, size)
        return TaggedSentences(source, sentences, None)
    scheme, impossible = check_tags(sentences, source, ner.tag_scheme, ner.strict)
    found = [entities(sentence.tags) for sentence in sentences]
    logging.info("%s: %s, %d entities, %s", source, size, sum(map(len, found)), scheme)
    if impossible:
        logging.warning(
            "%s: %d tags stand where %s does not allow them; they are read as conlleval reads them",
            source,
            impossible,
            scheme,
        )
    tags = [iob2_tags(e, len(s.words)) for e, s in zip(found, sentences, strict=True)]
    return TaggedSentences(source, sentences, tags)
