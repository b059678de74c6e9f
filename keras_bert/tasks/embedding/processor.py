"""Converts texts to token ids, and hidden states to vectors, with TensorFlow operations.

    text [B] -> tokens -> [CLS] a [SEP]                                preprocess
    hidden states [T, H] -> [CLS] vector, mean, pooled [B, H] each     vectors, decode

As in sentence-transformers, the mean is over all tokens, including [CLS] and [SEP]. With windows, a
vector of a text is the mean of the vectors of its windows, before it is normalized.

B texts, n rows (windows, or texts), T tokens of all rows, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.long_text import TRUNCATED, WINDOWS, LongText, LongTextProcessor
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import Segments
from keras_bert.text.windows import TextWindows


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings of a `TextEmbedder`.

    Attributes:
        max_seq_length: maximum number of tokens, including [CLS] and [SEP]; for longer texts, see
            `long_text`.
        normalize: whether vectors are scaled to length 1, so that dot products are cosines.
        pooling: the pooling of the sentence-transformers model, `cls` or `mean`; None if unknown.
        pooled: whether the model has a pooler; without one there is no `pooled` output.
        matryoshka_sizes: the sizes of truncated vectors that the model was trained for.
        long_text: the settings for texts with more tokens.

    Raises:
        InputError: the windows are not pooled by their mean, or their stride is invalid.
    """

    max_seq_length: int = 128
    normalize: bool = False
    pooling: str | None = None
    pooled: bool = True
    matryoshka_sizes: tuple[int, ...] = ()
    long_text: LongText = TRUNCATED

    def __post_init__(self):
        self.long_text.check_stride(self.max_seq_length)
        if self.long_text.window_pooling != "mean":
            raise InputError(
                f"window_pooling={self.long_text.window_pooling!r}: expected 'mean' for embeddings"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vectors of a text, in order."""
        return ("cls", "mean", "pooled")[: 2 + self.pooled]

    @property
    def in_training(self) -> "EmbedderSettings":
        """The settings for training texts, of which only the first window is used.

        A loss needs one row per text, so that all batches have the same number of rows.
        """
        if self.long_text.strategy != WINDOWS:
            return self
        return replace(self, long_text=TRUNCATED)


class EmbeddingProcessor(LongTextProcessor):
    """Converts texts to inputs of the network, and its hidden states to vectors."""

    def vectors(self, hidden: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the hidden state of [CLS] and the mean over all tokens of each row, [n, 2, H].

        `hidden`, [T, H], has the hidden states of all rows. `splits`, int [n + 1], has the start of
        each row, followed by T.
        """
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, tf.math.segment_mean(hidden, row_ids(splits))], axis=1)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: Segments | TextWindows
    ) -> dict[str, tf.Tensor]:
        """Splits the output `vectors`, [n, 2 or 3, H], by name; normalizes if `normalize` is set.

        Returns:
            `cls`, `mean` and, if the model has a pooler, `pooled`, float32 [B, H] each;
            `truncated`, bool [B]; and `num_tokens`, int32 [B], with [CLS] and [SEP], over all
            windows.
        """
        vectors = self.pooled(outputs["vectors"], inputs)
        if self.settings.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        named = zip(self.settings.names, tf.unstack(vectors, axis=1), strict=True)
        num_tokens = tf.cast(inputs.input_ids.row_lengths(), tf.int32)
        if isinstance(inputs, TextWindows):
            num_tokens = tf.math.segment_sum(num_tokens, inputs.text)
        return {**dict(named), "truncated": inputs.truncated, "num_tokens": num_tokens}
