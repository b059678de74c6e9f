"""Distributes the batches of a worker over its devices."""

import tensorflow as tf

from keras_bert.training.cluster import num_workers


def distribute(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset, *, endless: bool = False
) -> tf.distribute.DistributedDataset:
    """Creates a distributed dataset that gives each device its rows of each batch.

    Args:
        strategy: the strategy under which the model was created.
        batches: {name: [B / W, ...]}, this worker's rows of each global batch of B rows, for W
            workers. Each of the D devices of all workers gets [B / D, ...]. All workers must have
            the same number of batches.
        endless: whether the dataset is infinite. For a finite one, the workers agree before each
            batch that all of them have data left.
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
    """Disables tf.data autotuning, which can delay the end of an iterator by up to a minute.

    The autotuning thread may sleep past the end of the pipeline. Autotuning does not make the
    pipelines of this library faster.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
