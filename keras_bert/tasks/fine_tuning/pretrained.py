"""Opens the checkpoint of a fine-tuning run, with its vocabulary and tokenizer."""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import fit_vocab, load_vocab


@dataclass(frozen=True)
class Pretrained:
    """What a run starts from, checked; the weights are still on disk.

    Attributes:
        checkpoint: where the weights are.
        vocab: the V pieces in the order of their ids.
        do_lower_case: whether text is lower-cased.
    """

    checkpoint: Checkpoint
    vocab: list[str]
    do_lower_case: bool

    @property
    def config(self) -> BertConfig:
        """The encoder's sizes and settings."""
        return self.checkpoint.config

    @property
    def pad_token_id(self) -> int:
        """The id of [PAD]."""
        return self.vocab.index("[PAD]")

    @property
    def labels(self) -> list[str] | None:
        """The names of the checkpoint's labels, unless they are unknown or LABEL_0, LABEL_1, ..."""
        names = self.checkpoint.labels
        if names and all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            return None  # What transformers calls labels that nobody named.
        return names

    @functools.cached_property
    def weights_sha256(self) -> str:
        """A checksum of the weights in the checkpoint, with their names and shapes."""
        digest = hashlib.sha256()
        with self.checkpoint.open_weights() as stored:
            for name in sorted(stored.shapes):
                digest.update(f"{name} {[*stored.shapes[name]]}\n".encode())
                digest.update(stored.read(name).tobytes())
        return digest.hexdigest()

    def tokenizer(self) -> BertTokenizer:
        """Makes the tokenizer of this vocabulary and casing."""
        return BertTokenizer(self.vocab, do_lower_case=self.do_lower_case)

    def record(self) -> dict[str, object]:
        """Returns what run.json keeps of the start, so that a changed one is noticed."""
        return {
            "config": self.config.to_dict(),
            "weights_sha256": self.weights_sha256,
            "vocab_sha256": hashlib.sha256("\n".join(self.vocab).encode()).hexdigest(),
            "do_lower_case": self.do_lower_case,
        }


@dataclass(frozen=True)
class StartSettings:
    """How a checkpoint is opened; FineTuningSettings has the same names.

    Attributes:
        init_checkpoint: whatever `open_checkpoint` opens.
        vocab_file: the vocabulary; empty for the checkpoint's.
        do_lower_case: whether text is lower-cased; None takes what the checkpoint says.
        max_seq_length: tokens of an example at most, which the checkpoint needs positions for.
        num_frozen_layers: layers that keep their weights, which the checkpoint must have.
        label_names: names of the checkpoint's labels in the order of its logits; None for its own.
    """

    init_checkpoint: str
    vocab_file: str = ""
    do_lower_case: bool | None = None
    max_seq_length: int = 128
    num_frozen_layers: int = 0
    label_names: Sequence[str] | None = None


def open_pretrained(settings: StartSettings) -> Pretrained:
    """Opens the checkpoint that a run starts from and checks the settings against it.

    Args:
        settings: the checkpoint, or all settings of a run.

    Returns:
        The start.

    Raises:
        InputError: a checkpoint that cannot be opened, or has too few positions or layers; no
            vocabulary, or one of another size; label names that are not as many as its logits.
    """
    checkpoint = open_checkpoint(settings.init_checkpoint)
    config = checkpoint.config
    if settings.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length} is more than the "
            f"{config.max_position_embeddings} positions of {settings.init_checkpoint}"
        )
    if settings.num_frozen_layers > config.num_hidden_layers + 1:
        raise InputError(
            f"--num_frozen_layers={settings.num_frozen_layers}: {settings.init_checkpoint} has the "
            f"embeddings and {config.num_hidden_layers} blocks; expected at most "
            f"{config.num_hidden_layers + 1}"
        )
    if settings.label_names:
        checkpoint = _with_label_names(checkpoint, settings.label_names)
    vocab = checkpoint.vocab
    if settings.vocab_file:
        vocab = fit_vocab(load_vocab(settings.vocab_file), config.vocab_size, settings.vocab_file)
    if vocab is None:
        raise InputError(
            f"{checkpoint.why_no_vocab}; give a vocabulary of Google's rules as --vocab_file"
        )
    do_lower_case = settings.do_lower_case
    if do_lower_case is None:
        do_lower_case = checkpoint.do_lower_case
    elif do_lower_case != checkpoint.do_lower_case:
        logging.warning(
            "--do_lower_case=%s, but %s says %s",
            do_lower_case,
            checkpoint.path,
            checkpoint.do_lower_case,
        )
    return Pretrained(checkpoint, vocab, do_lower_case)


def in_order_of(known: Sequence[str] | None, labels: Sequence[str]) -> list[str] | None:
    """Brings a task's labels into the order that a checkpoint's head has them in.

    Args:
        known: the checkpoint's labels in the order of its logits, or None.
        labels: the task's.

    Returns:
        The task's labels in that order, or None where the checkpoint has others. Names that differ
        by case alone are the same, unless two of the task's do.
    """
    known = known or ()
    if sorted(known) == sorted(labels):
        return [*known]
    own = {label.casefold(): label for label in labels}
    folded = [name.casefold() for name in known]
    if len(own) < len(labels) or sorted(folded) != sorted(own):
        return None
    return [own[name] for name in folded]


def _with_label_names(checkpoint: Checkpoint, names: Sequence[str]) -> Checkpoint:
    """Returns the checkpoint with other names of its labels."""
    with checkpoint.open_weights() as stored:
        logits = stored.num_labels
    if len(names) != logits or len({*names}) < len(names):
        raise InputError(
            f"--label_names={','.join(names)}: {checkpoint.path} has a head of {logits or 'no'} "
            "logits; expected a name for each, no two alike"
        )
    id2label = {str(index): name for index, name in enumerate(names)}
    return replace(checkpoint, settings={**checkpoint.settings, "id2label": id2label})
