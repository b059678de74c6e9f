"""Writes arrays of examples as TFRecord shards.

Each row of the arrays becomes one tf.Example. The features have the names and shapes of Google's
BERT:

    input_ids, input_mask, segment_ids       int64 [S]
    masked_lm_positions, masked_lm_ids       int64 [P]      not with --dynamic
    masked_lm_weights                        float32 [P]    not with --dynamic
    next_sentence_labels                     int64 [1]

A packed row contains up to K = P consecutive examples, and has these additional features:

    position_ids                             int64 [S]      position within the example
    example_ids                              int64 [S]      1 to K, 0 for padding
    next_sentence_positions                  int64 [K]      column of each example's [CLS]
    next_sentence_labels                     int64 [K]      instead of [1]
    next_sentence_weights                    float32 [K]    1.0 for an example, 0.0 for none

For speed, messages are encoded one batch at a time, as matrices of bytes with one row per message,
without protobuf objects. A matrix is wide enough for the longest integer; a mask marks the bytes in
use. Matrices of fixed width need no mask, and adjacent ones are sliced together.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_bert import files

# Protobuf's tags for "field n, length-delimited". Field numbers, from tensorflow/core/example:
# Example.features 1, Features.feature 1, key 1 and value 2 of its map entries,
# Feature.float_list 2 and int64_list 3, values 1 (packed) of both lists.
_FIELD_1, _FIELD_2, _FIELD_3 = 0x0A, 0x12, 0x1A


def encode_examples(features: dict[str, np.ndarray]) -> list[bytes]:
    """Encodes a batch of n tf.Example messages.

    Args:
        features: arrays [n, width] by name. Float arrays become float lists, all others int64 lists
            with values in [0, 2**32).

    Returns:
        n serialized messages, with features sorted by name like protobuf's deterministic mode.
    """
    parts = [part for name in sorted(features) for part in _map_entry(name, features[name])]
    size = sum(part.lengths for part in parts)
    columns = [_row_slices(part) for part in _merge_fixed([_header(_FIELD_1, size), *parts])]
    return list(map(b"".join, zip(*columns, strict=True)))


class _Part(NamedTuple):
    """The same part of n messages.

    Attributes:
        grid: its bytes, uint8 [n, k].
        used: the mask of the bytes in use, bool [n, k]; None if all are in use.
        lengths: the number of bytes in use, int64 [n].
    """

    grid: np.ndarray
    used: np.ndarray | None
    lengths: np.ndarray


def _fixed(grid: np.ndarray) -> _Part:
    """Returns a part with all bytes in use."""
    return _Part(grid, None, np.full(len(grid), grid.shape[1]))


def _map_entry(name: str, values: np.ndarray) -> list[_Part]:
    """Returns two parts of n messages: the headers and name of a feature, and its values."""
    if np.issubdtype(values.dtype, np.floating):
        list_field = _FIELD_2
        part = _fixed(np.ascontiguousarray(values, "<f4").view(np.uint8))
    else:
        list_field, part = _FIELD_3, _varints(values)
    # Values of equal size in all messages have equal headers, which are encoded for one message.
    is_fixed = part.used is None
    size = part.lengths[:1] if is_fixed else part.lengths
    headers: list[_Part] = []  # From the outermost one to the innermost, which is created first.
    for field in (_FIELD_1, list_field, _FIELD_2):
        headers.insert(0, _header(field, size))
        size = size + headers[0].lengths
    key = np.frombuffer(bytes([_FIELD_1, len(name)]) + name.encode("ascii"), np.uint8)
    headers.insert(0, _fixed(np.broadcast_to(key, (len(size), len(key)))))
    before = _concatenate([_header(_FIELD_1, size + len(key)), *headers])
    if is_fixed:
        before = _fixed(np.broadcast_to(before.grid, (len(values), before.grid.shape[1])))
    return [before, part]


def _header(field: int, size: np.ndarray) -> _Part:
    """Encodes the header of one field of n messages: the field tag, and the size of the field.

    `size`, int64 [n], is in bytes.
    """
    header = np.full((len(size), 1), field, np.uint8)
    return _concatenate([_fixed(header), _varints(size[:, None])])


def _varints(values: np.ndarray) -> _Part:
    """Encodes integers as varints: 7 bits per byte; the eighth bit is set if more bytes follow."""
    largest, smallest = (int(values.max()), int(values.min())) if values.size else (0, 0)
    widest = max(-(-largest.bit_length() // 7), 1)
    if widest == 1:
        return _fixed(values.astype(np.uint8))
    # A varint is computed as one integer, whose bytes are those of the varint in order.
    dtype = np.dtype("<u4" if widest <= 4 else "<u8")
    values = np.ascontiguousarray(values, dtype)
    varints = values & dtype.type(0x7F)
    for byte in range(1, widest):
        varints |= (values & dtype.type(0x7F << 7 * byte)) << dtype.type(byte)
        varints |= (values >= 1 << 7 * byte).astype(dtype) << dtype.type(8 * byte - 1)
    grid = varints.view(np.uint8)
    if -(-smallest.bit_length() // 7) == widest:  # The usual case for sizes of parts.
        grid = grid.reshape(*values.shape, dtype.itemsize)[..., :widest]
        return _fixed(grid.reshape(len(values), -1))
    used = grid != 0  # Of the bytes of a varint, only the first may be 0.
    used[:, :: dtype.itemsize] = True
    # Faster than np.count_nonzero with an axis.
    lengths = np.sum(used.view(np.uint8), axis=1, dtype=np.uint32)
    return _Part(grid, used, lengths.astype(np.int64))


def _concatenate(parts: list[_Part]) -> _Part:
    grid = np.concatenate([part.grid for part in parts], axis=1)
    if all(part.used is None for part in parts):
        return _fixed(grid)
    masks = [np.ones(p.grid.shape, bool) if p.used is None else p.used for p in parts]
    return _Part(grid, np.concatenate(masks, axis=1), sum(part.lengths for part in parts))


def _merge_fixed(parts: list[_Part]) -> Iterator[_Part]:
    """Joins adjacent parts of fixed width, which reduces the number of slices per message."""
    for is_fixed, group in itertools.groupby(parts, lambda part: part.used is None):
        if is_fixed:
            yield _concatenate(list(group))
        else:
            yield from group


def _row_slices(part: _Part) -> list[bytes]:
    grid, used, lengths = part
    if used is None:  # As raw bytes (void), because `tolist` returns each as `bytes`, fast.
        return np.ascontiguousarray(grid).view(f"V{grid.shape[1]}").ravel().tolist()
    ends = np.cumsum(lengths).tolist()
    # Flattened, because NumPy takes four times as long to select from two dimensions.
    content = np.compress(used.ravel(), grid.ravel()).tobytes()
    return [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def shard_name(index: int, num_shards: int) -> str:
    """Returns the file name of a shard, such as `records-00000-of-00004.tfrecord`."""
    return f"records-{index:05d}-of-{num_shards:05d}.tfrecord"


def write_shard(path: str, batches: Iterable[list[bytes]]) -> dict[str, Any]:
    """Writes messages to a TFRecord file; returns file, rows, bytes and sha256 for the manifest.

    Raises an `InputError` if the file cannot be written.
    """
    import tensorflow as tf  # here, because a finished dataset needs no TensorFlow

    rows = 0
    with files.atomic_path(path, failures=(tf.errors.OpError,)) as partial:
        with tf.io.TFRecordWriter(os.fspath(partial)) as writer:
            for batch in batches:
                for message in batch:
                    writer.write(message)
                rows += len(batch)
        size, digest = os.path.getsize(partial), files.sha256(partial)
    return {
        "file": os.path.basename(path),
        "rows": rows,
        "bytes": size,
        "sha256": digest,
    }
