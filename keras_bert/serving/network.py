"""A fine-tuned model as served graphs call it: ragged pieces in, its outputs out.

In: input_ids and segment_ids, ragged int32 [B, (S)], any number of rows, none over
max_position_embeddings. Out: the model's outputs, [B, ...] for those of an example, and flat
[T, ...] in the order of `input_ids.values` for those of the pieces.

B rows, S pieces of one, T pieces of all.
"""

import keras
import tensorflow as tf


class Network:
    """The arithmetic of a model for serving.

    Args:
        model: one of keras_bert.models, or the encoder.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self.config = model.config

    def __call__(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Runs the model.

        Args:
            input_ids: ragged int32 [B, (S)], with [CLS] and [SEP].
            segment_ids: ragged int32 [B, (S)].

        Returns:
            The model's outputs: [B, ...], or [T, ...] for those of the pieces.
        """
        inputs = {
            "input_ids": input_ids.to_tensor(),
            "input_mask": tf.ones_like(input_ids).to_tensor(),
            "segment_ids": segment_ids.to_tensor(),
        }
        outputs = self.model(inputs, training=False)
        real = tf.cast(inputs["input_mask"], tf.bool)
        return {
            name: tf.boolean_mask(value, real) if self._of_pieces(name) else value
            for name, value in outputs.items()
        }

    def _of_pieces(self, name: str) -> bool:
        return name == "sequence_output" or getattr(self.model, "per_piece", False)
