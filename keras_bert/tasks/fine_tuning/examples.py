"""Tokenized examples in memory, as one flat array of tokens without padding.

The tokens of all examples stand one after the other. Padding is added when batches are made
(batches.py), so a million short examples take some tens of megabytes.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits


@dataclass(frozen=True, eq=False)  # Equal, and hashed, by identity.
class Examples:
    """Tokenized examples: T tokens in n examples.

    Attributes:
        input_ids: int32 [T], the tokens of all examples in order, with [CLS] and [SEP].
        segment_ids: int32 [T].
        starts: int64 [n + 1], where each example starts, and T at the end.
        labels: a value or a row for each example, [n] or [n, width].
        token_labels: a value for each token, [T]; -1 is ignored.

    Raises:
        ValueError: arrays whose lengths do not match.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        by_token = {"input_ids": self.input_ids, "segment_ids": self.segment_ids}
        for name, values in (by_token | dict(self.token_labels)).items():
            if len(values) != self.starts[-1]:
                raise ValueError(
                    f"{name}: has {len(values)} values; expected {self.starts[-1]}, one a token"
                )
        for name, values in self.labels.items():
            if len(values) != len(self):
                raise ValueError(
                    f"{name}: has {len(values)} values; expected {len(self)}, one an example"
                )

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example, int64 [n]."""
        return np.diff(self.starts)

    @functools.cached_property
    def sha256(self) -> str:
        """A checksum of all arrays."""
        tokens = {"input_ids": self.input_ids, "segment_ids": self.segment_ids}
        values = tokens | {"starts": self.starts, **self.labels, **self.token_labels}
        digest = hashlib.sha256()
        for name, array in values.items():
            digest.update(f"{name} {array.dtype} {[*array.shape]}\n".encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def rows(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        """Splits flat values of tokens into examples.

        Args:
            flat: [T, ...], such as `input_ids`, or a model's output for every token.

        Yields:
            [tokens, ...], an example at a time.
        """
        for first, last in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield flat[first:last]

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Returns the positions of the tokens of some examples.

        Args:
            indices: int [m], in any order.

        Returns:
            int64, positions among the T tokens: those of the first example, then of the next.
        """
        return ranges(self.starts[indices], self.lengths[indices])

    def take(self, indices: np.ndarray) -> "Examples":
        """Chooses examples.

        Args:
            indices: int [m], in any order.

        Returns:
            m examples in that order.
        """
        indices = np.asarray(indices, np.int64)
        places = self.places(indices)
        return Examples(
            self.input_ids[places],
            self.segment_ids[places],
            row_splits(self.lengths[indices]),
            {name: values[indices] for name, values in self.labels.items()},
            {name: values[places] for name, values in self.token_labels.items()},
        )
