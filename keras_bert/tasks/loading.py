"""Where a task object comes from: a checkpoint, the settings saved with it, and its run."""

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
# The longest text where neither the model nor its run says how it was trained.
DEFAULT_MAX_SEQ_LENGTH = 128
# Tokens of the shortest sequence that a task takes: a pair of one token each.
SHORTEST = 5

# Architecture, by transformers' name -> the task that its heads are for.
TASK_OF = {
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "question_answering",
    "BertForTokenClassification": "ner",
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertModel": "embedding",
}
# Tasks whose heads are fine-tuned, so a checkpoint with another one's is a mistake.
_FINE_TUNED = ("classification", "question_answering", "ner")


@dataclass(frozen=True)
class ModelOptions:
    """What a caller may choose of the model and its tokenizer.

    Attributes:
        tokenizer: in place of the checkpoint's.
        dtype: dtype policy, such as "mixed_bfloat16"; None for the global one.
    """

    tokenizer: BertTokenizer | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Source:
    """What a task object is loaded from.

    Attributes:
        checkpoint: the weights, config and vocabulary.
        run: the run that made them; without settings if there is none.
    """

    checkpoint: Checkpoint
    run: EarlierRun

    @classmethod
    def open(cls, path: Any) -> "Source":
        """Opens whatever `--init_checkpoint` accepts.

        Raises:
            InputError: nothing that can be opened.
        """
        checkpoint = open_checkpoint(path)
        return cls(checkpoint, EarlierRun.of(checkpoint.path))

    def setting(self, name: str, kind: type, given: Any, default: Any = None) -> Any:
        """Returns a setting: the given value, else the saved one, the run's, or the default.

        Args:
            name: the setting's name, which is also its flag's.
            kind: int, float, bool or str.
            given: the caller's value; None if open.
            default: for a setting that nothing gives.

        Raises:
            InputError: a stored value of another kind.
        """
        if given is not None:
            return given
        saved = self.checkpoint.settings.get(SETTINGS_KEY)
        where = self.checkpoint.path / CONFIG
        value = value_of(where, saved if isinstance(saved, Mapping) else {}, name, kind, None)
        return self.run.setting(name, kind, default) if value is None else value

    def max_seq_length(self, given: int | None, default: int = DEFAULT_MAX_SEQ_LENGTH) -> int:
        """Returns the tokens of a text.

        Raises:
            InputError: more than the model's positions, or too few.
        """
        positions = self.checkpoint.config.max_position_embeddings
        # 0: an older run of run_pretraining.py, which took any records.
        length = self.setting("max_seq_length", int, given)
        length = min(default, positions) if length in (None, 0) and given is None else length
        check_max_seq_length(length, positions)
        return length

    def tokenizer(self, given: BertTokenizer | None, *, special: bool = False) -> BertTokenizer:
        """Returns the tokenizer: the given one, else one of the checkpoint's vocabulary.

        Args:
            given: the caller's; None if open.
            special: keep special tokens such as [MASK] that a text spells out.

        Raises:
            InputError: the checkpoint has no vocabulary, or the given one is of another size.
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
            raise InputError(f"{checkpoint.why_no_vocab}; expected one, or tokenizer=")
        return BertTokenizer(checkpoint.vocab, checkpoint.do_lower_case, special)

    def check_heads(self, task: str, name: str) -> None:
        """Checks that the checkpoint is not of another task.

        Args:
            task: the task's name.
            name: the class that opens it, for the message.

        Raises:
            InputError: it has the heads of another fine-tuned task, or reads left to right.
        """
        path, architecture = self.checkpoint.path, self.checkpoint.architecture
        if self.checkpoint.config.is_decoder:
            raise InputError(
                f"{path}: is a left-to-right model (is_decoder); {name} expects one that attends "
                "to both sides"
            )
        known = TASK_OF.get(architecture)
        if task != "embedding" and known in _FINE_TUNED and known != task:
            raise InputError(
                f"path={str(path)!r}: is a {architecture}; {name} expects a model for its own task "
                "or without a head; python -m keras_bert.checkpoints.convert SRC DST --noheads "
                "drops the head"
            )


def check_max_seq_length(length: int, positions: int, shortest: int = SHORTEST) -> None:
    """Checks that a model can read texts of a length.

    Raises:
        InputError: more than the model's positions, or too few.
    """
    if isinstance(length, bool) or not isinstance(length, int):
        raise InputError(f"max_seq_length={length!r}: expected a whole number")
    if not shortest <= length <= positions:
        raise InputError(
            f"max_seq_length={length}: expected from {shortest} to the model's {positions} "
            "positions (max_position_embeddings)"
        )


def fill(model: keras.Model, checkpoint: Checkpoint) -> LoadReport:
    """Fills a model with a checkpoint's weights.

    Args:
        model: one of keras_bert.models.
        checkpoint: its weights.

    Returns:
        What was loaded, newly initialized and ignored.

    Raises:
        InputError: weights that do not fit or are not finite.
    """
    report = checkpoint.load_into(model)
    logging.info("%s", report)
    broken = [path for path, value in weights_of(model).items() if not np.isfinite(value).all()]
    if broken:
        raise InputError(f"{checkpoint.path}: {', '.join(broken)[:200]} is not finite")
    return report
