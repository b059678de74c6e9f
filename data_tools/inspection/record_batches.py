"""Reads record files as batches of arrays, the inverse of `tfrecord_writing`.

Shapes: S tokens per row, P predictions, n rows, E examples, T tokens without padding in a batch.
Unpacked records are treated as packed ones with one example per row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from keras_bert.common.errors import InputError

_ROWS_PER_BATCH = 1024
_PACKED = (
    "position_ids",
    "example_ids",
    "next_sentence_positions",
    "next_sentence_weights",
)
_REQUIRED = ("input_ids", "input_mask", "segment_ids", "next_sentence_labels")
_MASKS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

# {feature name: (number of values per record, whether the values are floats)}
Shape = dict[str, tuple[int, bool]]


@dataclass(frozen=True)
class Batch:
    """Validated consecutive rows of a record file, and arrays that are derived from them.

    Attributes:
        file: path of the file.
        first_row: index of the first row in the file.
        features: {name: int32 or float32 [n, width]}.
    """

    file: str
    first_row: int
    features: dict[str, np.ndarray]

    @property
    def is_packed(self) -> bool:
        """Whether a row can contain several examples."""
        return "example_ids" in self.features

    @property
    def has_masks(self) -> bool:
        """Whether the records contain masks; otherwise training draws them."""
        return "masked_lm_positions" in self.features

    @cached_property
    def is_real(self) -> np.ndarray:
        """Whether each position contains a token and not padding, bool [n, S]."""
        return self.features["input_mask"] != 0

    @cached_property
    def examples_per_row(self) -> np.ndarray:
        """The number of examples in each row, int64 [n]."""
        if self.is_packed:
            return self.features["example_ids"].max(axis=1).astype(np.int64)
        return np.ones(len(self.is_real), np.int64)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example, int64 [E]."""
        if not self.is_packed:
            return np.count_nonzero(self.is_real, axis=1)
        return np.bincount(self.owner, minlength=int(self.examples_per_row.sum()))

    @cached_property
    def owner(self) -> np.ndarray:
        """The index of the example that each token belongs to, int64 [T], ascending."""
        if not self.is_packed:
            return np.repeat(np.arange(len(self.lengths)), self.lengths)
        before = np.cumsum(self.examples_per_row) - self.examples_per_row
        return (before[:, None] + self.features["example_ids"] - 1)[self.is_real]

    @cached_property
    def predicted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The row, column and original token id of all predictions, int arrays of equal length."""
        row, slot = np.nonzero(self.features["masked_lm_weights"])
        positions, ids = self.features["masked_lm_positions"], self.features["masked_lm_ids"]
        return row, positions[row, slot], ids[row, slot]

    @cached_property
    def original_ids(self) -> np.ndarray:
        """The token ids before masking, int32 [n, S]."""
        if not self.has_masks:
            return self.features["input_ids"]
        original = self.features["input_ids"].copy()
        row, column, ids = self.predicted
        original[row, column] = ids
        return original

    @cached_property
    def is_predicted(self) -> np.ndarray:
        """Whether each token is predicted, bool [n, S]."""
        chosen = np.zeros(self.is_real.shape, bool)
        if self.has_masks:
            chosen[self.predicted[:2]] = True
        return chosen

    @cached_property
    def next_sentence_labels(self) -> np.ndarray:
        """The next-sentence label of each example, int32 [E]."""
        labels = self.features["next_sentence_labels"]
        if self.is_packed:
            return labels[self.features["next_sentence_weights"] != 0]
        return labels[:, 0]


def read_shape(path: str) -> Shape | None:
    """Returns the shape of each pre-training feature in a file, from the first record.

    Returns None for an empty file.

    Raises:
        InputError: if the file cannot be read or has no pre-training records.
    """
    import tensorflow as tf

    try:
        first = next(iter(tf.data.TFRecordDataset(path).take(1)), None)
        if first is None:
            return None
        features = tf.train.Example.FromString(first.numpy()).features.feature
    except tf.errors.OpError as error:
        raise InputError(f"{path}: record 0 cannot be read: {_first_line(error)}") from None
    except Exception as error:  # protobuf's DecodeError has no public base class
        raise InputError(f"{path}: record 0 is not a tf.Example: {_first_line(error)}") from None
    shape = {}
    for name in (*_REQUIRED, *_MASKS, *_PACKED):
        if name in features:
            is_float = features[name].WhichOneof("kind") == "float_list"
            values = features[name].float_list if is_float else features[name].int64_list
            shape[name] = len(values.value), is_float
    groups = [_REQUIRED, *(group for group in (_MASKS, _PACKED) if shape.keys() & set(group))]
    missing = [name for group in groups for name in group if name not in shape]
    if missing:
        raise InputError(
            f"{path}: record 0 has no {', '.join(missing)}; expected a BERT pre-training record"
        )
    return shape


def read_batches(path: str, shape: Shape, max_records: int | None = None) -> Iterator[Batch]:
    """Reads the records of a file in batches; validates checksums and values.

    `shape` is the result of `read_shape`. At most `max_records` records are read; None reads all.

    Raises:
        InputError: if a record is damaged, or has another shape or impossible values.
    """
    import tensorflow as tf

    spec = {
        name: tf.io.FixedLenFeature([width], tf.float32 if is_float else tf.int64)
        for name, (width, is_float) in shape.items()
    }
    data = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
    if max_records is not None:
        data = data.take(max_records)
    row = 0
    try:
        for serialized in data.batch(_ROWS_PER_BATCH):
            parsed = {k: v.numpy() for k, v in tf.io.parse_example(serialized, spec).items()}
            features = {
                name: values if shape[name][1] else values.astype(np.int32)
                for name, values in parsed.items()
            }
            batch = Batch(path, row, features)
            _check(batch, parsed)
            yield batch
            row += len(batch.is_real)
    except tf.errors.DataLossError as error:
        raise InputError(f"{path}: damaged after record {row}: {_first_line(error)}") from None
    except tf.errors.OpError as error:
        expected = ", ".join(f"{name} [{width}]" for name, (width, _) in shape.items())
        raise InputError(
            f"{path}: after record {row}: {_first_line(error)}; expected {expected}"
        ) from None


def _check(batch: Batch, parsed: dict[str, np.ndarray]) -> None:
    """Raises an `InputError` for values outside of their range."""
    size = batch.is_real.shape[1]
    bounds = {
        "input_ids": 2**31,
        "input_mask": 2,
        "segment_ids": 2,
        "masked_lm_positions": size,
        "masked_lm_ids": 2**31,
        "position_ids": size,
        "example_ids": size + 1,
        "next_sentence_positions": size,
        "next_sentence_labels": 2,
    }
    for name, values in parsed.items():
        if name in bounds and values.size:
            outside = (values < 0) | (values >= bounds[name])
            if outside.any():
                row, column = np.argwhere(outside)[0]
                raise InputError(
                    f"{batch.file} record {batch.first_row + row}: {name}[{column}] is "
                    f"{values[row, column]}; expected 0 to {bounds[name] - 1}"
                )
    if batch.is_packed:
        ids = batch.features["example_ids"]
        steps = np.diff(ids, axis=1, prepend=0)
        wrong = ((ids > 0) != batch.is_real) | (((steps < 0) | (steps > 1)) & batch.is_real)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise InputError(
                f"{batch.file} record {batch.first_row + row}: example_ids[{column}] is "
                f"{ids[row, column]}; expected 1, 2, ... in order and 0 at padding"
            )
        labels = (batch.features["next_sentence_weights"] != 0).sum(axis=1)
        if (labels != batch.examples_per_row).any():
            row = int(np.flatnonzero(labels != batch.examples_per_row)[0])
            raise InputError(
                f"{batch.file} record {batch.first_row + row}: {labels[row]} next-sentence labels; "
                f"expected one for each of its {batch.examples_per_row[row]} examples"
            )


def _first_line(error: Exception) -> str:
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return message.splitlines()[0].split("[Op:")[0].rsplit("}} ", 1)[-1].strip()
