"""Trains an encoder with `keras.Model.fit` on batches that are computed in micro-batches.

The gradients are those of the whole batch (training/cached_gradients.py). TensorFlow only.

R rows of a batch, r rows of a micro-batch, H hidden size.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.pooled_encoder import PooledEncoder, vector_size
from keras_bert.training.cached_gradients import MicroBatches, in_micro_batches


def network_for_training(encoder: BertEncoder, pooling: str, steps: Any) -> PooledEncoder:
    """Returns the network that `fit` trains with batches of `steps` micro-batches.

    Raises:
        InputError: `steps` is not a whole number of at least 1, or it is above 1 and the backend is
            not TensorFlow.
    """
    where = f"gradient_accumulation_steps={steps!r}"
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"{where}: expected a whole number of at least 1")
    if steps == 1:
        return PooledEncoder(encoder, pooling, dtype="float32")
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise InputError(f"{where}: found the Keras backend {backend}; expected tensorflow, or 1")
    return CachedGradientEncoder(encoder, pooling, steps, dtype="float32")


@keras.saving.register_keras_serializable(package="keras_bert")
class CachedGradientEncoder(PooledEncoder):
    """A `PooledEncoder` whose training steps keep only one micro-batch in memory.

    Args:
        encoder: the encoder.
        pooling: `mean` or `cls`.
        steps: the number of micro-batches of a batch.
    """

    def __init__(self, encoder: BertEncoder, pooling: str, steps: int, **kwargs: Any):
        super().__init__(encoder, pooling, **kwargs)
        self._steps = steps

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "steps": self._steps}

    def train_step(self, data: tuple[dict[str, tf.Tensor], Any]) -> dict[str, Any]:
        """Takes a training step on a batch (inputs, targets); returns the logs."""
        inputs, targets = data
        variables = self.trainable_variables
        weights = [variable.value for variable in variables]
        rows = tf.shape(inputs["input_ids"])[0]
        size = -(-rows // self._steps)

        def forward(i: tf.Tensor) -> tf.Tensor:
            part = {name: value[i * size : (i + 1) * size] for name, value in inputs.items()}
            return self(part, training=True)["vectors"]

        def loss_of(vectors: tf.Tensor) -> tuple[tuple[tf.Tensor, Any], tf.Tensor]:
            predicted = {"vectors": vectors}
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                loss = self.compute_loss(inputs, targets, predicted, training=True)
            return (loss, predicted), tape.gradient(loss, vectors)

        def backward(i: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                vectors = forward(i)
            found = tape.gradient(vectors, weights, upstream, unconnected_gradients="zero")
            return [tf.convert_to_tensor(gradient) for gradient in found]

        (loss, predicted), gradients = in_micro_batches(
            -(-rows // size),
            MicroBatches(forward, loss_of, backward),
            [size, vector_size(self.encoder)],
            variables,
        )
        self.optimizer.apply(gradients, variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=rows)
        return self.compute_metrics(inputs, targets, predicted)
