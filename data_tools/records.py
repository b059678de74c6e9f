"""Arrays of examples in, TFRecord shards out.

In: a batch of features as arrays, a row an example. Out: tf.Example messages as bytes, shard files
and what vouches for each. The features keep Google's names and shapes:

    input_ids, input_mask, segment_ids       int64 [S]
    masked_lm_positions, masked_lm_ids       int64 [P]
    masked_lm_weights                        float32 [P]
    next_sentence_labels                     int64 [1]

Messages are encoded a batch at a time without protobuf objects: a batch is a grid of bytes, a row a
message, wide enough for the longest integer everywhere, and a mask of the bytes in use. Nesting
messages puts columns side by side, and taking the bytes under the mask packs the rows.
"""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_bert import files

FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
    "next_sentence_labels",
)
FORMAT, VERSION = "keras_bert.pretraining", 1
MANIFEST = "manifest.json"

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
    grid, used = _delimit(_FIELD_1, _concatenate(entries))
    ends = np.cumsum(np.count_nonzero(used, axis=1)).tolist()
    whole = grid[used].tobytes()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# A part of n messages: uint8 [n, k], and bool [n, k], which of these bytes are used.
_Part = tuple[np.ndarray, np.ndarray]


def _map_entry(name: str, values: np.ndarray) -> _Part:
    """Encodes one feature of every example: its name and its list of values."""
    if np.issubdtype(values.dtype, np.floating):
        list_field = _FIELD_2
        part = _fixed(np.ascontiguousarray(values, "<f4").view(np.uint8))
    else:
        list_field, part = _FIELD_3, _varints(values)
    feature = _delimit(_FIELD_2, _delimit(list_field, _delimit(_FIELD_1, part)))
    key = np.frombuffer(bytes([_FIELD_1, len(name)]) + name.encode("ascii"), np.uint8)
    key = np.broadcast_to(key, (len(values), len(key)))
    return _delimit(_FIELD_1, _concatenate([_fixed(key), feature]))


def _fixed(grid: np.ndarray) -> _Part:
    return grid, np.ones(grid.shape, bool)


def _varints(values: np.ndarray) -> _Part:
    """Encodes values as varints: 7 bits a byte, the eighth says that more follow."""
    values = values.astype(np.uint32)
    widest = max(-(-int(values.max(initial=0)).bit_length() // 7), 1)
    grid = np.empty((*values.shape, widest), np.uint8)
    used = np.ones(grid.shape, bool)
    for byte in range(widest):
        rest = values >> np.uint32(7 * byte)
        grid[..., byte] = rest
        if byte > 0:
            used[..., byte] = rest != 0
        if byte + 1 < widest:
            grid[..., byte] |= (rest > 0x7F).view(np.uint8) << 7
    shape = (len(values), values.shape[1] * widest)
    return grid.reshape(shape), used.reshape(shape)


def _delimit(field: int, part: _Part) -> _Part:
    """Puts a field's mark and its length in bytes before it."""
    used = part[1]
    mark = np.full((len(used), 1), field, np.uint8)
    return _concatenate([_fixed(mark), _varints(np.count_nonzero(used, axis=1)[:, None]), part])


def _concatenate(parts: list[_Part]) -> _Part:
    grids, used = zip(*parts, strict=True)
    return np.concatenate(grids, axis=1), np.concatenate(used, axis=1)


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
        The manifest's entry: file, examples, bytes, sha256.

    Raises:
        InputError: when the file cannot be written.
    """
    import tensorflow as tf  # here, so that a dataset that is finished doesn't start TensorFlow

    examples = 0
    with files.appearing(path, failures=(tf.errors.OpError,)) as partial:
        with tf.io.TFRecordWriter(os.fspath(partial)) as writer:
            for batch in batches:
                for message in batch:
                    writer.write(message)
                examples += len(batch)
        size, digest = os.path.getsize(partial), files.sha256(partial)
    return {
        "file": os.path.basename(path),
        "examples": examples,
        "bytes": size,
        "sha256": digest,
    }
