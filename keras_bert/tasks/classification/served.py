"""The signatures of a served classifier: of texts, and of token ids."""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.tasks.classification.processor import ClassificationProcessor


class ServedClassifier(tf.Module):
    """A classifier or a regression as signatures of a SavedModel.

    Args:
        network: of a BertClassifier.
        processor: the task's graph functions.
    """

    def __init__(self, network: Network, processor: ClassificationProcessor):
        super().__init__(name="classifier")
        self.network = network
        self.processor = processor

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        names = ("text", "text_pair") if self.processor.settings.pair else ("text",)
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in names]
        return {
            "serving_default": tf.function(self.of_texts, input_signature=texts),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Classifies texts: strings [B], once or twice."""
        inputs = self.processor.preprocess(*texts)
        outputs = self.network(inputs.input_ids, inputs.segment_ids)
        return self.processor.decode(outputs, inputs)

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Classifies token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self.processor.decode(self.network(rows.input_ids, rows.segment_ids))
