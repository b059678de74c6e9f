"""What a fine-tuning run starts from: settings in; checkpoint, vocabulary and tokenizer out."""

import functools
import hashlib
import math
import re
from dataclasses import dataclass

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tokenization import BertTokenizer
from keras_bert.vocabulary import load_vocab


@dataclass(frozen=True)
class FineTuningSettings:
    """What a fine-tuning run is made of; each value can change its outcome.

    Attributes:
        init_checkpoint: what to start from: whatever `open_checkpoint` opens.
        vocab_file: the vocabulary; empty for the checkpoint's.
        do_lower_case: whether text is lower-cased; None takes what the checkpoint says.
        max_seq_length: pieces of an example at most, with [CLS] and [SEP].
        learning_rate: its peak, reached after the warm-up.
        num_train_epochs: passes over the training examples; a fraction is allowed.
        warmup_proportion: the share of the steps in which the learning rate rises.
        layer_decay: learning rate of a layer over that of the layer above it.
        bias_correction: Adam's; false as in the paper of BERT.
        weight_decay: AdamW's.
        num_frozen_layers: layers that keep their weights, from below: 1 for the embeddings, 2 for
            them and the first block, and so on.
        early_stopping_patience: evaluations without a better one that end training; 0 for never.
        random_seed: decides fresh weights, data order and dropout masks.
        mixed_precision: `float32` or `bfloat16`.
        eval_batch_size: examples a batch where nothing is learnt.
        do_train: whether to train; else the checkpoint is used as it is.
        do_eval: whether to evaluate after each epoch, keep the best and report it.
        do_predict: whether to write predictions.
    """

    init_checkpoint: str
    vocab_file: str = ""
    do_lower_case: bool | None = None
    max_seq_length: int = 128
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1
    layer_decay: float = 1.0
    bias_correction: bool = True
    weight_decay: float = 0.01
    num_frozen_layers: int = 0
    early_stopping_patience: int = 0
    random_seed: int = 12345
    mixed_precision: str = "float32"
    eval_batch_size: int = 32
    do_train: bool = True
    do_eval: bool = True
    do_predict: bool = False


@dataclass(frozen=True)
class Start:
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


def find_start(settings: FineTuningSettings) -> Start:
    """Opens the checkpoint that a run starts from and checks the settings against it.

    Args:
        settings: what the run is made of.

    Returns:
        The start.

    Raises:
        InputError: a checkpoint that cannot be opened, no vocabulary, or a value out of range.
    """
    checkpoint = open_checkpoint(settings.init_checkpoint)
    config = checkpoint.config
    _check_values(settings, config)
    vocab = checkpoint.vocab
    if settings.vocab_file:
        vocab = load_vocab(settings.vocab_file)
        config.check_vocab_size(len(vocab), settings.vocab_file)
    if vocab is None:
        raise InputError(f"{checkpoint.path}: has no vocabulary; give it as --vocab_file")
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
    return Start(checkpoint, vocab, do_lower_case)


def _check_values(settings: FineTuningSettings, config: BertConfig) -> None:
    if settings.mixed_precision == "float16":
        raise InputError(
            "--mixed_precision=float16 is not built yet (it needs a loss scale); expected float32 "
            "or bfloat16"
        )
    if not (settings.do_train or settings.do_eval or settings.do_predict):
        raise InputError("nothing to do: expected --do_train, --do_eval or --do_predict")
    if settings.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length} is more than the "
            f"{config.max_position_embeddings} positions of {settings.init_checkpoint}"
        )
    if settings.num_frozen_layers > config.num_hidden_layers + 1:
        raise InputError(
            f"--num_frozen_layers={settings.num_frozen_layers}: the model has the embeddings and "
            f"{config.num_hidden_layers} blocks; expected at most {config.num_hidden_layers + 1}"
        )
    if not math.isfinite(settings.learning_rate):
        raise InputError(f"--learning_rate={settings.learning_rate} is not a number")
    if not 0 <= settings.warmup_proportion < 1:
        raise InputError(
            f"--warmup_proportion={settings.warmup_proportion}: expected at least 0 and below 1"
        )
    if not 0 < settings.layer_decay <= 1:
        raise InputError(f"--layer_decay={settings.layer_decay}: expected above 0 and at most 1")
    if settings.do_train and not 0 < settings.num_train_epochs < math.inf:
        raise InputError(
            f"--num_train_epochs={settings.num_train_epochs}: expected more than 0 and finite"
        )
    if settings.early_stopping_patience and not settings.do_eval:
        raise InputError("--early_stopping_patience needs --do_eval")
