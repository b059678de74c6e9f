"""The graph functions of embeddings: texts to token ids, hidden states to vectors.

    text [B] -> tokens -> [CLS] a [SEP]                          preprocess
    hidden states [T, H] -> [CLS]'s, their mean, pooled [B, H]   vectors, decode

The mean is over all tokens with [CLS] and [SEP], as in sentence-transformers.

B texts, T tokens of all, H hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.tasks.prepared import TextInputs
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.tokenizer import row_ids


@dataclass(frozen=True)
class EmbedderSettings:
    """How texts become vectors.

    Attributes:
        max_seq_length: tokens of a text, with [CLS] and [SEP]; the rest is truncated.
        normalize: whether each vector is divided by its length, so that products are cosines.
        pooling: the vector that sentence-transformers takes, `cls` or `mean`; None if unknown.
        pooled: whether the model has a pooler; without one there is no `pooled`.
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
    """Turns texts into the network's inputs, and hidden states into vectors.

    Args:
        tokenizer: of the model's vocabulary.
        settings: length and normalization.
    """

    def vectors(self, hidden: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the vectors that hidden states give, of [CLS] and the mean, [B, 2, H].

        Args:
            hidden: [T, H], row after row.
            splits: int [B + 1], where each row begins, and T.
        """
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, tf.math.segment_mean(hidden, row_ids(splits))], axis=1)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: TextInputs | None = None
    ) -> dict[str, tf.Tensor]:
        """Normalizes vectors if the settings say so.

        Args:
            outputs: {"vectors": float32 [B, 2 or 3, H]}: [CLS]'s, the mean, and the pooled one.
            inputs: not needed.

        Returns:
            `cls`, `mean` and, with a pooler, `pooled`, [B, H] each.
        """
        vectors = outputs["vectors"]
        if self.settings.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        return dict(zip(self.settings.names, tf.unstack(vectors, axis=1), strict=True))
