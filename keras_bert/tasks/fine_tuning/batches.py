"""Builds padded batches of examples of similar length, as a function of (seed, step).

    examples in random order -> pools of several batches -> each pool sorted by length and split
    into batches -> batches in random order -> each batch padded to the next bucket length

The random orders of an epoch depend on (seed, epoch). A batch of B rows of S tokens contains:

    input_ids, input_mask, segment_ids    int32 [B, S]
    labels, token labels                  [B, ...] and [B, S, ...]; at padding, labels are
                                          -1 and outputs of a teacher NO_OUTPUT
    example_weights                       float32 [B]
    dropout_seed                          int32 [B]
    example_index                         int32 [B], the index of each row's example

Every example occurs once per epoch. If the last batch of an epoch or evaluation has fewer than B
examples, it is filled with rows of weight 0 and index -1. S takes only a few values, since a
compiler builds one program per length.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.ranges import sequence_mask
from keras_bert.tasks.losses import NO_OUTPUT


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the number of batches per epoch, counting a partial last batch."""
    return -(-num_examples // batch_size)


def bucket_lengths(max_seq_length: int) -> np.ndarray:
    """Returns the lengths to which batches are padded, in increasing order up to `max_seq_length`.

    They are multiples of 8 up to 128, of 16 up to 256 and of 32 above. Above 128, padding is less
    than an eighth of an example's length. JAX always compiles a program for each length, in seconds
    to minutes, so there are only 32, 64, 96, 128, 192, 256, 384, 512, ...
    """
    lengths = [*range(8, 128, 8), *range(128, 256, 16), *range(256, max_seq_length, 32)]
    if keras.config.backend() == "jax":
        lengths = [32, *(factor << power for power in range(5, 30) for factor in (2, 3))]
    return np.array([length for length in lengths if length < max_seq_length] + [max_seq_length])


@dataclass(frozen=True)
class BatchSettings:
    """Settings for building batches from examples.

    Attributes:
        batch_size: number of examples per batch, over all devices; of texts, not of groups.
        max_seq_length: the largest length of a batch, in tokens; no example may be longer.
        seed: seed for the order of every epoch and the dropout masks of every example.
        length_pool: number of training batches whose examples are sorted together (`epoch_plan`).
        share: index of this worker and number of workers; each worker builds its rows of a batch.
    """

    batch_size: int
    pad_token_id: int = 0
    max_seq_length: int = 512
    seed: int = 0
    length_pool: int = 50
    share: tuple[int, int] = (0, 1)


class BatchBuilder:
    """Builds padded batches of NumPy arrays; raises ValueError if an example is too long."""

    def __init__(self, examples: Examples, settings: BatchSettings):
        longest = int(examples.lengths.max(initial=0))
        if longest > settings.max_seq_length:
            raise ValueError(
                f"an example has {longest} tokens; expected at most "
                f"max_seq_length={settings.max_seq_length}"
            )
        self._examples = examples
        self._buckets = bucket_lengths(settings.max_seq_length)
        index, workers = settings.share
        self.rows = settings.batch_size // workers  # per worker
        self._own = slice(index * self.rows, (index + 1) * self.rows)
        # Name -> (the values of all tokens, the value at padding).
        self.by_token = {
            "input_ids": (examples.input_ids, settings.pad_token_id),
            "input_mask": (np.ones([len(examples.input_ids)], np.int32), 0),
            "segment_ids": (examples.segment_ids, 0),
            **{
                name: (values, NO_OUTPUT if np.issubdtype(values.dtype, np.floating) else -1)
                for name, values in examples.token_labels.items()
            },
        }

    def build(
        self, index: np.ndarray, seeds: np.ndarray, min_length: int = 0
    ) -> dict[str, np.ndarray]:
        """Builds this worker's rows of a batch.

        `index`, int [batch_size], contains the indices of the examples of all workers, and -1 for
        filler rows. `seeds`, int32 [batch_size], contains the seeds of the dropout masks. The batch
        is padded to at least `min_length` tokens.
        """
        examples = self._examples
        real = index >= 0
        rows = np.where(real, index, index[0])  # Filler rows are copies of the first row.
        # All workers use the length of the whole batch.
        longest = max(examples.lengths[rows].max(), min_length)
        length = self._buckets[np.searchsorted(self._buckets, longest)]
        rows, real, index, seeds = (each[self._own] for each in (rows, real, index, seeds))
        lengths = examples.lengths[rows]
        inside, places = sequence_mask(lengths, length), examples.places(rows)
        batch = {}
        for name, (values, padding) in self.by_token.items():
            batch[name] = np.full([self.rows, length, *values.shape[1:]], padding, values.dtype)
            batch[name][inside] = values[places]
        batch |= {name: values[rows] for name, values in examples.labels.items()}
        return batch | {
            "example_weights": real.astype(np.float32),
            "dropout_seed": seeds,
            "example_index": index.astype(np.int32),
        }

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the dtypes and shapes of the arrays that `build` returns."""
        labels = self._examples.labels
        return {
            **{
                name: tf.TensorSpec([self.rows, None, *values.shape[1:]], values.dtype)
                for name, (values, _) in self.by_token.items()
            },
            **{
                name: tf.TensorSpec([self.rows, *values.shape[1:]], values.dtype)
                for name, values in labels.items()
            },
            "example_weights": tf.TensorSpec([self.rows], tf.float32),
            "dropout_seed": tf.TensorSpec([self.rows], tf.int32),
            "example_index": tf.TensorSpec([self.rows], tf.int32),
        }


def training_batches(
    examples: Examples, settings: BatchSettings, first_step: int = 0
) -> tf.data.Dataset:
    """Creates the endless dataset of training batches, starting at `first_step`."""
    chosen = grouped_plan(examples, settings)
    numbers = tf.data.Dataset.range(first_step, tf.int64.max)
    return _batches(numbers, BatchBuilder(examples, settings), chosen)


def evaluation_batches(examples: Examples, settings: BatchSettings) -> tf.data.Dataset:
    """Creates the batches of one pass over the examples, from the longest to the shortest."""
    plan = evaluation_plan(examples.lengths, settings.batch_size)

    def chosen(step: int) -> tuple[np.ndarray, np.ndarray]:
        return plan[step], np.zeros([settings.batch_size], np.int32)

    numbers = tf.data.Dataset.range(len(plan))
    return _batches(numbers, BatchBuilder(examples, settings), chosen)


def grouped_plan(
    examples: Examples, settings: BatchSettings
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Returns a function like that of `training_plan`, which chooses whole groups of examples."""
    size = examples.group_size
    if size == 1:
        return training_plan(examples.lengths, settings)
    longest = examples.lengths.reshape(-1, size).max(axis=1)
    plan = training_plan(longest, replace(settings, batch_size=settings.batch_size // size))

    def chosen(step: int) -> tuple[np.ndarray, np.ndarray]:
        groups, seeds = plan(step)
        members = groups[:, np.newaxis] * size + np.arange(size)
        index = np.where(groups[:, np.newaxis] >= 0, members, -1).ravel()
        return index, (seeds[:, np.newaxis] + np.arange(size, dtype=np.int32)).ravel()

    return chosen


def training_plan(
    lengths: np.ndarray, settings: BatchSettings
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Returns a function that chooses the examples of a training step.

    The function takes the step, from 0. It returns the indices of the examples, int64 [batch_size]
    with -1 for filler rows, and the seeds of their dropout masks, int32 [batch_size]. Both depend
    only on (seed, step). `lengths`, int [n], contains the number of tokens of each example.
    """
    batch_size, seed = settings.batch_size, settings.seed
    steps = steps_per_epoch(len(lengths), batch_size)

    @functools.lru_cache(maxsize=2)  # Prefetching needs the next epoch's plan as well.
    def plan(epoch: int) -> np.ndarray:
        return epoch_plan(lengths, batch_size, seed, epoch, settings.length_pool)

    def chosen(step: int) -> tuple[np.ndarray, np.ndarray]:
        epoch, place = divmod(int(step), steps)
        seeds = np.random.default_rng([seed, step, 1]).integers(
            -(2**31), 2**31, batch_size, np.int32
        )
        return plan(epoch)[place], seeds

    return chosen


def evaluation_plan(lengths: np.ndarray, batch_size: int) -> np.ndarray:
    """Returns the indices of the examples of each evaluation batch, int64 [steps, batch_size].

    The longest examples come first. The last batch is filled with -1.
    """
    # The first batch is the longest, so that a batch too large for the memory fails at once.
    return _filled(np.argsort(-lengths, kind="stable"), batch_size)


def epoch_plan(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, length_pool: int = 50
) -> np.ndarray:
    """Draws the examples of each batch of an epoch.

    Larger pools (`length_pool` batches sorted together) need less padding, but make the batches
    less random: the examples of a batch have similar lengths, and properties that correlate with
    length, such as the label distribution, vary from batch to batch.

    Returns:
        int64 [steps, batch_size], the index of each example once; -1 fills the last batch.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    # The partial last batch stays unsorted; otherwise it would always have the longest examples.
    full = order[: len(order) // batch_size * batch_size]
    rest = order[len(full) :]
    pool = length_pool * batch_size
    for start in range(0, len(full), pool):
        part = full[start : start + pool]
        full[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    return np.concatenate([rng.permutation(_filled(full, batch_size)), _filled(rest, batch_size)])


def _filled(order: np.ndarray, batch_size: int) -> np.ndarray:
    """Reshapes indices [n] into batches [steps, batch_size], with -1 at the end of the last one."""
    steps = steps_per_epoch(len(order), batch_size)
    plan = np.full([steps * batch_size], -1, np.int64)
    plan[: len(order)] = order
    return plan.reshape([steps, batch_size])


def _batches(
    numbers: tf.data.Dataset,
    builder: BatchBuilder,
    chosen: Callable[[int], tuple[np.ndarray, np.ndarray]],
) -> tf.data.Dataset:
    """Maps a dataset of step numbers to a dataset of batches."""
    specs = builder.specs()

    def build(step: int) -> list[np.ndarray]:
        return [*builder.build(*chosen(step)).values()]

    def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [spec.dtype for spec in specs.values()]
        values = tf.numpy_function(build, [step], types, stateful=False)
        return {
            name: tf.ensure_shape(value, spec.shape)
            for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    return numbers.map(batch, num_parallel_calls=2, deterministic=True).prefetch(tf.data.AUTOTUNE)
