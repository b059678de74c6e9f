"""Runs a model on a finite dataset."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_bert.models.bert_network import select_inputs
from keras_bert.training.cluster import num_workers
from keras_bert.training.distribute import distribute
from keras_bert.training.objective import Batch
from keras_bert.training.step import compiled


def make_predict(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    *,
    jit_compile: bool = True,
) -> Callable[[tf.data.Dataset], Iterator[tuple[Batch, dict[str, np.ndarray]]]]:
    """Builds the function that runs a model on a dataset.

    The arguments are those of `make_evaluate` (evaluate.py). `model` is a network of
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
