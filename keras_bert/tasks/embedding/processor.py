"""The graph functions of embeddings: texts to token ids, and hidden states to vectors.

    text [B] -> tokens -> [CLS] a [SEP]                                preprocess
    hidden states [T, H] -> [CLS] vector, mean, pooled [B, H] each     vectors, decode

The mean is over all tokens, including [CLS] and [SEP], as in sentence-transformers.

B texts, T tokens of all texts, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.tasks.prepared import TextInputs
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.tokenizer import row_ids


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings of a `TextEmbedder`.

    Attributes:
        max_seq_length: tokens in a text, including [CLS] and [SEP]; longer texts are truncated.
        normalize: whether vectors are scaled to length 1, so that dot products are cosines.
        pooling: the pooling of the sentence-transformers model, `cls` or `mean`; None if unknown.
        pooled: whether the model has a pooler; without one there is no `pooled` output.
    """

    max_seq_length: int = 128
    normalize: bool = False
    pooling: str | None = None
    pooled: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vectors."""
        return ("cls", "mean", "pooled")[: 2 + self.pooled]


class EmbeddingProcessor(TextProcessor):
    """Converts texts to the network's inputs, and hidden states to vectors."""

    def vectors(self, hidden: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the hidden state of [CLS] and the mean over all tokens, [B, 2, H].

        Args:
            hidden: [T, H], the hidden states of all rows, concatenated.
            splits: int [B + 1], the start of each row, followed by T.
        """
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, tf.math.segment_mean(hidden, row_ids(splits))], axis=1)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: TextInputs | None = None
    ) -> dict[str, tf.Tensor]:
        """Splits vectors, [B, 2 or 3, H], by name, and normalizes them if `normalize` is set.

        Returns:
            `cls`, `mean` and, with a pooler, `pooled`, [B, H] each.
        """
        vectors = outputs["vectors"]
        if self.settings.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        return dict(zip(self.settings.names, tf.unstack(vectors, axis=1), strict=True))
