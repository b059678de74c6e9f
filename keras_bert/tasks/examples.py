"""Tokenized examples in memory, padded batches of them, and their way through a model.

    Examples: n examples of T tokens, concatenated without padding
    -> examples in random order -> pools of several batches -> each pool sorted by length and split
    into batches -> batches in random order -> each batch padded to the next bucket length
    -> model -> outputs in the order of the examples

A million short examples take only tens of megabytes. The random orders of an epoch depend on
(seed, epoch). A batch of B rows of S tokens contains:

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
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.models.memory import check_batch_fits
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.backend import BACKEND
from keras_bert.training.cluster import all_sum
from keras_bert.training.evaluate import compiled_with_jax, make_predict
from keras_bert.training.log import progress
from keras_bert.training.objective import NO_OUTPUT, AfterBatch, Batch

# --- index ranges ---
# lengths [2, 3]                  row_splits     0 2 5
# starts [5, 9], lengths [2, 3]   ranges         5 6 9 10 11
# lengths [2, 3], width 4         sequence_mask  1 1 0 0 / 1 1 1 0


def row_splits(lengths: np.ndarray) -> np.ndarray:
    """Returns the start of each row, followed by the end of the last: lengths [n] -> [n + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def ranges(starts: np.ndarray | int, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the n index ranges with the given starts and lengths, int [n] each.

    `starts` may also be one start for all rows; 0 gives the index within each row.
    """
    splits = row_splits(lengths)
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)


def sequence_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """Returns bool [n, width]: true before each row's length, false at padding."""
    return np.arange(width) < lengths[:, np.newaxis]


# --- examples ---


@dataclass(frozen=True, eq=False)  # Compared and hashed by identity.
class Examples:
    """Tokenized examples: n examples of T tokens in total.

    Attributes:
        input_ids: int32 [T], the concatenated tokens of all examples, with [CLS] and [SEP].
        segment_ids: int32 [T].
        starts: int64 [n + 1], the index of the first token of each example, followed by T.
        labels: {name: one value or row per example, [n] or [n, width]}.
        token_labels: {name: one value or row per token, [T] or [T, width]}; integers are -1 for
            tokens without a label.
        group_size: the number of consecutive examples that form a group, such as the two texts of a
            pair. Training batches consist of whole groups.
        shown: the texts of up to three short examples, which an export shows to its users.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    group_size: int = 1
    shown: Sequence[Sequence[str]] = ()

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_groups(self) -> int:
        """The number of groups; without groups, the number of examples."""
        return len(self) // self.group_size

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example, int64 [n]."""
        return np.diff(self.starts)

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of all arrays with their names, dtypes and shapes."""
        tokens = {"input_ids": self.input_ids, "segment_ids": self.segment_ids}
        values = tokens | {"starts": self.starts, **self.labels, **self.token_labels}
        digest = hashlib.sha256()
        for name, array in values.items():
            digest.update(f"{name} {array.dtype} {[*array.shape]}\n".encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def rows(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        """Splits an array with one row per token, [T, ...], by example: yields [length, ...]."""
        for first, last in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield flat[first:last]

    def token_indices(self, indices: np.ndarray) -> np.ndarray:
        """Returns the indices, among all T tokens, of the tokens of the given examples."""
        return ranges(self.starts[indices], self.lengths[indices])

    def take(self, indices: np.ndarray) -> "Examples":
        """Returns the examples with the given indices [m], in that order."""
        indices = np.asarray(indices, np.int64)
        tokens = self.token_indices(indices)
        return Examples(
            self.input_ids[tokens],
            self.segment_ids[tokens],
            row_splits(self.lengths[indices]),
            {name: values[indices] for name, values in self.labels.items()},
            {name: values[tokens] for name, values in self.token_labels.items()},
        )


# --- batches ---


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the number of batches per epoch, counting a partial last batch."""
    return -(-num_examples // batch_size)


def bucket_lengths(max_seq_length: int) -> np.ndarray:
    """Returns the lengths to which batches are padded, in increasing order up to `max_seq_length`.

    They are multiples of 8 up to 128, of 16 up to 256 and of 32 above. Above 128, padding is less
    than an eighth of an example's length. With JAX, and on GPUs and TPUs, XLA compiles a program
    for each length in seconds to minutes, so there are only 32, 64, 96, 128, 192, 256, 384, 512.
    """
    lengths = [*range(8, 128, 8), *range(128, 256, 16), *range(256, max_seq_length, 32)]
    if BACKEND == "jax" or any(map(tf.config.list_physical_devices, ("GPU", "TPU"))):
        lengths = [32, *(factor << power for power in range(5, 30) for factor in (2, 3))]
    return np.array([length for length in lengths if length < max_seq_length] + [max_seq_length])


class Batcher:
    """Builds padded batches of examples.

    Args:
        batch_size: number of examples per batch, over all devices; of texts, not of groups.
        max_seq_length: the largest length of a batch, in tokens; no example may be longer.
        seed: seed for the order of every epoch and the dropout masks of every example.
        length_pool: number of training batches whose examples are sorted together (`epoch_plan`).
        share: index of this worker and number of workers; each worker builds its rows of a batch.
    """

    def __init__(
        self,
        batch_size: int,
        pad_token_id: int = 0,
        max_seq_length: int = 512,
        seed: int = 0,
        length_pool: int = 50,
        share: tuple[int, int] = (0, 1),
    ):
        self.batch_size, self.share = batch_size, share
        self._pad_token_id, self._seed, self._length_pool = pad_token_id, seed, length_pool
        self._buckets = bucket_lengths(max_seq_length)
        worker, workers = share
        self.rows = batch_size // workers  # per worker
        self._worker_rows = slice(worker * self.rows, (worker + 1) * self.rows)

    def training(self, examples: Examples, first_step: int = 0) -> tf.data.Dataset:
        """Creates the endless dataset of training batches, starting at `first_step`."""
        index_of = training_plan(examples, self.batch_size, self._seed, self._length_pool)
        return self._dataset(examples, tf.data.Dataset.range(first_step, tf.int64.max), index_of)

    def evaluation(self, examples: Examples) -> tf.data.Dataset:
        """Creates the batches of one pass over the examples, from the longest to the shortest."""
        plan = evaluation_plan(examples.lengths, self.batch_size)
        seeds = np.zeros([self.batch_size], np.int32)
        steps = tf.data.Dataset.range(len(plan))
        return self._dataset(examples, steps, lambda step: (plan[step], seeds))

    def evaluation_arrays(self, examples: Examples) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of `evaluation` as NumPy arrays, which is faster for few examples."""
        by_token, seeds = self._by_token(examples), np.zeros([self.batch_size], np.int32)
        for index in evaluation_plan(examples.lengths, self.batch_size):
            yield self._build(examples, by_token, index, seeds)

    def _by_token(self, examples: Examples) -> dict[str, tuple[np.ndarray, int | float]]:
        """Returns {name: (the values of all tokens, the value at padding)}."""
        return {
            "input_ids": (examples.input_ids, self._pad_token_id),
            "input_mask": (np.ones([len(examples.input_ids)], np.int32), 0),
            "segment_ids": (examples.segment_ids, 0),
            **{
                name: (values, NO_OUTPUT if np.issubdtype(values.dtype, np.floating) else -1)
                for name, values in examples.token_labels.items()
            },
        }

    def _build(
        self,
        examples: Examples,
        by_token: Mapping[str, tuple[np.ndarray, int | float]],
        index: np.ndarray,
        seeds: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Builds this worker's rows of a batch.

        `index`, int [batch_size], contains the indices of the examples of all workers, and -1 for
        filler rows. `seeds`, int32 [batch_size], contains the seeds of the dropout masks.
        """
        real = index >= 0
        rows = np.where(real, index, index[0])  # Filler rows are copies of the first row.
        # All workers use the length of the whole batch.
        longest = examples.lengths[rows].max()
        length = self._buckets[np.searchsorted(self._buckets, longest)]
        rows, real, index, seeds = (each[self._worker_rows] for each in (rows, real, index, seeds))
        inside = sequence_mask(examples.lengths[rows], length)
        positions = examples.token_indices(rows)
        batch = {}
        for name, (values, padding) in by_token.items():
            batch[name] = np.full([self.rows, length, *values.shape[1:]], padding, values.dtype)
            batch[name][inside] = values[positions]
        batch |= {name: values[rows] for name, values in examples.labels.items()}
        return batch | {
            "example_weights": real.astype(np.float32),
            "dropout_seed": seeds,
            "example_index": index.astype(np.int32),
        }

    def _dataset(
        self,
        examples: Examples,
        steps: tf.data.Dataset,
        index_of: Callable[[int], tuple[np.ndarray, np.ndarray]],
    ) -> tf.data.Dataset:
        """Maps a dataset of steps to a dataset of batches."""
        by_token = self._by_token(examples)
        specs = {
            name: tf.TensorSpec([self.rows, None, *values.shape[1:]], values.dtype)
            for name, (values, _) in by_token.items()
        } | {
            name: tf.TensorSpec([self.rows, *values.shape[1:]], values.dtype)
            for name, values in examples.labels.items()
        }
        specs["example_weights"] = tf.TensorSpec([self.rows], tf.float32)
        specs |= dict.fromkeys(
            ("dropout_seed", "example_index"), tf.TensorSpec([self.rows], tf.int32)
        )

        def build(step: int) -> list[np.ndarray]:
            return [*self._build(examples, by_token, *index_of(step)).values()]

        def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
            types = [spec.dtype for spec in specs.values()]
            values = tf.numpy_function(build, [step], types, stateful=False)
            return {
                name: tf.ensure_shape(value, spec.shape)
                for (name, spec), value in zip(specs.items(), values, strict=True)
            }

        batches = steps.map(batch, num_parallel_calls=2, deterministic=True)
        return batches.prefetch(tf.data.AUTOTUNE)


def training_plan(
    examples: Examples, batch_size: int, seed: int, length_pool: int
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Returns a function that chooses the examples of a training step, in whole groups.

    The function takes the step, from 0. It returns the indices of the examples, int64 [batch_size]
    with -1 for filler rows, and the seeds of their dropout masks, int32 [batch_size]. Both depend
    only on (seed, step).
    """
    size = examples.group_size
    lengths = examples.lengths.reshape(-1, size).max(axis=1)  # of groups
    batch_size //= size
    steps = steps_per_epoch(len(lengths), batch_size)
    members = np.arange(size, dtype=np.int32)

    @functools.lru_cache(maxsize=2)  # Prefetching needs the next epoch's plan as well.
    def plan(epoch: int) -> np.ndarray:
        return epoch_plan(lengths, batch_size, seed, epoch, length_pool)

    def index_of(step: int) -> tuple[np.ndarray, np.ndarray]:
        epoch, number = divmod(int(step), steps)
        groups = plan(epoch)[number][:, np.newaxis]
        rng = np.random.default_rng([seed, step, 1])
        seeds = rng.integers(-(2**31), 2**31, batch_size, np.int32)[:, np.newaxis]
        index = np.where(groups >= 0, groups * size + members, -1)
        return index.ravel(), (seeds + members).ravel()

    return index_of


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


# --- outputs in the order of the examples ---

# Runs a model over examples, and returns {output: array}.
Predict = Callable[[Examples], dict[str, np.ndarray]]


def in_order(
    examples: Examples,
    outputs: Iterable[tuple[Batch, Mapping[str, np.ndarray]]],
    per_token: bool,
    after_batch: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Collects the outputs of batches in the order of n examples of T tokens in total.

    `outputs` are batches of the examples, each with {output: [B, ...]} of a model, or if
    `per_token` {output: [B, S, ...]}. `after_batch` is called with the number of examples of each.

    Returns:
        {output: [n, ...]}, or if `per_token` {output: [T, ...]}, aligned with
        `examples.input_ids`; 0 for examples that are in no batch.
    """
    values: dict[str, np.ndarray] = {}
    count = len(examples.input_ids) if per_token else len(examples)
    for batch, batch_outputs in outputs:
        is_example = batch["example_index"] >= 0
        selected, positions = is_example, batch["example_index"][is_example]
        if per_token:
            # Flatten the rows to tokens and store each at its index among all tokens.
            selected = is_example[:, np.newaxis] & (batch["input_mask"] == 1)
            positions = examples.token_indices(positions)
        for name, array in batch_outputs.items():
            if name not in values:
                values[name] = np.zeros([count, *array.shape[selected.ndim :]], array.dtype)
            values[name][positions] = array[selected]
        if after_batch:
            after_batch(int(is_example.sum()))
    return values


def check_finite(values: Mapping[str, np.ndarray], examples: Examples, per_token: bool) -> None:
    """Raises InputError if an output is not finite; all workers must pass the same `values`."""
    for name, array in values.items():
        finite = np.isfinite(array)
        if finite.all():
            continue
        non_finite: Iterable[int] = np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))
        if per_token:
            non_finite = np.unique(np.searchsorted(examples.starts, non_finite, side="right"))
        raise InputError(
            f"the model's {name} are not finite for {len(non_finite)} of {len(examples)} examples; "
            "no result is saved"
        )


def make_predict_examples(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    batcher: Batcher,
    *,
    jit_compile: bool = True,
    batch_size_name: str = "--eval_batch_size",
) -> Callable[..., dict[str, np.ndarray]]:
    """Creates the function that runs a model, which was created under `strategy`, over examples.

    `batch_size_name` is the flag or argument that sets the batch size, for error messages.

    Returns:
        `predict(examples, after_batch=None)`. For n examples of T tokens in total, it returns
        {output: float32 [n, ...]}, or for a `per_token` model {output: float32 [T, ...]}, aligned
        with `examples.input_ids`. It calls `after_batch` after each device's part of a batch. It
        raises InputError if a batch cannot fit in the memory of this machine, and on all workers if
        an output is not finite.
    """
    run = make_predict(strategy, model, jit_compile=jit_compile)
    together = all_sum(strategy)
    worker, workers = batcher.share

    def predict(examples: Examples, after_batch: AfterBatch | None = None) -> dict[str, np.ndarray]:
        if len(examples):
            flag = f"{batch_size_name}={batcher.batch_size}"
            check_batch_fits(model.config, batcher.rows, int(examples.lengths.max()), flag)
        with progress("predicting", len(examples), "examples", silent=worker > 0) as advance:

            def report(count: int) -> None:
                advance(count * workers)
                if after_batch:
                    after_batch()

            batches = run(batcher.evaluation(examples))
            outputs = in_order(examples, batches, model.per_token, report)
        # Each value is computed by one worker and is 0 on the others.
        values = {
            name: together(array).astype(array.dtype, copy=False) for name, array in outputs.items()
        }
        check_finite(values, examples, model.per_token)
        return values

    return predict


class ModelRunner:
    """Runs a model from keras_bert.models over examples; several threads may use it."""

    def __init__(self, model: keras.Model, tokenizer: BertTokenizer):
        self._model = model
        self._tokenizer = tokenizer
        # The model as a compiled function, and the variables that it was compiled with.
        self._compiled: tuple[Callable[..., Any], Sequence[keras.Variable]] | None = None

    def run(self, examples: Examples, batch_size: int, per_token: bool) -> dict[str, np.ndarray]:
        """Computes {output: values} for the examples, in their order; there may be no examples."""
        if not len(examples):  # Runs one dummy example to get the output names and shapes.
            ids = np.array([self._tokenizer.cls_token_id, self._tokenizer.sep_token_id], np.int32)
            one = Examples(ids, np.zeros_like(ids), np.array([0, 2]))
            return {name: values[:0] for name, values in self.run(one, 1, per_token).items()}
        batches = self.batches(examples, batch_size)
        values = in_order(examples, ((b, self.forward(b)) for b in batches), per_token)
        check_finite(values, examples, per_token)
        return values

    def batches(self, examples: Examples, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields padded batches of examples of similar length, the longest first."""
        positions = self._model.config.max_position_embeddings
        rows = max(len(examples), 1)
        if BACKEND == "jax":  # Compiles a program for each number of rows.
            rows = 1 << (rows - 1).bit_length()
        batcher = Batcher(min(batch_size, rows), self._tokenizer.pad_token_id, positions)
        yield from batcher.evaluation_arrays(examples)

    def forward(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the model's outputs, {output: array}, for a batch."""
        inputs = {name: batch[name] for name in self._model.required_inputs}
        if BACKEND == "torch":
            return self._model.predict_on_batch(inputs)
        return {name: np.asarray(value) for name, value in self._function()(inputs).items()}

    def _function(self) -> Callable[..., Mapping[str, Any]]:
        """Returns the model as a compiled function; with TensorFlow, for batches of any shape."""
        variables = self._model.variables
        # Compile again if LoRA or quantization has replaced the model's variables.
        if self._compiled is None or [*map(id, self._compiled[1])] != [*map(id, variables)]:
            call: Callable[..., Mapping[str, Any]] = functools.partial(self._model, training=False)
            if BACKEND == "jax":
                # `predict_on_batch` would delete the weights that other threads are using.
                call = compiled_with_jax(self._model, call)
            else:
                names = self._model.required_inputs
                specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}
                call = tf.function(call, input_signature=[specs], autograph=False)
            self._compiled = (call, variables)
        return self._compiled[0]
