"""Reading pre-training records: files in; batches out, each a function of (seed, step).

    files -> [epoch e: files and records in an order drawn from (seed, e)] -> batches -> features

A batch is {input_ids, input_mask, segment_ids: int32 [B, S]; masked_lm_positions, masked_lm_ids:
int32 [B, P]; masked_lm_weights: float32 [B, P]; next_sentence_labels: int32 [B]; example_weights:
float32 [B], 0 for padding; dropout_seed: int32 [B]}. Files have Google's feature names and shapes,
so records made by other BERT tools are read as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tasks.pretraining_files import PretrainingData, first_line

SHUFFLE_BUFFER = 65_536
READ_CYCLE = 8


def training_batches(
    data: PretrainingData, batch_size: int, vocab_size: int, seed: int, first_step: int = 0
) -> tf.data.Dataset:
    """Makes the endless stream of training batches from a step on.

    Args:
        data: the records.
        batch_size: examples a batch, over all devices.
        vocab_size: ids must be below it.
        seed: decides the order of every epoch and the dropout masks of every example.
        first_step: the stream starts with this step's batch.

    Returns:
        Batches of features, see above. Batches run on across epochs, so none is short.
    """
    files = tf.constant(data.files)
    skip = first_step * batch_size
    epoch, rest = divmod(skip, data.num_examples)

    def one_epoch(index: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            files, seed=[tf.cast(seed, tf.int64), index]
        )
        draws = tf.random.stateless_uniform(
            [2], [tf.cast(seed, tf.int64), ~index], minval=None, maxval=None, dtype=tf.int64
        )
        records = tf.data.Dataset.from_tensor_slices(order).interleave(
            tf.data.TFRecordDataset, cycle_length=READ_CYCLE
        )
        # Of this function's graph alone: `shuffle` mixes the program's global seed in otherwise.
        tf.random.set_seed(1)
        buffer = min(SHUFFLE_BUFFER, data.num_examples)
        return records.shuffle(buffer, seed=draws[0], reshuffle_each_iteration=False)

    records = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(one_epoch).skip(rest)
    batches = records.batch(batch_size, drop_remainder=True)
    steps = tf.data.Dataset.range(first_step, tf.int64.max)

    def features(step: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = _parse(serialized, data, vocab_size)
        seeds = tf.random.stateless_uniform(
            [batch_size], [tf.cast(seed, tf.int64), step], None, None, tf.int32
        )
        return batch | {"example_weights": tf.ones([batch_size]), "dropout_seed": seeds}

    return (
        tf.data.Dataset.zip(steps, batches)
        .map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_batches(
    data: PretrainingData, batch_size: int, vocab_size: int, max_batches: int = 0
) -> tf.data.Dataset:
    """Makes the batches of one pass over the records, in file order.

    Args:
        data: the records.
        batch_size: examples a batch, over all devices.
        vocab_size: ids must be below it.
        max_batches: stop after so many; 0 takes all.

    Returns:
        Batches of features of one shape; the last is filled with examples that weigh nothing.
    """
    records = tf.data.TFRecordDataset(data.files).batch(batch_size)
    if max_batches:
        records = records.take(max_batches)

    def features(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = _parse(serialized, data, vocab_size)
        count = tf.shape(serialized)[0]
        batch["example_weights"] = tf.ones([count])
        return {name: _fill(value, batch_size - count) for name, value in batch.items()}

    def _fill(value: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
        paddings = [[0, missing]] + [[0, 0]] * (value.shape.rank - 1)
        return tf.ensure_shape(tf.pad(value, paddings), [batch_size, *value.shape[1:]])

    return records.map(features, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


@contextmanager
def explained(data: PretrainingData, vocab_size: int) -> Iterator[None]:
    """Turns TensorFlow's errors about damaged records into an `InputError` that names the file.

    Args:
        data: the records that are read inside the `with`.
        vocab_size: as given to the batches.

    Yields:
        Nothing.

    Raises:
        InputError: in place of a data loss or an example of another form.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        for path in data.files:
            index = 0
            try:
                for serialized in tf.data.TFRecordDataset(path).batch(1):
                    _parse(serialized, data, vocab_size)
                    index += 1
            except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as cause:
                raise InputError(f"{path}: record {index}: {first_line(cause)}") from error
        raise


def _parse(serialized: tf.Tensor, data: PretrainingData, vocab_size: int) -> dict[str, tf.Tensor]:
    length, predictions = data.max_seq_length, data.max_predictions_per_seq
    spec = {
        "input_ids": tf.io.FixedLenFeature([length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([length], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }
    batch = tf.io.parse_example(serialized, spec)
    # Out of range, a piece, a position or a label would be read from somewhere else, silently.
    limits = {
        "input_ids": vocab_size,
        "masked_lm_ids": vocab_size,
        "masked_lm_positions": length,
        "segment_ids": 2,
        "input_mask": 2,
        "next_sentence_labels": 2,
    }
    fits = [
        tf.debugging.Assert(
            tf.reduce_all((batch[name] >= 0) & (batch[name] < limit)),
            [f"{name} is out of range: expected at least 0 and below {limit}"],
        )
        for name, limit in limits.items()
    ]
    with tf.control_dependencies(fits):
        batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return {
            name: tf.identity(value if value.dtype == tf.float32 else tf.cast(value, tf.int32))
            for name, value in batch.items()
        }
