"""Opens the checkpoint for a task object, and finds the settings of the model and its run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.model_directory import CONFIG
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.weights import LoadReport
from keras_bert.errors import InputError
from keras_bert.files import value_of
from keras_bert.tasks.fine_tuning.earlier_run import SETTINGS_KEY, EarlierRun
from keras_bert.text.tokenizer import BertTokenizer

# The default if neither the model directory nor its run records a max_seq_length.
DEFAULT_MAX_SEQ_LENGTH = 128
# The minimum of max_seq_length: [CLS] a [SEP] b [SEP], for two texts of one token each.
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
# Tasks with a fine-tuned head. A checkpoint with such a head can be opened only for its own task,
# and for embedding.
_FINE_TUNED = ("classification", "question_answering", "ner")


@dataclass(frozen=True)
class ModelOptions:
    """Options for creating a task object.

    Attributes:
        tokenizer: replaces the tokenizer of the checkpoint; None to keep it.
        dtype: the dtype policy of the model; None for Keras' global policy.
    """

    tokenizer: BertTokenizer | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Source:
    """The checkpoint that a task object is loaded from, and the run that wrote the checkpoint.

    If there is no such run, the settings of `run` are empty.
    """

    checkpoint: Checkpoint
    run: EarlierRun

    @classmethod
    def open(cls, path: Any) -> "Source":
        """Opens any path that `--init_checkpoint` accepts; raises InputError for other paths."""
        return cls.of(open_checkpoint(path))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Source":
        """Finds the run that wrote an open checkpoint."""
        return cls(checkpoint, EarlierRun.of(checkpoint.path))

    def setting(self, name: str, kind: type, given: Any, default: Any = None) -> Any:
        """Returns `given`, or if it is None the stored setting of this name, or else `default`.

        The setting is read from the model's config.json, or else from the flags of the run that
        wrote the model.

        Raises:
            InputError: the stored value is not of type `kind` (int, float, bool or str).
        """
        if given is not None:
            return given
        saved = self.checkpoint.settings.get(SETTINGS_KEY)
        where = self.checkpoint.path / CONFIG
        value = value_of(where, saved if isinstance(saved, Mapping) else {}, name, kind, None)
        return self.run.setting(name, kind, default) if value is None else value

    def max_seq_length(self, given: int | None, default: int = DEFAULT_MAX_SEQ_LENGTH) -> int:
        """Returns the maximum number of tokens of a text: `given`, or else the stored setting.

        Without either, it is `default`, or the model's number of positions if that is smaller.

        Raises:
            InputError: the number is below SHORTEST, or above the model's number of positions.
        """
        positions = self.checkpoint.config.max_position_embeddings
        # Older runs of run_pretraining.py recorded 0 if records of any length were accepted.
        length = self.setting("max_seq_length", int, given)
        length = min(default, positions) if length in (None, 0) and given is None else length
        check_max_seq_length(length, positions)
        return length

    def tokenizer(self, given: BertTokenizer | None, *, special: bool = False) -> BertTokenizer:
        """Returns the given tokenizer, or else creates one for the checkpoint's vocabulary.

        With `special`, a new tokenizer recognizes special tokens such as [MASK] in texts.

        Raises:
            InputError: there is no vocabulary, or the given tokenizer does not have the model's
                number of tokens.
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
        return BertTokenizer(
            checkpoint.vocab, keep_special_tokens=special, **checkpoint.tokenizer_settings.to_dict()
        )

    def check_heads(self, task: str, name: str) -> None:
        """Checks that the checkpoint can be used for a task; `name` is the name of its class.

        Raises:
            InputError: the model has the head of another fine-tuned task, or is left-to-right.
        """
        path, architecture = self.checkpoint.path, self.checkpoint.architecture
        if self.checkpoint.config.is_decoder:
            raise InputError(
                f"{path}: is a left-to-right model (is_decoder); {name} expects a "
                "bidirectional model"
            )
        if task != "embedding" and is_of_other_task(self.checkpoint, task):
            raise InputError(
                f"path={str(path)!r}: is a {architecture}; {name} expects a model for its own task "
                "or without a head; keras-bert convert SRC DST --noheads "
                "removes the head"
            )


def is_of_other_task(checkpoint: Checkpoint, task: str) -> bool:
    """Returns whether a checkpoint has the fine-tuned head of another task than `task`."""
    known = TASK_OF.get(checkpoint.architecture)
    return known in _FINE_TUNED and known != task


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
    """Loads weights into a model; raises InputError if they do not match it or are not finite."""
    report = checkpoint.load_into(model)
    logging.info("%s", report)
    return report


def warn_of_untrained(checkpoint: Checkpoint, untrained: Sequence[str]) -> None:
    """Logs a warning if there are `untrained` weights, which are not in the checkpoint."""
    if untrained:
        logging.warning(
            "%s: weights that are not in the checkpoint are newly initialized: %s; train the "
            "model before you use it",
            checkpoint.path,
            ", ".join(untrained),
        )
