"""Resolves what a task object is loaded from: a checkpoint, its saved settings and its run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.model_directory import CONFIG
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.weights import LoadReport, weights_of
from keras_bert.common.errors import InputError
from keras_bert.common.files import value_of
from keras_bert.tasks.fine_tuning.earlier_run import EarlierRun
from keras_bert.text.tokenizer import BertTokenizer

# The key of config.json under which `save_pretrained` keeps a task's settings.
SETTINGS_KEY = "keras_bert"
# The default if neither the model directory nor its run records a max_seq_length.
DEFAULT_MAX_SEQ_LENGTH = 128
# The minimum of max_seq_length: a pair of one token each, [CLS] and two [SEP].
SHORTEST = 5

# transformers' architecture name -> the task of its heads.
TASK_OF = {
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "question_answering",
    "BertForTokenClassification": "ner",
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertModel": "embedding",
}
# Tasks with a fine-tuned head. Opening a checkpoint with the head of another one is an error.
_FINE_TUNED = ("classification", "question_answering", "ner")


@dataclass(frozen=True)
class ModelOptions:
    """The caller's tokenizer and dtype policy; None for the checkpoint's and the global one."""

    tokenizer: BertTokenizer | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Source:
    """The checkpoint and the run that a task object is loaded from.

    If no run produced the checkpoint, `run` has empty settings.
    """

    checkpoint: Checkpoint
    run: EarlierRun

    @classmethod
    def open(cls, path: Any) -> "Source":
        """Opens any path that `--init_checkpoint` accepts; raises InputError for other paths."""
        checkpoint = open_checkpoint(path)
        return cls(checkpoint, EarlierRun.of(checkpoint.path))

    def setting(self, name: str, kind: type, given: Any, default: Any = None) -> Any:
        """Returns the first available value: given, saved with the model, from its run, or default.

        Args:
            name: the setting's name, which is also the name of its flag.
            kind: int, float, bool or str; a stored value of another type raises InputError.
            given: the caller's value, or None.
            default: the value if no other is available.
        """
        if given is not None:
            return given
        saved = self.checkpoint.settings.get(SETTINGS_KEY)
        where = self.checkpoint.path / CONFIG
        value = value_of(where, saved if isinstance(saved, Mapping) else {}, name, kind, None)
        return self.run.setting(name, kind, default) if value is None else value

    def max_seq_length(self, given: int | None, default: int = DEFAULT_MAX_SEQ_LENGTH) -> int:
        """Returns the maximum number of tokens of a text, checked against the model's positions."""
        positions = self.checkpoint.config.max_position_embeddings
        # Older runs of run_pretraining.py recorded 0, which accepted records of any length.
        length = self.setting("max_seq_length", int, given)
        length = min(default, positions) if length in (None, 0) and given is None else length
        check_max_seq_length(length, positions)
        return length

    def tokenizer(self, given: BertTokenizer | None, *, special: bool = False) -> BertTokenizer:
        """Returns the given tokenizer, or one for the checkpoint's vocabulary.

        Args:
            given: the caller's tokenizer, or None.
            special: whether special tokens such as [MASK] are recognized in texts.

        Raises:
            InputError: the checkpoint has no vocabulary, or the given tokenizer has another size.
        """
        checkpoint = self.checkpoint
        if given is not None:
            if given.vocab_size != checkpoint.config.vocab_size:
                raise InputError(
                    f"tokenizer: has {given.vocab_size} tokens, but {checkpoint.path} has "
                    f"vocab_size {checkpoint.config.vocab_size}; expected the same number"
                )
            return given
        if checkpoint.vocab is None:
            raise InputError(
                f"{checkpoint.why_no_vocab}; expected a checkpoint with a vocabulary, or the "
                "argument `tokenizer`"
            )
        return BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case, special)

    def check_heads(self, task: str, name: str) -> None:
        """Checks that the checkpoint does not belong to another task.

        Args:
            task: the task's name.
            name: the task's class, for the error message.

        Raises:
            InputError: it has the head of another fine-tuned task, or is a left-to-right model.
        """
        path, architecture = self.checkpoint.path, self.checkpoint.architecture
        if self.checkpoint.config.is_decoder:
            raise InputError(
                f"{path}: is a left-to-right model (is_decoder); {name} expects a "
                "bidirectional model"
            )
        known = TASK_OF.get(architecture)
        if task != "embedding" and known in _FINE_TUNED and known != task:
            raise InputError(
                f"path={str(path)!r}: is a {architecture}; {name} expects a model for its own task "
                "or without a head; python -m keras_bert.checkpoints.convert SRC DST --noheads "
                "removes the head"
            )


def check_max_seq_length(length: int, positions: int, shortest: int = SHORTEST) -> None:
    """Checks that a length is an integer from `shortest` to the model's number of positions."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise InputError(f"max_seq_length={length!r}: expected a whole number")
    if not shortest <= length <= positions:
        raise InputError(
            f"max_seq_length={length}: expected from {shortest} to the model's {positions} "
            "positions (max_position_embeddings)"
        )


def load_weights(model: keras.Model, checkpoint: Checkpoint) -> LoadReport:
    """Loads a checkpoint's weights into a model.

    Returns:
        The report of the weights that were loaded, newly initialized and ignored.

    Raises:
        InputError: weights that do not fit or are not finite.
    """
    report = checkpoint.load_into(model)
    logging.info("%s", report)
    non_finite = [path for path, value in weights_of(model).items() if not np.isfinite(value).all()]
    if non_finite:
        names = ", ".join(non_finite)[:200]
        raise InputError(f"{checkpoint.path}: {names} is not finite; expected finite weights")
    return report
