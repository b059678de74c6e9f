"""Opens the initial checkpoint of a fine-tuning run, with its vocabulary and tokenizer."""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import fit_vocab, load_vocab


@dataclass(frozen=True)
class Pretrained:
    """The initial checkpoint of a run, whose weights are not loaded yet, with its vocabulary."""

    checkpoint: Checkpoint
    vocab: list[str]
    tokenizer_settings: TokenizerSettings

    @property
    def do_lower_case(self) -> bool:
        """Whether text is lower-cased."""
        return self.tokenizer_settings.do_lower_case

    @property
    def config(self) -> BertConfig:
        """The encoder's configuration."""
        return self.checkpoint.config

    @property
    def pad_token_id(self) -> int:
        """The id of [PAD]."""
        return self.vocab.index("[PAD]")

    @property
    def labels(self) -> list[str] | None:
        """The names of the checkpoint's labels; None if unknown or LABEL_0, LABEL_1, ..."""
        names = self.checkpoint.labels
        if names and all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            return None  # transformers' default names.
        return names

    @functools.cached_property
    def weights_sha256(self) -> str:
        """A checksum of the checkpoint's weights, with their names and shapes."""
        digest = hashlib.sha256()
        with self.checkpoint.open_weights() as stored:
            for name in sorted(stored.shapes):
                digest.update(f"{name} {[*stored.shapes[name]]}\n".encode())
                digest.update(stored.read(name).tobytes())
        return digest.hexdigest()

    def tokenizer(self) -> BertTokenizer:
        """Creates the tokenizer for this vocabulary and these settings."""
        return BertTokenizer(self.vocab, **self.tokenizer_settings.to_dict())

    def record(self) -> dict[str, object]:
        """Returns the entries of run.json that detect a changed checkpoint."""
        return {
            "config": self.config.to_dict(),
            "weights_sha256": self.weights_sha256,
            "vocab_sha256": hashlib.sha256("\n".join(self.vocab).encode()).hexdigest(),
            "do_lower_case": self.do_lower_case,
            **self.tokenizer_settings.non_default(),
        }


@dataclass(frozen=True)
class StartSettings:
    """The settings for opening a checkpoint, as documented in FineTuningSettings."""

    init_checkpoint: str
    vocab_file: str = ""
    do_lower_case: bool | None = None
    max_seq_length: int = 128
    num_frozen_layers: int = 0
    label_names: Sequence[str] | None = None


def open_pretrained(settings: StartSettings) -> Pretrained:
    """Opens the initial checkpoint of a run and checks the settings against it.

    `settings` may also be the FineTuningSettings of the run.

    Raises:
        InputError: the checkpoint cannot be opened; its number of positions, layers or logits does
            not match the settings; or the vocabulary is missing or does not have the model's size.
    """
    checkpoint = open_checkpoint(settings.init_checkpoint)
    config = checkpoint.config
    if settings.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {settings.init_checkpoint} has "
            f"{config.max_position_embeddings} positions; expected at most as many"
        )
    if settings.num_frozen_layers > config.num_hidden_layers + 1:
        raise InputError(
            f"--num_frozen_layers={settings.num_frozen_layers}: {settings.init_checkpoint} has an "
            f"embedding layer and {config.num_hidden_layers} blocks; expected at most "
            f"{config.num_hidden_layers + 1}"
        )
    if settings.label_names:
        checkpoint = _with_label_names(checkpoint, settings.label_names)
    vocab = checkpoint.vocab
    if settings.vocab_file:
        vocab = fit_vocab(load_vocab(settings.vocab_file), config.vocab_size, settings.vocab_file)
    if vocab is None:
        raise InputError(
            f"{checkpoint.why_no_vocab}; pass a vocabulary for BERT's tokenizer as --vocab_file"
        )
    tokenizer, do_lower_case = checkpoint.tokenizer_settings, settings.do_lower_case
    if do_lower_case not in (None, tokenizer.do_lower_case):
        logging.warning(
            "--do_lower_case=%s overrides the setting of %s, which is %s",
            do_lower_case,
            checkpoint.path,
            checkpoint.do_lower_case,
        )
        tokenizer = replace(tokenizer, do_lower_case=do_lower_case)
    return Pretrained(checkpoint, vocab, tokenizer)


def in_order_of(known: Sequence[str] | None, labels: Sequence[str]) -> list[str] | None:
    """Returns a task's `labels` in the order of `known`, the labels of a checkpoint's logits.

    The result is None if the checkpoint has no labels, or other labels than the task. Names that
    differ only in case are the same label, unless two of the task's labels differ only in case.
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
    with checkpoint.open_weights() as stored:
        logits = stored.num_labels
    if len(names) != logits or len({*names}) < len(names):
        raise InputError(
            f"--label_names={','.join(names)}: {checkpoint.path} has {logits or 'no'} logits; "
            "expected one name per logit, all different"
        )
    id2label = {str(index): name for index, name in enumerate(names)}
    return replace(checkpoint, settings={**checkpoint.settings, "id2label": id2label})
