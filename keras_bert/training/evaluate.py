"""Evaluates a model on a finite dataset, with exact results for any batch size."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_bert.training.distribute import distribute
from keras_bert.training.objective import AfterBatch, Batch, Objective
from keras_bert.training.step import compiled


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
