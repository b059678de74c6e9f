"""Writes arrays of examples as TFRecord shards.

In: a batch of features as arrays, a row a record. Out: tf.Example messages as bytes, shard files
and what vouches for each. The features keep Google's names and shapes:

    input_ids, input_mask, segment_ids       int64 [S]
    masked_lm_positions, masked_lm_ids       int64 [P]      not with --dynamic
    masked_lm_weights                        float32 [P]    not with --dynamic
    next_sentence_labels                     int64 [1]

A packed row holds up to K = P examples, one after the other, and says which is where:

    position_ids, example_ids                int64 [S]      place in its example; 1 to K, 0 padding
    next_sentence_positions                  int64 [K]      column of each example's [CLS]
    next_sentence_labels                     int64 [K]      in place of [1]
    next_sentence_weights                    float32 [K]    1.0 for an example, 0.0 for none

Messages are encoded a batch at a time without protobuf objects: each feature is a grid of bytes, a
row a message, wide enough for the longest integer, and a mask of the bytes in use. What stands
before the values is encoded likewise. Only grids whose rows differ in length are packed under their
mask; neighbours of constant width are sliced as they are.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_bert.common import files

# Protobuf's mark for "field n, length-delimited". Fields of the messages, from tensorflow/core/
# example: Example.features 1, Features.feature 1, its map entries' key 1 and value 2,
# Feature.float_list 2 and int64_list 3, both lists' values 1 (packed).
_FIELD_1, _FIELD_2, _FIELD_3 = 0x0A, 0x12, 0x1A


def encode_examples(features: dict[str, np.ndarray]) -> list[bytes]:
    """Encodes a batch of tf.Example messages.

    Args:
        features: by name, arrays [n, width]: float arrays become float lists, the others, which
            must lie in [0, 2**32), int64 lists.

    Returns:
        n serialised messages, their features sorted by name as protobuf's deterministic mode does.
    """
    entries = [_map_entry(name, features[name]) for name in sorted(features)]
    size = np.sum([_lengths(part) for part in entries], axis=0)
    columns = [_row_slices(part) for part in _merge_fixed([_mark(_FIELD_1, size), *entries])]
    return list(map(b"".join, zip(*columns, strict=True)))


# A part of n messages: uint8 [n, k], and bool [n, k], which of these bytes are used; None: all.
_Part = tuple[np.ndarray, np.ndarray | None]


def _map_entry(name: str, values: np.ndarray) -> _Part:
    """Encodes one feature of every example: its name and its list of values."""
    if np.issubdtype(values.dtype, np.floating):
        list_field = _FIELD_2
        part = np.ascontiguousarray(values, "<f4").view(np.uint8), None
    else:
        list_field, part = _FIELD_3, _varints(values)
    # The marks before the values, from the innermost, which is the last, outwards.
    size, marks = _lengths(part), []
    for field in (_FIELD_1, list_field, _FIELD_2):
        marks.insert(0, _mark(field, size))
        size = size + _lengths(marks[0])
    key = np.frombuffer(bytes([_FIELD_1, len(name)]) + name.encode("ascii"), np.uint8)
    key = np.broadcast_to(key, (len(values), len(key))), None
    entry = _mark(_FIELD_1, size + len(key[0][0]) if len(values) else size)
    return _concatenate([entry, key, *marks, part])


def _mark(field: int, size: np.ndarray) -> _Part:
    """Encodes what stands before each message's part: the field and the part's bytes [n]."""
    mark = np.full((len(size), 1), field, np.uint8)
    return _concatenate([(mark, None), _varints(size[:, None])])


def _varints(values: np.ndarray) -> _Part:
    """Encodes values as varints: 7 bits a byte, the eighth says that more follow."""
    largest, smallest = (int(values.max()), int(values.min())) if values.size else (0, 0)
    widest = max(-(-largest.bit_length() // 7), 1)
    if widest == 1:
        return values.astype(np.uint8), None
    values = values.astype(np.uint32)
    grid = np.empty((*values.shape, widest), np.uint8)
    for byte in range(widest):
        grid[..., byte] = values >> np.uint32(7 * byte)
    shape = (len(values), values.shape[1] * widest)
    if -(-smallest.bit_length() // 7) == widest:  # as sizes of parts mostly are
        grid[..., :-1] |= 0x80
        return grid.reshape(shape), None
    used = np.empty(grid.shape, bool)
    used[..., 0] = True
    for byte in range(1, widest):
        np.greater_equal(values, 1 << 7 * byte, out=used[..., byte])
        grid[..., byte - 1] |= used[..., byte].view(np.uint8) << 7
    return grid.reshape(shape), used.reshape(shape)


def _lengths(part: _Part) -> np.ndarray:
    """Returns int64 [n], the bytes of each message's part."""
    grid, used = part
    if used is None:
        return np.full(len(grid), grid.shape[1])
    return np.count_nonzero(used, axis=1)


def _concatenate(parts: list[_Part]) -> _Part:
    """Puts parts side by side; all bytes of the result are used if all of theirs are."""
    grid = np.concatenate([grid for grid, _ in parts], axis=1)
    if all(used is None for _, used in parts):
        return grid, None
    masks = [np.ones(grid.shape, bool) if used is None else used for grid, used in parts]
    return grid, np.concatenate(masks, axis=1)


def _merge_fixed(parts: list[_Part]) -> Iterator[_Part]:
    """Joins neighbours whose bytes are all used: fewer slices a message."""
    for is_fixed, group in itertools.groupby(parts, lambda part: part[1] is None):
        if is_fixed:
            yield _concatenate(list(group))
        else:
            yield from group


def _row_slices(part: _Part) -> list[bytes]:
    """Returns each message's bytes of a part."""
    grid, used = part
    ends = np.cumsum(_lengths(part)).tolist()
    # Flat: NumPy takes four times as long to pick bytes out of two dimensions.
    whole = (grid if used is None else np.compress(used.ravel(), grid.ravel())).tobytes()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def shard_name(index: int, num_shards: int) -> str:
    """Names a shard.

    Args:
        index: its number, from 0.
        num_shards: how many there are.

    Returns:
        A file name such as `records-00000-of-00004.tfrecord`.
    """
    return f"records-{index:05d}-of-{num_shards:05d}.tfrecord"


def write_shard(path: str, batches: Iterable[list[bytes]]) -> dict[str, Any]:
    """Writes a TFRecord file.

    Args:
        path: where it is to appear.
        batches: lists of messages.

    Returns:
        For the manifest's entry: file, rows, bytes, sha256.

    Raises:
        InputError: when the file cannot be written.
    """
    import tensorflow as tf  # here, so that a dataset that is finished doesn't start TensorFlow

    rows = 0
    with files.appearing(path, failures=(tf.errors.OpError,)) as partial:
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
