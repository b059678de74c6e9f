"""Creates the batches of pre-training records, as a function of (seed, step).

    files -> files and records of epoch e in an order drawn from (seed, e) -> batches -> features

A batch of B rows, S tokens and P predictions has int32 features and float32 weights:

    input_ids, input_mask, segment_ids                       [B, S]
    masked_lm_positions, masked_lm_ids, masked_lm_weights    [B, P]
    next_sentence_labels, dropout_seed, example_weights      [B]; rows of padding have weight 0

Packed rows contain several examples. Their batches also have position_ids and example_ids (from 1;
0 at padding), [B, S] each, and next_sentence_positions and next_sentence_weights (1 for each
example), [B, P] each, like next_sentence_labels.

Records without masks are masked on the host (masking.py), so that accelerators run the same program
for all records. Left-to-right prediction has next tokens instead of masks.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_bert.pretraining.masking import Masking, mask_examples
from keras_bert.pretraining.records import PretrainingData, parse_records
from keras_bert.text.vocabulary import load_vocab

SHUFFLE_BUFFER = 65_536
READ_CYCLE = 8
_EVALUATION_SEED = 0
_MASKS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def training_batches(
    data: PretrainingData,
    vocab_size: int,
    batch_size: int,
    seed: int,
    first_step: int = 0,
    left_to_right: bool = False,
    share: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:
    """Creates the endless dataset of training batches, starting at `first_step`.

    The records may come from other BERT tools. All token ids must be below `vocab_size`. With
    `left_to_right`, the label of each token is the next token, and nothing is masked. `share` is
    the index of this worker and the number of workers.

    Each worker reads its own files, and creates its own rows of each batch, [B / W, ...] for W
    workers; if there are fewer files than workers, InputError is raised. Batches continue across
    epochs, so all have `batch_size` records over all devices. `seed` determines the order of the
    records, the dropout masks, and the masked tokens of records without masks.
    """
    index, workers = share
    data = data.share(index, workers)
    worker_rows = batch_size // workers
    files = tf.constant(data.files)
    epoch, rest = divmod(first_step * worker_rows, data.num_examples)

    def one_epoch(index: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            files, seed=[tf.cast(seed, tf.int64), index]
        )
        shuffle_seeds = tf.random.stateless_uniform(
            [2], [tf.cast(seed, tf.int64), ~index], minval=None, maxval=None, dtype=tf.int64
        )
        records = tf.data.Dataset.from_tensor_slices(order).interleave(
            tf.data.TFRecordDataset, cycle_length=READ_CYCLE
        )
        # Sets the seed of this function's graph; otherwise `shuffle` depends on the global seed.
        tf.random.set_seed(1)
        buffer = min(SHUFFLE_BUFFER, data.num_examples)
        return records.shuffle(buffer, seed=shuffle_seeds[0], reshuffle_each_iteration=False)

    records = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(one_epoch).skip(rest)
    batches = records.batch(worker_rows, drop_remainder=True)
    steps = tf.data.Dataset.range(first_step, tf.int64.max)
    prepare = _preparer(data, left_to_right)

    def features(step: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        # The third number of the seed differs from 1, which evaluations use.
        mask_seed = tf.stack([seed, step, 2 + index] if index else [seed, step])
        batch = prepare(parse_records(serialized, data, vocab_size), mask_seed)
        count = serialized.shape[0] or tf.shape(serialized)[0]
        seeds = tf.random.stateless_uniform(
            [workers * count], [tf.cast(seed, tf.int64), step], None, None, tf.int32
        )
        seeds = seeds[index * count : (index + 1) * count]
        return batch | {"example_weights": tf.ones([count]), "dropout_seed": seeds}

    return (
        tf.data.Dataset.zip(steps, batches)
        .map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_batches(
    data: PretrainingData,
    vocab_size: int,
    batch_size: int,
    max_batches: int = 0,
    left_to_right: bool = False,
    share: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:
    """Creates the batches of one pass over the records, in the order of the files.

    `data`, `vocab_size`, `left_to_right` and `share` are those of `training_batches`.

    Each worker creates its own rows of a batch. The last batch is padded with records of weight 0.
    The masked tokens of records without masks are the same in every evaluation with the same
    `batch_size`. If `max_batches` is 0, all records are used.
    """
    index, workers = share
    worker_rows = batch_size // workers
    records = tf.data.TFRecordDataset(data.files).batch(batch_size)
    if max_batches:
        records = records.take(max_batches)
    prepare = _preparer(data, left_to_right)

    def features(number: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        # Training steps have other seeds: two numbers, or three, of which the last is at least 3.
        seed = tf.stack([_EVALUATION_SEED, number, 1])
        batch = prepare(parse_records(serialized, data, vocab_size), seed)
        count = tf.shape(serialized)[0]
        batch["example_weights"] = tf.ones([count])
        return {
            name: _fill(value, batch_size - count)[index * worker_rows : (index + 1) * worker_rows]
            for name, value in batch.items()
        }

    def _fill(value: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
        paddings = [[0, missing]] + [[0, 0]] * (value.shape.rank - 1)
        return tf.ensure_shape(tf.pad(value, paddings), [batch_size, *value.shape[1:]])

    return (
        records.enumerate()
        .map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def _preparer(
    data: PretrainingData, left_to_right: bool
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the function that adds the tokens to predict to a batch.

    Its arguments are the batch and the seed of the masked tokens, int64 [2] or [3]; it returns the
    new batch.
    """
    if left_to_right:
        return lambda batch, seed: next_tokens(batch)
    if data.masking is None:
        return lambda batch, seed: batch
    masking = Masking.from_vocab(
        load_vocab(data.vocab_file),
        max_predictions_per_seq=data.max_predictions_per_seq,
        **data.masking,
    )
    types = {
        "input_ids": tf.int32,
        "masked_lm_positions": tf.int32,
        "masked_lm_ids": tf.int32,
        "masked_lm_weights": tf.float32,
    }

    def sample_masks(
        seed: np.ndarray, input_ids: np.ndarray, input_mask: np.ndarray, *example_ids: np.ndarray
    ) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        rows = example_ids[0] if example_ids else None
        masked = mask_examples(input_ids, input_mask, masking, rng, rows)
        return [masked[name] for name in types]

    def mask(batch: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ["input_ids", "input_mask"] + ["example_ids"] * data.pack
        masked = tf.numpy_function(
            sample_masks,
            [seed, *(batch[name] for name in names)],
            list(types.values()),
            stateful=False,
        )
        for name, value in zip(types, masked, strict=True):
            width = data.max_seq_length if name == "input_ids" else data.max_predictions_per_seq
            batch = batch | {name: tf.ensure_shape(value, [batch["input_ids"].shape[0], width])}
        return batch

    return mask


# --- next tokens ---


def next_tokens(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Replaces the masks of a batch, if it has any, with next_token_ids and next_token_weights.

    The label of each token is the next token (Devlin et al. 2019, section 5.1, "LTR & No NSP").

    Both are [B, S], int32 and float32. The weights are 1 for tokens that have a next token in their
    example, and 0 otherwise. In input_ids, the original tokens replace the masked ones.
    """
    ids = _unmasked(batch) if _MASKS[0] in batch else batch["input_ids"]
    # The number of each token's example, 0 at padding. An unpacked row is one example.
    example = batch.get("example_ids", batch["input_mask"])
    has_next = (example[:, :-1] == example[:, 1:]) & (example[:, 1:] > 0)
    one_token = [[0, 0], [0, 1]]
    rest = {name: value for name, value in batch.items() if name not in _MASKS}
    return rest | {
        "input_ids": ids,
        "next_token_ids": tf.pad(ids[:, 1:], one_token),
        "next_token_weights": tf.pad(tf.cast(has_next, tf.float32), one_token),
    }


def _unmasked(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns input_ids with the original tokens in place of [MASK] and random tokens."""
    # [k, 2]: row and slot of each prediction, without the slots that are padding.
    slots = tf.where(batch["masked_lm_weights"] > 0)
    positions = tf.gather_nd(batch["masked_lm_positions"], slots)
    places = tf.stack([slots[:, 0], tf.cast(positions, tf.int64)], axis=1)
    original = tf.gather_nd(batch["masked_lm_ids"], slots)
    return tf.tensor_scatter_nd_update(batch["input_ids"], places, original)
