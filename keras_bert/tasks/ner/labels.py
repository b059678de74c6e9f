"""Determines a tagger's labels from a training file, a checkpoint or the user's list."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.common.errors import InputError
from keras_bert.tasks.checks import check_strings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.ner.annotations import entity_types
from keras_bert.tasks.ner.data import TaggedSentences
from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    UNKNOWN,
    continues_entity,
    iob2_tag,
    is_inside,
    is_tag,
    label_tags,
    split_tag,
)

_DEFAULT_NAME = re.compile(r"LABEL_\d+")  # The default label names of transformers.


def label_names(checkpoint: Checkpoint, given: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the labels of a tagger, in the order of the logits.

    `given` are entity types or IOB2 tags, or a name for each logit of the checkpoint's head. If
    None, the labels are the checkpoint's. As in transformers, a tagger without label names has
    LABEL_0, LABEL_1, and so on.

    Raises:
        InputError: neither the checkpoint nor `given` names labels, the given labels are invalid,
            or they do not match the checkpoint's head.
    """
    path = checkpoint.path
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels
    known = checkpoint.labels if num_logits else None
    if known and all(_DEFAULT_NAME.fullmatch(name) for name in known):
        known = None
    if given is None:
        names = known or _default_names(checkpoint, num_logits)
        check_labels(names, path)
        return tuple(names)
    labels = check_strings("labels", given)
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"labels={labels!r:.200}: expected at least one name, and no duplicates")
    ordered = in_order_of(known, labels)
    if ordered or (not known and len(labels) == num_logits):
        check_labels(labels, "labels")
    else:
        labels = _tags(labels)
        ordered = in_order_of(known, labels)
    if (known and ordered is None) or (num_logits and num_logits != len(labels)):
        has = f"the labels {', '.join(known)}" if known else f"a head of {num_logits} logits"
        raise InputError(
            f"labels={list(given)!r:.200}: {path} has {has}; expected the same; for a new head, "
            "run keras-bert convert SRC DST --noheads"
        )
    return tuple(ordered or labels)


def make_labels(train: TaggedSentences, known: Sequence[str] | None) -> list[str]:
    """Returns the IOB2 labels for the entity types of the training sentences.

    `known` are the checkpoint's labels in the order of its logits, or None. If they are the same
    labels, the result has their order.
    """
    if not train.types:
        raise InputError(f"{train.source}: has no entities (every tag is O); expected at least one")
    labels = iob2_labels(sorted(train.types))
    return in_order_of(known, labels) or labels


def iob2_labels(types: Iterable[str]) -> list[str]:
    """Lists the IOB2 tags of entity types: O, then B and I of each type."""
    return [OUTSIDE, *(iob2_tag(prefix, kind) for kind in types for prefix in "BI")]


def check_labels(labels: Sequence[str], where: object) -> None:
    """Checks that a tagger's labels are tags or entity types; error messages start with `where`.

    The labels of an unknown scheme are rejected, since X-PER is not an entity type if B-PER is a
    label.
    """
    tags = label_tags(labels)
    types = {split_tag(label)[1] for label in labels if is_tag(label)} - {""}
    for label, tag in zip(labels, tags, strict=True):
        prefix, kind = split_tag(label)
        if not label or (kind in types and len(prefix) == 1 and tag == f"I-{label}"):
            raise InputError(
                f"{where}: has the labels {', '.join(labels)[:200]}; expected tags, such as O, "
                f"B-PER, I-PER, or entity types, such as PER, got {label!r}"
            )


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


def tag_ids(tags: Iterable[Sequence[str]], labels: Sequence[str]) -> np.ndarray:
    """Converts the IOB2 tags of sentences with N words in total to indices of `labels`, int32 [N].

    `tags` has a list of tags for each sentence. The labels have any scheme: the index is that of S
    or E at the end of an entity, if the type has such a label, and that of I if it has no B. The
    index of the tag -, an unknown label, is -1.
    """
    ids = {UNKNOWN: -1} | {tag: index for index, tag in enumerate(label_tags(labels))}
    indices = []
    for sentence in tags:
        for tag, following in zip(sentence, [*sentence[1:], OUTSIDE], strict=True):
            prefix, kind = split_tag(tag)
            names = [tag, iob2_tag("I", kind)] if is_inside(tag) else [tag]
            if is_inside(tag) and not continues_entity(following, tag):
                names.insert(0, iob2_tag({"B": "S", "I": "E"}[prefix], kind))
            name = next((name for name in names if name in ids), None)
            if name is None:
                raise InputError(
                    f"the tag {tag!r} is not one of the model's labels {', '.join(labels)}; "
                    "expected O, and labels of each type for all words of an entity"
                )
            indices.append(ids[name])
    return np.array(indices, np.int32)


def _default_names(checkpoint: Checkpoint, num_logits: int | None) -> list[str]:
    """Returns LABEL_0, LABEL_1, ... for a tagger without label names, and logs a warning.

    Raises InputError if the checkpoint is not a tagger. `num_logits` is None without a head.
    """
    path = checkpoint.path
    if not num_logits or checkpoint.architecture != "BertForTokenClassification":
        raise InputError(
            f"{path}: has no label names; expected a tagger, or entity types such as "
            'labels=["PER", "LOC"]'
        )
    names = checkpoint.labels or [f"LABEL_{index}" for index in range(num_logits)]
    logging.warning(
        "%s: has no label names; each of %s is an entity type. Set id2label in config.json or "
        'labels=["O", "PER", ...], in the order of the logits',
        path,
        ", ".join(names)[:200],
    )
    return names


def _tags(names: list[str]) -> list[str]:
    """Converts entity types to IOB2 tags; returns names that are tags unchanged."""
    where = f"labels={names!r:.200}"
    if OUTSIDE not in names:
        if any(split_tag(name)[0] in ("B", "I") for name in names):
            raise InputError(f"{where}: expected entity types such as PER, or tags with O")
        return iob2_labels(names)
    types = list(dict.fromkeys(split_tag(name)[1] for name in names if name != OUTSIDE))
    if sorted(iob2_labels(types)) != sorted(names):
        raise InputError(
            f"{where}: expected IOB2 tags, O and both B and I for each type: "
            f"{', '.join(iob2_labels(types))}"
        )
    return names
