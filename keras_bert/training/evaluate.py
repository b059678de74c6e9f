"""Runs a model on a finite dataset: evaluation, exact for any batch size, and prediction."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_bert.models.encoder import select_inputs
from keras_bert.training.cluster import num_workers
from keras_bert.training.objective import AfterBatch, Batch, Objective
from keras_bert.training.step import compiled
from keras_bert.training.strategy import distribute


def make_evaluate(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    task: Objective,
    *,
    jit_compile: bool = True,
) -> Callable[..., dict[str, float]]:
    """Builds the function that evaluates a model on a dataset.

    Args:
        strategy: the strategy under which the model was created.
        model: the model that `task.sums` takes.
        task: the metrics to compute; examples that only pad the last batch have weight 0.
        jit_compile: whether to compile the forward pass with XLA.

    Returns:
        `evaluate(dataset, after_batch=None)`, which calls `after_batch` after each batch and
        returns {"loss": value} followed by {metric: value}. The dataset must be finite. Its batches
        have the same shape, and contain this worker's rows of the global batches.
    """

    def forward(batch: Batch) -> tf.Tensor:
        sums, weights = task.sums(model, batch, False), task.weights(batch)
        return tf.stack([[part[name] for name in task.metrics] for part in (sums, weights)])

    forward = compiled(forward, jit_compile)

    def replica_step(batch: Batch) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, forward(batch))

    @tf.function(autograph=False)
    def step(batch: Batch) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(replica_step, args=(batch,)))[0]

    def evaluate(
        dataset: tf.data.Dataset, after_batch: AfterBatch | None = None
    ) -> dict[str, float]:
        total = np.zeros([2, len(task.metrics)])
        for batch in distribute(strategy, dataset):
            total += step(batch).numpy()
            if after_batch:
                after_batch()
        return task.divide(total[0], total[1])

    return evaluate


def make_predict(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    *,
    jit_compile: bool = True,
) -> Callable[[tf.data.Dataset], Iterator[tuple[Batch, dict[str, np.ndarray]]]]:
    """Builds the function that runs a model on a dataset.

    The arguments are those of `make_evaluate`. `model` is a network of
    keras_bert.models, with outputs {name: [B, ...]}.

    Returns:
        `predict(dataset)`. For each batch and each device of this worker it yields that device's
        rows of the batch and of the outputs, both {name: array [b, ...]}. The dataset must be
        finite. Its batches contain this worker's rows of the global batches, and may differ in
        sequence length.
    """
    forward = compiled(lambda batch: model(select_inputs(batch), training=False), jit_compile)

    # Traced once for all sequence lengths.
    @tf.function(reduce_retracing=True, autograph=False)
    def step(batch: Batch) -> tuple[tuple[tf.Tensor, ...], ...]:
        outputs = strategy.run(forward, args=(batch,))
        return tuple(
            (_of_device(strategy, batch, device), _of_device(strategy, outputs, device))
            for device in range(strategy.num_replicas_in_sync // num_workers(strategy))
        )

    def predict(dataset: tf.data.Dataset) -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
        for batch in distribute(strategy, dataset):
            for given, outputs in step(batch):
                yield (
                    {name: value.numpy() for name, value in given.items()},
                    {name: value.numpy() for name, value in outputs.items()},
                )

    return predict


def _of_device(
    strategy: tf.distribute.Strategy, values: dict[str, tf.Tensor], device: int
) -> dict[str, tf.Tensor]:
    return {
        name: strategy.experimental_local_results(value)[device] for name, value in values.items()
    }
