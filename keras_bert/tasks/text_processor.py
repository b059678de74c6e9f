"""Preprocesses whole texts or pairs of texts, for the tasks that answer once per text.

    text [B] -> tokens -> one sequence per text, truncated at the end or in the middle
                       or n windows -> network -> values [n, ...] -> pooled values [B, ...]

B texts, n windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.export.engine_network import Rows
from keras_bert.export.inputs import TOKEN_ID_SPECS, same_shape
from keras_bert.export.saved_model import ServedTask, Steps
from keras_bert.tasks.prepared import Arrays, Prepared, Processor
from keras_bert.text.padding import NUMPY, Segments, combine_segments, gather_segments
from keras_bert.text.windows import TextWindows, head_and_tail, make_text_windows

TRUNCATE, WINDOWS = "truncate", "windows"
LONG_TEXT = (TRUNCATE, "head_tail", WINDOWS)


@dataclass(frozen=True)
class LongText:
    """The settings for texts with more than `max_seq_length` tokens, as in `set_long_text`."""

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


class TextProcessor(Processor):
    """Converts texts or pairs of texts into model inputs; subclasses implement `decode`.

    `settings.long_text` applies to single texts, if the settings have it, and
    `truncates_as_transformers`, an argument of `combine_segments`, to pairs.
    """

    input_names: tuple[str, ...] = ("text",)
    truncates_as_transformers: bool = False

    def preprocess(
        self, text: tf.Tensor, text_pair: tf.Tensor | None = None
    ) -> Segments | TextWindows:
        """Converts texts [B] or pairs of texts, [B] each, into model inputs.

        Raises:
            TooManyTokens: the windows of all texts have too many tokens for one call. In a graph,
                the operation fails instead, with a tf.errors.InvalidArgumentError.
        """
        length = self.settings.max_seq_length
        special = {
            "max_seq_length": length,
            "cls_token_id": self.tokenizer.cls_token_id,
            "sep_token_id": self.tokenizer.sep_token_id,
        }
        if text_pair is not None:
            # One call for both: for a single text, most time is spent on launching ops.
            text, text_pair = same_shape(text=text, text_pair=text_pair)
            tokens = self.tokenizer.tokenize(tf.concat([text, text_pair], axis=0))
            count = tf.size(text)
            special["truncates_as_transformers"] = self.truncates_as_transformers
            return combine_segments(tokens[:count], tokens[count:], **special)
        tokens = self.tokenizer.tokenize(text)
        long_text: LongText = getattr(self.settings, "long_text", TRUNCATED)
        if long_text.strategy == WINDOWS:
            return make_text_windows(tokens, stride=long_text.stride(length), **special)
        if long_text.strategy == TRUNCATE:
            return combine_segments(tokens, **special)
        shortened, truncated = head_and_tail(tokens, length - 2)
        return combine_segments(shortened, **special)._replace(truncated=truncated)

    def pooled(self, values: tf.Tensor, inputs: Segments | TextWindows) -> tf.Tensor:
        """Returns the mean over the windows of each text, if any: [n, ...] -> [B, ...]."""
        if not isinstance(inputs, TextWindows):
            return values
        return tf.math.segment_mean(values, inputs.text)


def window_counts(prepared: Prepared) -> np.ndarray:
    """Returns the number of sequences of each text, int [n]: of its windows, or 1."""
    counts = [
        np.bincount(inputs.text, minlength=len(inputs.truncated))
        if isinstance(inputs, TextWindows)
        else np.ones(len(inputs.truncated), np.int64)
        for inputs in prepared.chunks
    ]
    return np.concatenate(counts)


# --- serving signatures ---


class ServedTexts(ServedTask):
    """The SavedModel signatures of a task on texts, which map strings or token ids to answers."""

    processor: TextProcessor

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        texts = [tf.TensorSpec([None], tf.string, name=x) for x in self.processor.input_names]
        decode = self.processor.decode
        return {
            "serving_default": Steps(texts, self.processor.preprocess, decode),
            "token_ids": Steps(TOKEN_ID_SPECS, self._of_token_ids, decode),
        }

    def _of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Segments:
        rows = self.unpadded(input_ids, input_mask, segment_ids)
        return Segments(rows.input_ids, rows.segment_ids, rows.truncated)


# The estimated bytes after which a cache starts again; and those of a word and of a token.
_CACHE_BYTES, _WORD_BYTES, _TOKEN_BYTES = 1 << 26, 256, 40
# `ServedTask.tokenize` pads its rows. A call has up to this many values, unless a word has more.
_PADDED_VALUES = 1 << 20


class ArraySteps:
    """The steps of `serving_default` without TensorFlow, for an engine and truncated texts.

    For one short text, TensorFlow's calls would take half as much time as the network. The ids of
    words between spaces are in a dict, and TensorFlow tokenizes only new words. Several threads may
    call it. `decode` of the processor has the argument `ops`; its tokenizer is not used. `tokenize`
    is the function `ServedTask.tokenize` of the SavedModel, and `info` the content of export.json.
    """

    def __init__(
        self, processor: TextProcessor, tokenize: Callable[..., Any], info: Mapping[str, Any]
    ):
        self.processor = processor
        self._tokenize = tokenize
        self._ids: dict[bytes, list[int]] = {}
        self._bytes = 0
        self._special_ids = [info["cls_token_id"], info["sep_token_id"]]

    def preprocess(self, *columns: Sequence[bytes]) -> tuple[Rows, Segments]:
        """Converts byte strings [B], or pairs of them, into the rows of the network."""
        cls, sep = self._special_ids
        words = [[text.split(b" ") for text in column] for column in columns]
        ids_of = self._ids_of({word for column in words for text in column for word in text})
        first, *second = (
            [[token for word in text for token in ids_of[word]] for text in column]
            for column in words
        )
        room = self.processor.settings.max_seq_length - 1 - len(columns)
        if any(len(a) + sum(map(len, b)) > room for a, *b in zip(first, *second, strict=True)):
            return self._truncated(room, first, *second)
        ids, segments, splits = [], [], [0]
        for a, *rest in zip(first, *second, strict=True):
            ids += [cls, *a, sep]
            segments += [0] * (len(a) + 2)
            for b in rest:
                ids += [*b, sep]
                segments += [1] * (len(b) + 1)
            splits.append(len(ids))
        rows = Rows(np.array(ids, np.int32), np.array(segments, np.int32), np.array(splits))
        return rows, Segments(*rows[:2], np.zeros(len(first), bool))

    def decode(self, outputs: Arrays, inputs: Segments) -> dict[str, np.ndarray]:
        """Decodes the outputs of the network."""
        return self.processor.decode(outputs, inputs, ops=NUMPY)

    def _ids_of(self, words: set[bytes]) -> Mapping[bytes, list[int]]:
        """Returns the ids of these words, and of others."""
        cache, entries = self._ids, {}
        new = sorted((word for word in words if word not in cache), key=len)
        while new:
            # A word has at most as many tokens as bytes, and the longest one is the last.
            count = next(
                (n for n in range(1, len(new)) if (n + 1) * len(new[n]) > _PADDED_VALUES), None
            )
            ids = self._tokenize(tf.constant(new[:count], tf.string))["ids"].numpy()
            entries |= {w: row[row >= 0].tolist() for w, row in zip(new, ids, strict=False)}
            new = new[count:] if count else []
        if entries:
            tokens = sum(map(len, entries.values()))
            self._bytes += sum(_WORD_BYTES + len(word) for word in entries) + _TOKEN_BYTES * tokens
            if self._bytes > _CACHE_BYTES:
                self._ids, self._bytes = {}, 0
                return {**cache, **entries}
            cache.update(entries)
        return cache

    def _truncated(self, room: int, *columns: Sequence[list[int]]) -> tuple[Rows, Segments]:
        sides = []
        for column in columns:
            lengths = np.array([*map(len, column)])
            values = np.array([index for ids in column for index in ids], np.int32)
            sides.append((values, np.cumsum(lengths) - lengths, lengths))
        ids, segments, splits, truncated = gather_segments(
            *(sides[0], sides[1] if len(sides) > 1 else None, room),
            np.array(self._special_ids, np.int32),
            truncates_as_transformers=self.processor.truncates_as_transformers,
            ops=NUMPY,
        )
        return Rows(ids, segments, splits), Segments(ids, segments, truncated)
