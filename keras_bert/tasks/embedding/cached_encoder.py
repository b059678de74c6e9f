"""Trains an encoder with `keras.Model.fit` on batches that are computed in micro-batches.

The gradients are those of the whole batch (training/step.py). TensorFlow only; it is
imported in `train_step`, because files of `model.save` are opened without it.

R rows of a batch, r rows of a micro-batch, H hidden size.
"""

from typing import TYPE_CHECKING, Any

import keras

from keras_bert.common.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.pooled_encoder import PooledEncoder, vector_size

if TYPE_CHECKING:
    import tensorflow as tf


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
        return PooledEncoder(encoder, pooling)
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise InputError(f"{where}: found the Keras backend {backend}; expected tensorflow, or 1")
    return CachedGradientEncoder(encoder, pooling, steps)


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
        self._compiles_micro_batches = False

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "steps": self._steps}

    @property
    def jit_compile(self) -> bool:
        """False: `train_step` compiles only the micro-batches; XLA needs loops of fixed shapes."""
        return False

    @jit_compile.setter
    def jit_compile(self, value: bool) -> None:
        self._compiles_micro_batches = value

    def train_step(self, data: "tuple[dict[str, tf.Tensor], Any]") -> dict[str, Any]:
        """Takes a training step on a batch (inputs, targets); returns the logs."""
        import tensorflow as tf

        from keras_bert.training.step import MicroBatches, compiled, in_micro_batches

        inputs, targets = data
        variables = self.trainable_variables
        rows = tf.shape(inputs["input_ids"])[0]
        size = -(-rows // self._steps)

        def part(i: tf.Tensor) -> dict[str, tf.Tensor]:
            return {name: value[i * size : (i + 1) * size] for name, value in inputs.items()}

        def forward(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            return self(batch, training=True)["vectors"]

        def loss_of(vectors: tf.Tensor) -> tuple[tuple[tf.Tensor, Any], tf.Tensor]:
            predicted = {"vectors": vectors}
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                loss = self.compute_loss(inputs, targets, predicted, training=True)
                scaled = self.optimizer.scale_loss(loss)
            return (loss, predicted), tape.gradient(scaled, vectors)

        def backward(batch: dict[str, tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
            weights = [variable.value for variable in variables]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                vectors = forward(batch)
            found = tape.gradient(vectors, weights, upstream, unconnected_gradients="zero")
            return [tf.convert_to_tensor(gradient) for gradient in found]

        run_forward, run_backward = (
            compiled(function, self._compiles_micro_batches) for function in (forward, backward)
        )
        (loss, predicted), gradients = in_micro_batches(
            -(-rows // size),
            MicroBatches(
                lambda i: run_forward(part(i)),
                loss_of,
                lambda i, upstream: run_backward(part(i), upstream),
            ),
            [size, vector_size(self.encoder)],
            variables,
        )
        self.optimizer.apply(gradients, variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=rows)
        return self.compute_metrics(inputs, targets, predicted)
