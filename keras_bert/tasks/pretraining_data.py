"""Reading pre-training records: files in; batches out, each a function of (seed, step).

    files -> [epoch e: files and records in an order drawn from (seed, e)] -> batches -> features

A batch is {input_ids, input_mask, segment_ids: int32 [B, S]; masked_lm_positions, masked_lm_ids:
int32 [B, P]; masked_lm_weights: float32 [B, P]; next_sentence_labels: int32 [B]; example_weights:
float32 [B], 0 for padding; dropout_seed: int32 [B]}. Files have Google's feature names and shapes,
so records made by other BERT tools are read as well.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from keras_bert.errors import InputError

SHUFFLE_BUFFER = 65_536
READ_CYCLE = 8


@dataclass(frozen=True)
class PretrainingData:
    """Files of pre-training records that belong together.

    Attributes:
        files: the record files, sorted.
        num_examples: records in all of them.
        max_seq_length: S of every record.
        max_predictions_per_seq: P of every record.
        fingerprint: a hash of what the files hold: of the checksums in the manifest, else of the
            names and sizes.
        manifest: what the data tool wrote beside the files, or None (another tool's files).
        vocab_file: the vocabulary beside the manifest, or None.
    """

    files: Sequence[str]
    num_examples: int
    max_seq_length: int
    max_predictions_per_seq: int
    fingerprint: str
    manifest: dict | None
    vocab_file: Path | None


def find_records(input_file: str) -> PretrainingData:
    """Finds record files and what is known of them.

    Args:
        input_file: comma-separated folders (made by `data_tools.create_pretraining_data`), files
            or globs.

    Returns:
        The files with their sizes and shapes.

    Raises:
        InputError: no files, an empty or damaged one, or files that differ in shape or vocabulary.
    """
    files: list[Path] = []
    for pattern in filter(None, (part.strip() for part in input_file.split(","))):
        found = _expand(pattern)
        if not found:
            raise InputError(f"--input_file: no record files match {pattern!r}")
        files += found
    if not files:
        raise InputError(f"--input_file={input_file!r} names no files")
    files = sorted(set(files))
    manifests = {folder: _read_manifest(folder) for folder in sorted({f.parent for f in files})}
    counts = [_count_records(path, manifests[path.parent]) for path in files]
    shapes = {path: _shape_of(path) for path, count in zip(files, counts, strict=True) if count}
    if not shapes:
        raise InputError(f"--input_file={input_file!r}: all {len(files)} files are empty")
    first, shape = next(iter(shapes.items()))
    for path, other in shapes.items():
        if other != shape:
            raise InputError(
                f"{path} has (max_seq_length, max_predictions_per_seq) {other}, but {first} has "
                f"{shape}; records of one run must have one shape"
            )
    known = [m for m in manifests.values() if m]
    if len({m["vocab"]["sha256"] for m in known}) > 1:
        raise InputError(f"--input_file={input_file!r}: folders were made with two vocabularies")
    folder = next((f for f, m in manifests.items() if m), None)
    return PretrainingData(
        files=[str(path) for path in shapes],
        num_examples=sum(counts),
        max_seq_length=shape[0],
        max_predictions_per_seq=shape[1],
        fingerprint=_fingerprint(files, manifests),
        manifest=manifests[folder] if folder else None,
        vocab_file=folder / manifests[folder]["vocab"]["file"] if folder else None,
    )


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
                raise InputError(f"{path}: record {index}: {_first_line(cause)}") from error
        raise


def _expand(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        manifest = _read_manifest(path)
        if manifest:
            return [path / shard["file"] for shard in manifest["shards"]]
        return sorted(path.glob("*.tfrecord*"))
    return [Path(name) for name in tf.io.gfile.glob(pattern)]


def _read_manifest(folder: Path) -> dict | None:
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest["shards"], manifest["vocab"]["sha256"], manifest["vocab"]["file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is not a manifest of the data tool: {error!r}") from error
    return manifest


def _fingerprint(files: Sequence[Path], manifests: dict[Path, dict | None]) -> str:
    content = []
    for path in files:
        shards = {
            s["file"]: s["sha256"] for s in (manifests[path.parent] or {"shards": []})["shards"]
        }
        content.append([path.name, shards.get(path.name, path.stat().st_size)])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _count_records(path: Path, manifest: dict | None) -> int:
    shards = {shard["file"]: shard for shard in (manifest or {"shards": []})["shards"]}
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if path.name in shards:
        shard = shards[path.name]
        if size != shard["bytes"]:
            raise InputError(
                f"{path}: is damaged: it has {size} bytes, its manifest says {shard['bytes']}"
            )
        return shard["examples"]
    count = 0
    with open(path, "rb") as file:
        while header := file.read(12):
            # A record is its length (8 bytes), a checksum (4), the bytes, a checksum (4).
            length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else size
            if file.tell() + length + 4 > size:
                raise InputError(f"{path}: is truncated: record {count} runs past the file's end")
            file.seek(length + 4, 1)
            count += 1
    return count


def _shape_of(path: Path) -> tuple[int, int]:
    try:
        serialized = next(iter(tf.data.TFRecordDataset(str(path)))).numpy()
        feature = tf.train.Example.FromString(serialized).features.feature
        ids, positions = feature["input_ids"], feature["masked_lm_positions"]
        shape = len(ids.int64_list.value), len(positions.int64_list.value)
    except (tf.errors.OpError, ValueError, StopIteration) as error:
        raise InputError(f"{path}: record 0 cannot be read: {_first_line(error)}") from error
    except Exception as error:  # protobuf's DecodeError has no public base of its own
        raise InputError(f"{path}: record 0 is not a tf.Example: {_first_line(error)}") from error
    if not all(shape):
        raise InputError(
            f"{path}: record 0 has no input_ids or masked_lm_positions; it was not made for BERT "
            "pre-training"
        )
    return shape


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
    highest = tf.reduce_max([tf.reduce_max(batch[k]) for k in ("input_ids", "masked_lm_ids")])
    fits = tf.debugging.assert_less(
        highest,
        tf.cast(vocab_size, tf.int64),
        f"a token id is outside the vocabulary of {vocab_size} pieces: made for another vocabulary",
    )
    with tf.control_dependencies([fits]):
        batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return {
            name: tf.identity(value if value.dtype == tf.float32 else tf.cast(value, tf.int32))
            for name, value in batch.items()
        }


def _first_line(error: Exception) -> str:
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    # TensorFlow wraps the reason in the names of its operations.
    return re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", message.splitlines()[0])
