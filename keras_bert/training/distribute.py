"""Distributes a worker's batches over its devices.

B rows a global batch: [B / workers, ...] from the pipeline -> [B / devices, ...] on each device.
"""

import tensorflow as tf

from keras_bert.training.cluster import num_workers


def distribute(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset, *, endless: bool = False
) -> tf.distribute.DistributedDataset:
    """Gives each device its rows of each batch.

    Args:
        strategy: the devices.
        batches: batches [B, ...]; of several workers, this one's rows of each global batch,
            [B / workers, ...], as many batches on each.
        endless: the batches have no end, so that workers need not ask each other before each
            batch whether any of them has one left.

    Returns:
        A dataset for `strategy.run`.
    """
    batches = untuned(batches)
    workers = num_workers(strategy)
    if workers == 1:
        return strategy.experimental_distribute_dataset(batches)
    devices = strategy.num_replicas_in_sync // workers

    def cut(batch: dict[str, tf.Tensor]) -> tf.data.Dataset:
        parts = {
            name: tf.reshape(value, [devices, -1, *tf.unstack(tf.shape(value)[1:])])
            for name, value in batch.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts)

    own = batches.flat_map(cut) if devices > 1 else batches
    if endless:
        own = own.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return strategy.distribute_datasets_from_function(lambda _: own)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Takes from a pipeline TensorFlow's tuning, which may sleep through the pipeline's end.

    Letting go of an iterator then took up to a minute; untuned pipelines are as fast here.

    Args:
        dataset: any.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
