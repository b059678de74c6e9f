"""Reads pre-training records: their format and shape, parsing, and the place of a damaged one.

    record_files.py -> find_records -> files, format, shape -> parse_records -> batch
    files and records of epoch e, in an order drawn from (seed, e) -> batches of step (seed, N)

Folders written by `create-pretraining-data` have a manifest, against which the files are
checked. The records of other BERT tools are counted by reading them. Such records are assumed to
have the usual format: with masks, one example per record, and random next sentences.
"""

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import sha256
from keras_bert.pretraining.masking import Masking, mask_examples
from keras_bert.pretraining.record_files import MANIFEST, check_same, find_record_files, shards_of
from keras_bert.text.vocabulary import load_vocab

# The settings that determine the format of records, with those of the records of other tools. The
# last three are those of dynamic masking; records with masks may differ in them.
_USUAL_FORMAT = {
    "next_sentence": "random",
    "dynamic": False,
    "pack": False,
    "masked_lm_prob": None,
    "do_whole_word_mask": None,
    "ngram": None,
}
_MASKING = ("masked_lm_prob", "do_whole_word_mask", "ngram")


class PretrainingData(NamedTuple):
    """The files of one pre-training dataset.

    Attributes:
        files: the paths of the record files that are not empty, sorted.
        counts: the number of records (rows, if packed) in each file.
        next_sentence: the next-sentence task: to detect a `random` second segment (Devlin et al.
            2019), or a swapped `order` of the segments (Lan et al. 2020); or `none`.
        pack: whether a record is a row of several examples.
        masking: None if the records have masks; otherwise masks are drawn during training with
            these settings, masked_lm_prob, do_whole_word_mask and ngram.
        fingerprint: a hash of the format, and of the name and the checksum of each file (or its
            size, if no manifest has the checksum).
        manifests: {folder: content of its manifest.json}, without folders that have none.
        vocab_file: the vocabulary in the first folder with a manifest (all such folders have the
            same vocabulary); None without manifests.
    """

    files: Sequence[str]
    counts: Sequence[int]
    max_seq_length: int
    max_predictions_per_seq: int
    next_sentence: str
    pack: bool
    masking: Mapping[str, Any] | None
    fingerprint: str
    manifests: dict[Path, dict]
    vocab_file: Path | None

    @property
    def num_examples(self) -> int:
        """The number of records in all files."""
        return sum(self.counts)

    def share(self, index: int, count: int) -> "PretrainingData":
        """Returns the part of the files that worker `index`, from 0, of `count` workers reads."""
        if len(self.files) < count:
            raise InputError(
                f"{Path(self.files[0]).parent}: found {len(self.files)} files with records; "
                f"expected at least {count}, one per worker. Create the records with "
                f"--num_shards={count} or more"
            )
        return self._replace(files=self.files[index::count], counts=self.counts[index::count])


def find_records(input_file: str, flag: str = "input_file") -> PretrainingData:
    """Finds record files (see `find_record_files`), and reads their format and shape."""
    folders = sorted(find_record_files(input_file, flag), key=lambda files: files[0])
    all_files = sorted(Path(folder, name) for folder, names, _ in folders for name in names)
    manifests = {Path(folder): manifest for folder, _, manifest in folders if manifest}
    shards = {folder: shards_of(manifest) for folder, manifest in manifests.items()}
    shard_of = {path: shards.get(path.parent, {}).get(path.name) for path in all_files}
    counts = {path: _count_records(path, shard) for path, shard in shard_of.items()}
    files = [path for path in all_files if counts[path]]
    if not files:
        raise InputError(f"--{flag}={input_file!r}: all {len(all_files)} files are empty")
    formats = {path: _format_of(manifests.get(path.parent)) for path in files}
    check_same("the record format", formats)
    shapes = {path: _shape_of(path, manifests.get(path.parent)) for path in files}
    check_same("(max_seq_length, max_predictions_per_seq)", shapes)
    vocabs = {folder / m["vocab"]["file"]: m["vocab"]["sha256"] for folder, m in manifests.items()}
    check_same("the sha256 of the vocabulary", vocabs)
    for path, checksum in vocabs.items():
        _check_vocabulary(path, checksum)
    form = formats[files[0]]
    content: list[object] = [form]
    for path, shard in shard_of.items():
        content.append([path.name, shard["sha256"] if shard else path.stat().st_size])
    return PretrainingData(
        files=[str(path) for path in files],
        counts=[counts[path] for path in files],
        max_seq_length=shapes[files[0]][0],
        max_predictions_per_seq=shapes[files[0]][1],
        next_sentence=form["next_sentence"],
        pack=form["pack"],
        masking={name: form[name] for name in _MASKING} if form["dynamic"] else None,
        fingerprint=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        manifests=manifests,
        vocab_file=next(iter(vocabs), None),
    )


def _count_records(path: Path, shard: dict[str, Any] | None) -> int:
    """Returns the number of records in a file; `shard` is its entry in a manifest, if any."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if shard:
        if size != shard["bytes"]:
            raise InputError(
                f"{path}: is damaged: it has {size} bytes; expected {shard['bytes']}, as in its "
                "manifest"
            )
        return shard["rows"]
    count = 0
    with open(path, "rb") as file:
        while header := file.read(12):
            # A record is its length (8 bytes), a checksum (4), the bytes, a checksum (4).
            length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else size
            if file.tell() + length + 4 > size:
                raise InputError(f"{path}: is truncated: record {count} is incomplete")
            file.seek(length + 4, 1)
            count += 1
    return count


def _format_of(manifest: dict | None) -> dict[str, Any]:
    if manifest is None:
        return _USUAL_FORMAT
    form = {name: manifest["settings"][name] for name in _USUAL_FORMAT}
    return form if form["dynamic"] else form | dict.fromkeys(_MASKING)


def _shape_of(path: Path, manifest: dict | None) -> tuple[int, int]:
    try:
        serialized = next(iter(tf.data.TFRecordDataset(str(path)))).numpy()
        feature = tf.train.Example.FromString(serialized).features.feature
        names = set(feature)
        ids, positions = feature["input_ids"], feature["masked_lm_positions"]
        predictions = len(positions.int64_list.value)
        if manifest and manifest["settings"]["dynamic"]:  # Such records contain no masks.
            predictions = manifest["settings"]["max_predictions_per_seq"]
        shape = len(ids.int64_list.value), predictions
    except (tf.errors.OpError, ValueError, StopIteration) as error:
        raise InputError(f"{path}: record 0 cannot be read: {_first_line(error)}") from error
    except Exception as error:  # protobuf's DecodeError has no public base class
        raise InputError(f"{path}: record 0 is not a tf.Example: {_first_line(error)}") from error
    is_packed, is_dynamic = "example_ids" in names, "masked_lm_positions" not in names
    if manifest is None and "input_ids" in names and (is_packed or is_dynamic):
        content = "packed rows" if is_packed else "records without masks"
        raise InputError(
            f"{path.parent / MANIFEST}: file not found; expected the manifest, because {path.name} "
            f"contains {content}, whose settings are only in the manifest"
        )
    if not all(shape):
        raise InputError(
            f"{path}: record 0 has no input_ids or masked_lm_positions; expected a record for BERT "
            "pre-training"
        )
    return shape


def _check_vocabulary(path: Path, expected: str) -> None:
    try:
        actual = sha256(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if actual != expected:
        raise InputError(
            f"{path}: has changed since the records were created with it: its sha256 is {actual}; "
            f"expected {expected}, as in the manifest of the records"
        )


def _first_line(error: Exception) -> str:
    """Returns the first line of a TensorFlow or protobuf error, without names of operations."""
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    # TensorFlow puts the names of operations around the reason.
    return re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", message.splitlines()[0])


# --- parse ---


def parse_records(
    serialized: tf.Tensor, data: PretrainingData, vocab_size: int
) -> dict[str, tf.Tensor]:
    """Parses serialized records, strings [n], into a batch.

    With dynamic masking, the batch has no masked-LM features yet. Executing the graph raises an
    InvalidArgumentError if a record does not have the format and the shape in `data`, or a value is
    out of range, such as a token id that is not below `vocab_size`.

    Returns:
        {feature: tensor [n, ...]}, float32 for weights and int32 for all others.
    """
    length, predictions = data.max_seq_length, data.max_predictions_per_seq
    pack = data.pack
    # Feature -> (width, exclusive upper limit of its values, None for weights).
    features = {
        "input_ids": (length, vocab_size),
        "input_mask": (length, 2),
        "segment_ids": (length, 2),
        "next_sentence_labels": (predictions if pack else 1, 2),
    }
    if data.masking is None:
        features |= {
            "masked_lm_positions": (predictions, length),
            "masked_lm_ids": (predictions, vocab_size),
            "masked_lm_weights": (predictions, None),
        }
    if pack:
        features |= {
            "position_ids": (length, length),
            "example_ids": (length, predictions + 1),
            "next_sentence_positions": (predictions, length),
            "next_sentence_weights": (predictions, None),
        }
    spec = {
        name: tf.io.FixedLenFeature([width], tf.int64 if limit else tf.float32)
        for name, (width, limit) in features.items()
    }
    batch = tf.io.parse_example(serialized, spec)
    # An id, position or label out of range would silently select another row of a table.
    fits = [
        tf.debugging.Assert(
            tf.reduce_all((batch[name] >= 0) & (batch[name] < limit)),
            [f"{name} is out of range: expected at least 0 and below {limit}"],
        )
        for name, (_, limit) in features.items()
        if limit
    ]
    with tf.control_dependencies(fits):
        if not pack:
            batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return {
            name: tf.identity(value if value.dtype == tf.float32 else tf.cast(value, tf.int32))
            for name, value in batch.items()
        }


# --- find a damaged record ---


# The number of records that are read at once in each pass of the search for the damaged one.
_BATCH_SIZES = (1024, 32, 1)
# TensorFlow raises a UnicodeDecodeError if its error message quotes a record that is not UTF-8.
_RECORD_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, UnicodeDecodeError)
# TensorFlow's messages about records that cannot be read or parsed, or have values out of range.
_NOT_AN_EXAMPLE = "Could not parse example"
_RECORD_ERROR_MESSAGES = re.compile(
    rf"(corrupted|truncated) record|{_NOT_AN_EXAMPLE}|Can't parse serialized Example|"
    r"Feature: .* could not be found|Data types don't match|values != expected|"
    r"is out of range: expected"
)


@contextmanager
def explain_record_errors(data: PretrainingData, vocab_size: int) -> Iterator[None]:
    """Converts errors about damaged records into an InputError that names the file and the record.

    TensorFlow's errors do not name the record. All records of `data`, the dataset that the `with`
    block reads, are therefore read again to find it.
    """
    try:
        yield
    except _RECORD_ERRORS as error:
        if not _RECORD_ERROR_MESSAGES.search(_message(error)):
            raise
        logging.info(
            "a record cannot be read; checking all %d records in %d files to find it",
            data.num_examples,
            len(data.files),
        )
        for path in data.files:
            if found := _first_damaged(path, data, vocab_size):
                index, cause = found
                is_not_example = _NOT_AN_EXAMPLE in _message(cause)
                reason = "is not a tf.Example" if is_not_example else _first_line(cause)
                raise InputError(f"{path}: record {index}: {reason}") from error
        raise


def _first_damaged(
    path: str, data: PretrainingData, vocab_size: int
) -> tuple[int, Exception] | None:
    """Returns the index and the error of the first unreadable record; None if there is none."""
    start, cause = 0, None
    for batch_size in _BATCH_SIZES:
        try:
            for serialized in tf.data.TFRecordDataset(path).skip(start).batch(batch_size):
                parse_records(serialized, data, vocab_size)
                start += batch_size
        except _RECORD_ERRORS as error:
            cause = error
        else:
            return None
    return start, cause


def _message(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return error.message


# --- batches ---

# A batch of B rows, S tokens and P predictions has int32 features and float32 weights:
#
#     input_ids, input_mask, segment_ids                       [B, S]
#     masked_lm_positions, masked_lm_ids, masked_lm_weights    [B, P]
#     next_sentence_labels, dropout_seed, example_weights      [B]; rows of padding have weight 0
#
# Packed rows contain several examples. Their batches also have position_ids and example_ids (from
# 1; 0 at padding), [B, S] each, and next_sentence_positions and next_sentence_weights (1 for each
# example), [B, P] each, like next_sentence_labels.
#
# Records without masks are masked on the host (masking.py), so that accelerators run the same
# program for all records. Left-to-right prediction has next tokens instead of masks.
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
