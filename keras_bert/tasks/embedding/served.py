"""The signatures of a served encoder: vectors of texts, and of token ids."""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.tasks.embedding.processor import EmbeddingProcessor
from keras_bert.tasks.prepared import TextInputs


class ServedEmbedding(tf.Module):
    """An encoder as signatures of a SavedModel.

    Args:
        network: of a BertEncoder.
        processor: the task's graph functions.
    """

    def __init__(self, network: Network, processor: EmbeddingProcessor):
        super().__init__(name="embedding")
        self.network = network
        self.processor = processor

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        text = tf.TensorSpec([None], tf.string, name="text")
        return {
            "serving_default": tf.function(self.of_texts, input_signature=[text]),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Embeds texts: strings [B]."""
        return self._outputs(self.processor.preprocess(text))

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Embeds token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self._outputs(TextInputs(rows.input_ids, rows.segment_ids))

    def _outputs(self, inputs: TextInputs) -> dict[str, tf.Tensor]:
        # In one tensor: what is kept of some rows before the next are computed.
        shape = [len(self.processor.settings.names), self.network.config.hidden_size]
        vectors = self.network.reduced(*inputs, self._vectors, shape)
        return self.processor.decode({"vectors": vectors})

    def _vectors(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Makes the vectors of some rows: hidden states [t, H] -> [b, 2 or 3, H]."""
        vectors = self.processor.vectors(hidden, splits)
        if not self.processor.settings.pooled:
            return vectors
        pooled = self.network.pooled(vectors[:, 0])
        return tf.concat([vectors, pooled[:, tf.newaxis]], axis=1)
