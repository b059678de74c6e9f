"""Fits single texts into the window of a model, for the tasks that give one answer per text.

    text [B] -> tokens -> one sequence per text, truncated at the end or in the middle
                       or n windows -> network -> values [n, ...] -> pooled values [B, ...]

B texts, n windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.prepared import Prepared
from keras_bert.tasks.task import Task
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.padding import Segments, combine_segments
from keras_bert.text.windows import TextWindows, head_and_tail, make_text_windows

TRUNCATE, WINDOWS = "truncate", "windows"
LONG_TEXT = (TRUNCATE, "head_tail", WINDOWS)


@dataclass(frozen=True)
class LongText:
    """The settings for single texts with more than `max_seq_length` tokens.

    Attributes:
        strategy: `truncate` removes tokens at the end, `head_tail` in the middle; `windows` splits
            the text into overlapping windows.
        window_stride: number of tokens between the starts of two windows; 0 for half of a window.

    Raises:
        InputError: a value is invalid.
    """

    strategy: str = TRUNCATE
    window_stride: int = 0

    def __post_init__(self):
        if self.strategy not in LONG_TEXT:
            raise InputError(f"long_text={self.strategy!r}: expected one of {', '.join(LONG_TEXT)}")
        if self.window_stride and self.strategy != WINDOWS:
            raise InputError(
                f"window_stride={self.window_stride!r}: has no effect with "
                f"long_text={self.strategy!r}; expected long_text={WINDOWS!r}"
            )

    @classmethod
    def saved(
        cls, checkpoint: Checkpoint, strategy: str | None = None, max_seq_length: int | None = None
    ) -> "LongText":
        """Reads the settings of a saved model; another `strategy` has its defaults.

        A saved stride that does not fit into windows of `max_seq_length` is ignored.
        """
        saved_strategy = checkpoint.setting("long_text", str, None, TRUNCATE)
        if strategy not in (None, saved_strategy):
            return cls(strategy)
        strategy = saved_strategy
        stride = checkpoint.setting("window_stride", int, None, 0) if strategy == WINDOWS else 0
        stride = 0 if max_seq_length and stride > max_seq_length - 2 else stride
        return cls(strategy, stride)

    @classmethod
    def of_export(cls, info: Mapping[str, Any]) -> "LongText":
        """Reads the settings in the content of an export's export.json."""
        return cls(info.get("long_text", TRUNCATE), info.get("window_stride", 0))

    def to_dict(self) -> dict[str, object]:
        """Returns the settings that are saved with a model and in exports."""
        if self.strategy != WINDOWS:
            return {"long_text": self.strategy}
        return {"long_text": self.strategy, "window_stride": self.window_stride}

    def check_stride(self, max_seq_length: int) -> None:
        """Raises InputError if the stride is not a whole number of tokens within a window."""
        room, stride = max_seq_length - 2, self.window_stride
        is_number = isinstance(stride, int) and not isinstance(stride, bool)
        if not is_number or not 0 <= stride <= max(room, 0):
            raise InputError(
                f"window_stride={stride!r}: expected 0, or from 1 to the {room} tokens of a window"
            )

    def stride(self, max_seq_length: int) -> int:
        """Returns the number of tokens between the starts of two windows."""
        return self.window_stride or max(1, (max_seq_length - 2) // 2)


TRUNCATED = LongText()


class LongTextProcessor(TextProcessor):
    """Converts texts or pairs to inputs, with `settings.long_text` applied to single texts."""

    def preprocess(
        self, text: tf.Tensor, text_pair: tf.Tensor | None = None
    ) -> Segments | TextWindows:
        """Converts texts [B] or pairs of texts, [B] each, into model inputs.

        Raises:
            TooManyTokens: the windows of all texts have too many tokens for one call. In a graph,
                the operation fails instead, with a tf.errors.InvalidArgumentError.
        """
        long_text: LongText = self.settings.long_text
        if long_text.strategy == TRUNCATE or text_pair is not None:
            return super().preprocess(text, text_pair)
        tokens = self.tokenizer.tokenize(text)
        length = self.settings.max_seq_length
        special = {
            "max_seq_length": length,
            "cls_token_id": self.tokenizer.cls_token_id,
            "sep_token_id": self.tokenizer.sep_token_id,
        }
        if long_text.strategy == WINDOWS:
            return make_text_windows(tokens, stride=long_text.stride(length), **special)
        shortened, truncated = head_and_tail(tokens, length - 2)
        return combine_segments(shortened, **special)._replace(truncated=truncated)

    def pooled(self, values: tf.Tensor, inputs: Segments | TextWindows) -> tf.Tensor:
        """Returns the mean over the windows of each text: [n, ...] -> [B, ...].

        Returns the values as they are if `inputs` are not windows.
        """
        if not isinstance(inputs, TextWindows):
            return values
        return tf.math.segment_mean(values, inputs.text)


class LongTextTask(Task):
    """A task with one answer per text, whose settings have `long_text`."""

    processor: LongTextProcessor

    def set_long_text(self, strategy: str, window_stride: int = 0) -> None:
        """Sets what happens to single texts with more than `max_seq_length` tokens.

        The setting applies to training, prediction and exports, and is saved with the model.

        Args:
            strategy: `truncate` removes tokens at the end (the default of a new model); `head_tail`
                removes them in the middle, so that a quarter of the rest is the beginning of the
                text; `windows` splits the text into overlapping windows, over whose logits or
                vectors the mean is taken.
            window_stride: number of tokens between the starts of two windows; 0 for half of a
                window.

        Raises:
            InputError: an argument is invalid, or the object was loaded from an export.
        """
        _ = self.model  # Raises an error for an export, whose settings are in its graph.
        self._replace_settings(long_text=LongText(strategy, window_stride))

    def text_settings(self) -> dict[str, Any]:
        """Returns the entries of export.json that describe preprocessing and decoding."""
        return super().text_settings() | self.settings.long_text.to_dict()


def window_counts(prepared: Prepared) -> np.ndarray:
    """Returns the number of sequences of each text, int [n]: of its windows, or 1."""
    counts = [
        np.bincount(chunk.inputs.text, minlength=len(chunk.inputs.truncated))
        if isinstance(chunk.inputs, TextWindows)
        else np.ones(len(chunk.inputs.truncated), np.int64)
        for chunk in prepared.chunks
    ]
    return np.concatenate(counts)


def pooled_rows(prepared: Prepared, values: np.ndarray, processor: LongTextProcessor) -> np.ndarray:
    """Pools the values of the sequences of preprocessed texts, [n, ...], into one row per text."""
    parts = [processor.pooled(values[chunk.rows], chunk.inputs) for chunk in prepared.chunks]
    return np.concatenate([np.asarray(part) for part in parts])
