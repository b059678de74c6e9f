"""Reads pre-training records: their format and shape, parsing, and the place of a damaged one.

    record_files.py -> find_records -> files, format, shape -> parse_records -> batch

Folders written by `create-pretraining-data` have a manifest, against which the files are
checked. The records of other BERT tools are counted by reading them. Such records are assumed to
have the usual format: with masks, one example per record, and random next sentences.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import sha256
from keras_bert.pretraining.record_files import MANIFEST, check_same, find_record_files, shards_of

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
        """Returns the part of the files that worker `index`, from 0, of `count` workers reads.

        Raises:
            InputError: there are fewer files than workers.
        """
        if len(self.files) < count:
            raise InputError(
                f"{Path(self.files[0]).parent}: found {len(self.files)} files with records; "
                f"expected at least {count}, one per worker. Create the records with "
                f"--num_shards={count} or more"
            )
        return self._replace(files=self.files[index::count], counts=self.counts[index::count])


def find_records(input_file: str, flag: str = "input_file") -> PretrainingData:
    """Finds record files (see `find_record_files`), and reads their format and shape.

    Raises:
        InputError: there are no files, all are empty, one is damaged, or they differ in format,
            shape or vocabulary.
    """
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
