"""Served embeddings: texts in; vectors out: [CLS]'s, the mean of the pieces', and the pooled.

    text [B] -> word pieces -> [CLS] a [SEP] -> cls, mean, pooled [B, H]

The mean is over all pieces with [CLS] and [SEP], as sentence-transformers takes it. Vectors can be
brought to length 1, so that their products are cosines.

B texts, H hidden; b texts and t pieces of a step of the network.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.text.padding import join
from keras_bert.text.tokenizer import BertTokenizer, row_ids


class ServedEmbedding(tf.Module):
    """An encoder as signatures of a SavedModel.

    Args:
        network: of a BertEncoder.
        tokenizer: the model's.
        max_seq_length: pieces of a text at most, with [CLS] and [SEP].
        normalize: whether each vector is divided by its length.
        pooled: whether the model has a pooler; else there is no `pooled`.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: BertTokenizer,
        max_seq_length: int,
        normalize: bool,
        pooled: bool = True,
    ):
        super().__init__(name="embedding")
        self.network = network
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.normalize = normalize
        self.pooled = pooled

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, and of token ids."""
        text = tf.TensorSpec([None], tf.string, name="text")
        return {
            "serving_default": tf.function(self.of_texts, input_signature=[text]),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Embeds texts: strings [B]."""
        rows = join(
            self.tokenizer.tokenize(text),
            max_seq_length=self.max_seq_length,
            cls_token_id=self.tokenizer.cls_token_id,
            sep_token_id=self.tokenizer.sep_token_id,
        )
        return self._outputs(*rows)

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Embeds token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self._outputs(rows.input_ids, rows.segment_ids)

    def _outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        # In one tensor: what is kept of some rows before the next are computed.
        names = ("cls", "mean", "pooled")[: 2 + self.pooled]
        shape = [len(names), self.network.config.hidden_size]
        vectors = self.network.reduced(input_ids, segment_ids, self._vectors, shape)
        if self.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1)
        return dict(zip(names, tf.unstack(vectors, axis=1), strict=True))

    def _vectors(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Makes the vectors of some rows: hidden states [t, H] -> [b, 3 or 2, H]."""
        first = tf.gather(hidden, splits[:-1])
        mean = tf.math.segment_mean(hidden, row_ids(splits))
        pooled = [self.network.pooled(first)] if self.pooled else []
        return tf.stack([first, mean, *pooled], axis=1)
