"""Distributes the batches of a worker over its devices.

With a global batch of B rows, the input pipeline of a worker yields [B / workers, ...], and each
device gets [B / devices, ...].
"""

import tensorflow as tf

from keras_bert.training.cluster import num_workers


def distribute(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset, *, endless: bool = False
) -> tf.distribute.DistributedDataset:
    """Creates a distributed dataset that gives each device its rows of each batch.

    Args:
        strategy: the strategy.
        batches: batches [B, ...]; with several workers, this worker's rows of each batch, in the
            same number of batches on every worker.
        endless: set for an infinite dataset, so that the workers need not agree before each batch
            that all of them have data left.
    """
    batches = without_autotuning(batches)
    workers = num_workers(strategy)
    if workers == 1:
        return strategy.experimental_distribute_dataset(batches)
    devices = strategy.num_replicas_in_sync // workers

    def split(batch: dict[str, tf.Tensor]) -> tf.data.Dataset:
        parts = {
            name: tf.reshape(value, [devices, -1, *tf.unstack(tf.shape(value)[1:])])
            for name, value in batch.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts)

    own = batches.flat_map(split) if devices > 1 else batches
    if endless:
        own = own.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return strategy.distribute_datasets_from_function(lambda _: own)


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Disables tf.data autotuning for a dataset.

    Autotuning can delay the destruction of an iterator by up to a minute, because its thread may
    sleep past the end of the pipeline. Without it, pipelines are just as fast here.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
