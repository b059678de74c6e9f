"""Makes padded batches of examples of about one length, as a function of the step.

    epoch e: order drawn from (seed, e) -> pools of some batches -> sorted by length, cut into
    batches -> batches in an order drawn from (seed, e) -> each padded to the next bucket's length

A batch is {input_ids, input_mask, segment_ids: int32 [B, S]; the labels [B, ...]; the piece labels
[B, S], -1 at padding; example_weights: float32 [B]; dropout_seed: int32 [B]; example_index: int32
[B], the place in the examples}. Every example comes once an epoch. Where the last batch of an
epoch, or of an evaluation, lacks examples, it is filled with some of weight 0 and index -1.

S is one of a few lengths, since a compiler makes a program of each.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.ranges import sequence_mask
from keras_bert.training.objective import Batch

MODEL_INPUTS = ("input_ids", "input_mask", "segment_ids", "dropout_seed")


def model_inputs(batch: Batch) -> Batch:
    """Chooses what a model takes.

    Args:
        batch: see above.

    Returns:
        Its MODEL_INPUTS.
    """
    return {name: batch[name] for name in MODEL_INPUTS}


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Counts the batches that hold every example once.

    Args:
        num_examples: n.
        batch_size: examples a batch, over all devices.

    Returns:
        n / batch_size, rounded up.
    """
    return -(-num_examples // batch_size)


def bucket_lengths(max_seq_length: int) -> np.ndarray:
    """Lists the lengths that batches are padded to.

    Steps of 8 pieces up to 128, of 16 up to 256, of 32 beyond: above 128 less than an eighth of an
    example's length is padding, and the lengths are few enough for a compiler.

    Args:
        max_seq_length: the longest.

    Returns:
        int64, rising; the last is `max_seq_length`.
    """
    lengths = [*range(8, 128, 8), *range(128, 256, 16), *range(256, max_seq_length, 32)]
    return np.array([length for length in lengths if length < max_seq_length] + [max_seq_length])


@dataclass(frozen=True)
class BatchSettings:
    """How examples become batches.

    Attributes:
        batch_size: examples a batch, over all devices.
        pad_token_id: the id of [PAD].
        max_seq_length: the longest bucket; no example may be longer.
        seed: decides the order of every epoch and the dropout masks of every example.
        length_pool: training batches whose examples are sorted together, as `epoch_plan` does.
        share: this worker's index and the number of workers; it gets its rows of each batch.
    """

    batch_size: int
    pad_token_id: int = 0
    max_seq_length: int = 512
    seed: int = 0
    length_pool: int = 50
    share: tuple[int, int] = (0, 1)


class BatchBuilder:
    """Pads chosen examples into a batch of NumPy arrays.

    Args:
        examples: any number.
        settings: how.

    Raises:
        ValueError: an example is longer than `max_seq_length`.
    """

    def __init__(self, examples: Examples, settings: BatchSettings):
        longest = int(examples.lengths.max(initial=0))
        if longest > settings.max_seq_length:
            raise ValueError(
                f"an example has {longest} tokens; max_seq_length is {settings.max_seq_length}"
            )
        self._examples = examples
        self._buckets = bucket_lengths(settings.max_seq_length)
        index, workers = settings.share
        self.rows = settings.batch_size // workers  # of this worker
        self._own = slice(index * self.rows, (index + 1) * self.rows)
        # The values of each token, and what stands for them at padding.
        self.by_token = {
            "input_ids": (examples.input_ids, settings.pad_token_id),
            "input_mask": (np.ones([len(examples.input_ids)], np.int32), 0),
            "segment_ids": (examples.segment_ids, 0),
            **{name: (values, -1) for name, values in examples.token_labels.items()},
        }

    def build(self, index: np.ndarray, seeds: np.ndarray) -> dict[str, np.ndarray]:
        """Builds this worker's rows of a batch.

        Args:
            index: int [batch_size], places in the examples; -1 fills a row.
            seeds: int32 [batch_size], of the dropout masks.
        """
        examples = self._examples
        real = index >= 0
        rows = np.where(real, index, index[0])  # A filling is a copy of the batch's first row.
        # The whole batch's length, on every worker.
        length = self._buckets[np.searchsorted(self._buckets, examples.lengths[rows].max())]
        rows, real, index, seeds = (each[self._own] for each in (rows, real, index, seeds))
        lengths = examples.lengths[rows]
        inside, places = sequence_mask(lengths, length), examples.places(rows)
        batch = {}
        for name, (values, padding) in self.by_token.items():
            batch[name] = np.full([self.rows, length], padding, values.dtype)
            batch[name][inside] = values[places]
        batch |= {name: values[rows] for name, values in examples.labels.items()}
        return batch | {
            "example_weights": real.astype(np.float32),
            "dropout_seed": seeds,
            "example_index": index.astype(np.int32),
        }

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the types and shapes of what `build` returns."""
        labels = self._examples.labels
        return {
            **{
                name: tf.TensorSpec([self.rows, None], values.dtype)
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
    """Makes the endless stream of training batches from a step on.

    Args:
        examples: at least one.
        settings: how.
        first_step: the stream starts with this step's batch; nothing before it is computed.

    Returns:
        Batches, see above. The batch of a step depends on (seed, step) alone.
    """
    chosen = training_plan(examples.lengths, settings)
    numbers = tf.data.Dataset.range(first_step, tf.int64.max)
    return _batches(numbers, BatchBuilder(examples, settings), chosen)


def evaluation_batches(examples: Examples, settings: BatchSettings) -> tf.data.Dataset:
    """Makes the batches of one pass over the examples, from the longest to the shortest.

    Args:
        examples: any number.
        settings: how.

    Returns:
        Batches, see above; `example_index` is where each row's result belongs.
    """
    plan = evaluation_plan(examples.lengths, settings.batch_size)

    def chosen(step: int) -> tuple[np.ndarray, np.ndarray]:
        return plan[step], np.zeros([settings.batch_size], np.int32)

    numbers = tf.data.Dataset.range(len(plan))
    return _batches(numbers, BatchBuilder(examples, settings), chosen)


def training_plan(
    lengths: np.ndarray, settings: BatchSettings
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Decides which examples each training batch holds.

    Args:
        lengths: int [n], the tokens of each example.
        settings: batch size, seed and length pool.

    Returns:
        step -> places in the examples, int64 [batch_size], -1 for a filled row; and the seeds of
        the rows' dropout masks, int32 [batch_size]. Both depend on (seed, step) alone.
    """
    batch_size, seed = settings.batch_size, settings.seed
    steps = steps_per_epoch(len(lengths), batch_size)

    @functools.lru_cache(maxsize=2)  # Near the end of an epoch the next one's is wanted too.
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
    """Decides which examples each evaluation batch holds, the longest first.

    Args:
        lengths: int [n], the tokens of each example.
        batch_size: examples a batch.

    Returns:
        int64 [steps, batch_size] of places in the examples, each once; -1 fills the last batch.
    """
    # The longest first: what does not fit into memory shows at once.
    return _filled(np.argsort(-lengths, kind="stable"), batch_size)


def epoch_plan(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, length_pool: int = 50
) -> np.ndarray:
    """Draws which examples make up each batch of an epoch.

    The larger the pools, the less is padded, and the less a batch is a random draw: its examples
    are of one length, and what goes with length, their kind or their share of tags, differs from
    batch to batch.

    Args:
        lengths: int [n], the pieces of each example.
        batch_size: examples a batch.
        seed: decides the order, with the epoch.
        epoch: counts from 0.
        length_pool: batches whose examples are sorted together; 1 makes batches random draws.

    Returns:
        int64 [steps, batch_size] of places in the examples, each once; -1 fills the last batch.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    # What does not make a full batch is left unsorted, else it would always be the longest.
    full = order[: len(order) // batch_size * batch_size]
    rest = order[len(full) :]
    pool = length_pool * batch_size
    for start in range(0, len(full), pool):
        part = full[start : start + pool]
        full[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    return np.concatenate([rng.permutation(_filled(full, batch_size)), _filled(rest, batch_size)])


def _filled(order: np.ndarray, batch_size: int) -> np.ndarray:
    """Cuts places [n] into batches [steps, batch_size], -1 where the last one lacks some."""
    steps = steps_per_epoch(len(order), batch_size)
    plan = np.full([steps * batch_size], -1, np.int64)
    plan[: len(order)] = order
    return plan.reshape([steps, batch_size])


def _batches(
    numbers: tf.data.Dataset,
    builder: BatchBuilder,
    chosen: Callable[[int], tuple[np.ndarray, np.ndarray]],
) -> tf.data.Dataset:
    """Turns a dataset of step numbers into one of batches."""
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
