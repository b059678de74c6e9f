"""A task's files and labels: paths in; sentences with IOB2 tags and the model's labels out.

Whatever scheme a file has, its entities are read as conlleval reads them and written as IOB2, which
is what the model learns. Its labels are O and for each type B-TYPE and I-TYPE.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.errors import InputError
from keras_bert.tasks.ner.conll import Sentence, read_conll
from keras_bert.tasks.ner.schemes import OUTSIDE, check_tags, entities, iob2_tags, split_tag


@dataclass(frozen=True)
class NerSettings:
    """What is read and how it is shown to the model.

    Attributes:
        train_file: column file to train on.
        eval_file: column file to score.
        test_file: column file to predict; empty for `eval_file`. It may be without tags.
        token_column: the column of the words, from 0; negative counts from the end.
        tag_column: the column of the tags.
        tag_scheme: iob1, iob2 or bioes; empty for what fits each file best.
        strict: refuse tag sequences that their scheme does not allow.
        document_context: show each sentence between the others of its document.
        label_all_pieces: in training, all pieces of a word carry its tag.
    """

    train_file: str = ""
    eval_file: str = ""
    test_file: str = ""
    token_column: int = 0
    tag_column: int = -1
    tag_scheme: str = ""
    strict: bool = False
    document_context: bool = False
    label_all_pieces: bool = False


@dataclass(frozen=True)
class TaggedFile:
    """The sentences of one file.

    Attributes:
        path: the file.
        sentences: as the file has them.
        tags: IOB2 tags of each sentence; None where the file has no tags.
    """

    path: Path
    sentences: list[Sentence]
    tags: list[list[str]] | None

    @property
    def types(self) -> set[str]:
        """The types of the entities that the file names."""
        return {split_tag(tag)[1] for tags in self.tags or [] for tag in tags if tag != OUTSIDE}

    def words(self) -> Iterable[tuple[Sentence, int]]:
        """Yields each word as its sentence and its place in it."""
        for sentence in self.sentences:
            for place in range(len(sentence.words)):
                yield sentence, place


def read_tagged(path: str, settings: NerSettings, tags_needed: bool = True) -> TaggedFile:
    """Reads a file and says what is in it.

    Args:
        path: the file.
        settings: columns, scheme, strictness.
        tags_needed: whether a file of one column is refused.

    Returns:
        Its sentences.

    Raises:
        InputError: the file, a line or a tag is not as expected.
    """
    sentences = read_conll(path, settings.token_column, settings.tag_column)
    if settings.document_context and sentences[-1].document == 0:
        logging.warning("%s: no second document; the whole file is one", path)
    size = f"{len(sentences)} sentences, {sum(len(s.words) for s in sentences)} words"
    if not sentences[0].tags:
        if tags_needed:
            raise InputError(f"{path}: has one column; expected words and their tags")
        logging.info("%s: %s, no tags", path, size)
        return TaggedFile(Path(path), sentences, None)
    scheme, impossible = check_tags(sentences, path, settings.tag_scheme, settings.strict)
    found = [entities(sentence.tags) for sentence in sentences]
    logging.info("%s: %s, %d entities, %s", path, size, sum(map(len, found)), scheme)
    if impossible:
        logging.warning(
            "%s: %d tags stand where %s does not allow them; they are read as conlleval reads them",
            path,
            impossible,
            scheme,
        )
    tags = [iob2_tags(e, len(s.words)) for e, s in zip(found, sentences, strict=True)]
    return TaggedFile(Path(path), sentences, tags)


def make_labels(train: TaggedFile, known: Sequence[str] | None) -> list[str]:
    """Lists the labels of a model that is to be trained.

    Args:
        train: the training file.
        known: labels of the checkpoint that training starts from, if it has any.

    Returns:
        The labels in the order of the logits: the checkpoint's own if they are the same.

    Raises:
        InputError: the file has no entity.
    """
    if not train.types:
        raise InputError(f"{train.path}: every tag is O; expected entities to learn from")
    labels = [OUTSIDE]
    for kind in sorted(train.types):
        rest = f"-{kind}" if kind else ""
        labels += [f"B{rest}", f"I{rest}"]
    return [*known] if known and sorted(known) == sorted(labels) else labels


def check_labels(labels: Sequence[str], where: object) -> None:
    """Checks that a checkpoint's labels are tags.

    Args:
        labels: of the checkpoint.
        where: the checkpoint, for the message.

    Raises:
        InputError: they are labels of another task.
    """
    odd = [label for label in labels if label != OUTSIDE and split_tag(label)[0] not in "BIES"]
    if odd or OUTSIDE not in labels:
        raise InputError(
            f"{where}: has the labels {', '.join(labels)[:200]}; expected tags, such as O, B-PER, "
            "I-PER"
        )


def check_types(file: TaggedFile, labels: Sequence[str], source: object) -> None:
    """Checks that a model can give every entity that a file names.

    Args:
        file: a file to score.
        labels: the model's.
        source: where the labels are from, for the message.

    Raises:
        InputError: a type is not among them.
    """
    known = {split_tag(label)[1] for label in labels if label != OUTSIDE}
    for kind in sorted(file.types - known):
        sentence, place = next(
            (s, place)
            for s, place in file.words()
            if s.tags[place] != OUTSIDE and split_tag(s.tags[place])[1] == kind
        )
        raise InputError(
            f"{file.path}, line {sentence.line + place}: tag {sentence.tags[place]!r}, but "
            f"{source} has no entity of type {kind!r}; expected one of {', '.join(sorted(known))}"
        )


def tag_ids(tags: Iterable[Sequence[str]], labels: Sequence[str]) -> np.ndarray:
    """Numbers the tags of all words.

    Args:
        tags: IOB2 tags of each sentence.
        labels: the model's, in the order of its logits.

    Returns:
        int32 [N], places in `labels`.
    """
    ids = {label: index for index, label in enumerate(labels)}
    return np.array([ids[tag] for sentence in tags for tag in sentence], np.int32)
