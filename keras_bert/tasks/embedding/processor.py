"""Converts texts to token ids, and hidden states to vectors, with TensorFlow operations.

    text [B] -> tokens -> [CLS] a [SEP]                                preprocess
    hidden states [T, H] -> [CLS] vector, mean, pooled [B, H] each     vectors, decode

B texts, T tokens of all texts, H hidden size. As in sentence-transformers, the mean is over all
tokens, including [CLS] and [SEP].
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import Segments


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings of a `TextEmbedder`.

    Attributes:
        max_seq_length: maximum number of tokens in a text, including [CLS] and [SEP].
        normalize: whether vectors are scaled to length 1, so that dot products are cosines.
        pooling: the pooling of the sentence-transformers model, `cls` or `mean`; None if unknown.
        pooled: whether the model has a pooler; without one there is no `pooled` output.
        matryoshka_sizes: the sizes of truncated vectors that the model was trained for.
    """

    max_seq_length: int = 128
    normalize: bool = False
    pooling: str | None = None
    pooled: bool = True
    matryoshka_sizes: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vectors of a text, in order."""
        return ("cls", "mean", "pooled")[: 2 + self.pooled]


class EmbeddingProcessor(TextProcessor):
    """Converts texts to inputs of the network, and its hidden states to vectors."""

    def vectors(self, hidden: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the hidden state of [CLS] and the mean over all tokens of each row, [B, 2, H].

        `hidden`, [T, H], has the hidden states of all rows. `splits`, int [B + 1], has the start of
        each row, followed by T.
        """
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, tf.math.segment_mean(hidden, row_ids(splits))], axis=1)

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: Segments) -> dict[str, tf.Tensor]:
        """Splits the output `vectors`, [B, 2 or 3, H], by name; normalizes if `normalize` is set.

        Returns:
            `cls`, `mean` and, if the model has a pooler, `pooled`, float32 [B, H] each;
            `truncated`, bool [B]; and `num_tokens`, int32 [B], with [CLS] and [SEP].
        """
        vectors = outputs["vectors"]
        if self.settings.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        named = zip(self.settings.names, tf.unstack(vectors, axis=1), strict=True)
        num_tokens = tf.cast(inputs.input_ids.row_lengths(), tf.int32)
        return {**dict(named), "truncated": inputs.truncated, "num_tokens": num_tokens}
