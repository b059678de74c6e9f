"""Opens the initial checkpoint of a fine-tuning run."""

from collections.abc import Sequence

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
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
