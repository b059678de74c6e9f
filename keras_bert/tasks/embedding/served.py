"""Defines the serving signatures of text embeddings, for texts and for token ids."""

import tensorflow as tf

from keras_bert.serving.engines.opening import NetworkSpec
from keras_bert.tasks.embedding.processor import EmbeddingProcessor
from keras_bert.tasks.text_tasks import ServedTexts


class ServedEmbedding(ServedTexts):
    """The SavedModel signatures of an encoder, which map texts or token ids to vectors."""

    processor: EmbeddingProcessor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"vectors": "row"}, pooled=self.processor.settings.pooled)

    def outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes the vectors of each row, float32 [n, 2 or 3, H]."""
        # All vectors of a row are one tensor, since `reduced` keeps one tensor per row.
        shape = [len(self.processor.settings.names), self.network.config.hidden_size]
        vectors = self.network.reduced(input_ids, segment_ids, self._vectors, shape)
        return {"vectors": vectors}

    def _vectors(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Computes the vectors of some rows: hidden states [t, H] -> [b, 2 or 3, H]."""
        vectors = self.processor.vectors(hidden, splits)
        if not self.processor.settings.pooled:
            return vectors
        pooled = self.network.pooled(vectors[:, 0])
        return tf.concat([vectors, pooled[:, tf.newaxis]], axis=1)
