"""Stores tokenized examples in memory, concatenated into flat arrays without padding.

Padding is added when batches are built (batches.py), so a million short examples take only tens of
megabytes.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits


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

    Raises:
        ValueError: an array has the wrong length, or the last group is incomplete.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    group_size: int = 1

    def __post_init__(self):
        if len(self) % self.group_size:
            raise ValueError(f"{len(self)} examples do not form groups of {self.group_size}")
        by_token = {"input_ids": self.input_ids, "segment_ids": self.segment_ids}
        for name, values in (by_token | dict(self.token_labels)).items():
            if len(values) != self.starts[-1]:
                raise ValueError(
                    f"{name}: has {len(values)} values; expected {self.starts[-1]}, one per token"
                )
        for name, values in self.labels.items():
            if len(values) != len(self):
                raise ValueError(
                    f"{name}: has {len(values)} values; expected {len(self)}, one per example"
                )

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

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Returns the indices, among all T tokens, of the tokens of the given examples."""
        return ranges(self.starts[indices], self.lengths[indices])

    def take(self, indices: np.ndarray) -> "Examples":
        """Returns the examples with the given indices [m], in that order."""
        indices = np.asarray(indices, np.int64)
        places = self.places(indices)
        return Examples(
            self.input_ids[places],
            self.segment_ids[places],
            row_splits(self.lengths[indices]),
            {name: values[indices] for name, values in self.labels.items()},
            {name: values[places] for name, values in self.token_labels.items()},
        )
