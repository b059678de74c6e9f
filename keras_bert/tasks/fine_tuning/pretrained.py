"""Opens the initial checkpoint of a fine-tuning run."""

import re
from collections.abc import Callable, Sequence

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.checks import check_list
from keras_bert.tasks.fine_tuning.settings import FineTuningSettings


def open_pretrained(settings: FineTuningSettings) -> Checkpoint:
    """Opens the initial checkpoint of a run and checks the settings against it.

    Raises:
        InputError: the checkpoint cannot be opened; its number of positions, layers or logits does
            not match the settings; or the vocabulary is missing or does not have the model's size.
    """
    checkpoint = open_checkpoint(
        settings.init_checkpoint,
        vocab_file=settings.vocab_file,
        do_lower_case=settings.do_lower_case,
        label_names=settings.label_names,
    )
    config = checkpoint.config
    if settings.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {settings.init_checkpoint} has "
            f"{config.max_position_embeddings} positions; expected at most as many"
        )
    checkpoint.require_vocab("pass a vocabulary for BERT's tokenizer as --vocab_file")
    return checkpoint


def in_order_of(model_labels: Sequence[str] | None, labels: Sequence[str]) -> list[str] | None:
    """Returns a task's `labels` in the order of `model_labels`, those of a checkpoint's logits.

    The result is None if the checkpoint has no labels, or other labels than the task. Names that
    differ only in case are the same label, unless two of the task's labels differ only in case.
    """
    model_labels = model_labels or ()
    if sorted(model_labels) == sorted(labels):
        return [*model_labels]
    by_folded_name = {label.casefold(): label for label in labels}
    folded = [name.casefold() for name in model_labels]
    if len(by_folded_name) < len(labels) or sorted(folded) != sorted(by_folded_name):
        return None
    return [by_folded_name[name] for name in folded]


def head_labels(
    checkpoint: Checkpoint,
    names: Sequence[str] | None,
    labels_of: Callable[[list[str]], list[str]] = list,
) -> tuple[list[str], bool]:
    """Returns the labels of a model's head, in the order of its logits.

    Args:
        checkpoint: the checkpoint, whose labels are the result if `names` is None.
        names: the labels, or names that `labels_of` converts to the labels.
        labels_of: the conversion, which is used for names that are not the labels of the head.

    Returns:
        The labels: without `names`, LABEL_0, LABEL_1, ... as in transformers for a head whose
        labels have no names, and [] without a head. And whether they have other names than these.

    Raises:
        InputError: `names` are invalid, or do not match the checkpoint's head.
    """
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels or 0
    saved = (checkpoint.labels or []) if num_logits else []
    if all(re.fullmatch(r"LABEL_\d+", name) for name in saved):
        saved = []
    if names is None:
        return saved or [f"LABEL_{index}" for index in range(num_logits)], bool(saved)
    labels = [str(name) for name in check_list("labels", names, "names")]
    if not labels or len({*labels}) < len(labels):
        raise InputError(f"labels={labels!r:.200}: expected at least one name, and no duplicates")
    ordered = in_order_of(saved, labels)
    if ordered is None and (saved or num_logits != len(labels)):
        labels = labels_of(labels)
        ordered = in_order_of(saved, labels)
    if ordered is None and (saved or num_logits not in (0, len(labels))):
        described = f"the labels {', '.join(saved)}" if saved else f"a head of {num_logits} logits"
        raise InputError(
            f"labels={list(names)!r:.200}: {checkpoint.path} has {described}; expected the same; "
            "for a new head, run keras-bert convert SRC DST --noheads"
        )
    return ordered or labels, True
