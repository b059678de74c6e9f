"""Determines a tagger's labels from what the user gives and what the checkpoint says."""

import re
from collections.abc import Sequence

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.common.errors import InputError
from keras_bert.tasks.checks import check_strings
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.ner.data import check_labels, iob2_labels
from keras_bert.tasks.ner.tag_schemes import OUTSIDE, split_tag

_UNNAMED = re.compile(r"LABEL_\d+")  # how transformers calls labels that nobody named


def label_names(checkpoint: Checkpoint, given: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the labels of a tagger.

    Args:
        checkpoint: the model, with a tagging head or without.
        given: types of entities, or IOB2 tags; None for the checkpoint's labels.

    Returns:
        Tags in the order of the logits.

    Raises:
        InputError: neither says which, the given ones are no types or tags, or they do not fit the
            checkpoint's head.
    """
    path = checkpoint.path
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels
    known = checkpoint.labels if num_logits else None
    if known and all(_UNNAMED.fullmatch(name) for name in known):
        known = None
    if given is None:
        if known is None:
            raise InputError(
                f"{path}: names no labels; expected a tagger, or types of entities such as "
                'labels=["PER", "LOC"]'
            )
        check_labels(known, path)
        return tuple(known)
    labels = _tags(check_strings("labels", given))
    ordered = in_order_of(known, labels)
    if (known and ordered is None) or (num_logits and num_logits != len(labels)):
        has = f"the labels {', '.join(known)}" if known else f"a head of {num_logits} logits"
        raise InputError(
            f"labels={list(given)!r:.200}: {path} has {has}; expected the same, or python -m "
            "keras_bert.checkpoints.convert SRC DST --noheads for a new head"
        )
    return tuple(ordered or labels)


def _tags(names: list[str]) -> list[str]:
    """Returns the IOB2 tags that types of entities have, or the given tags."""
    where = f"labels={names!r:.200}"
    if not names or len(set(names)) < len(names):
        raise InputError(f"{where}: expected at least one name, and no two alike")
    if OUTSIDE not in names:
        if any(split_tag(name)[0] in ("B", "I") for name in names):
            raise InputError(f"{where}: expected types of entities such as PER, or tags with O")
        return iob2_labels(names)
    types = list(dict.fromkeys(split_tag(name)[1] for name in names if name != OUTSIDE))
    if sorted(iob2_labels(types)) != sorted(names):
        raise InputError(
            f"{where}: expected IOB2 tags, O and for each type both B and I: "
            f"{', '.join(iob2_labels(types))}"
        )
    return names
