"""Tokenized examples in memory: rows of pieces in; one long array of pieces without padding out.

    packed batches {input_ids, input_mask, segment_ids: [B, S]; labels: [B, ...]} -> Examples

Pieces of all examples stand one after the other, so that nothing is spent on padding before the
batches are made (batches.py), and a million short examples take some tens of megabytes.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits


@dataclass(frozen=True, eq=False)  # Equal, and hashed, by identity.
class Examples:
    """Tokenized examples: T pieces in n examples.

    Attributes:
        input_ids: int32 [T], the pieces of all examples in turn, with [CLS] and [SEP].
        segment_ids: int32 [T].
        starts: int64 [n + 1], where each example starts, and T at the end.
        labels: a value or a row an example, [n] or [n, width].
        token_labels: a value a piece, [T]; -1 is ignored.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        pieces = [self.input_ids, self.segment_ids, *self.token_labels.values()]
        if any(len(values) != self.starts[-1] for values in pieces):
            raise ValueError("every value a piece needs as many as the last start says")
        if any(len(values) != len(self) for values in self.labels.values()):
            raise ValueError(f"every label needs {len(self)} values, one an example")

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The pieces of each example, int64 [n]."""
        return np.diff(self.starts)

    @functools.cached_property
    def sha256(self) -> str:
        """A checksum of all that is in the examples."""
        pieces = {"input_ids": self.input_ids, "segment_ids": self.segment_ids}
        values = pieces | {"starts": self.starts, **self.labels, **self.token_labels}
        digest = hashlib.sha256()
        for name, array in values.items():
            digest.update(f"{name} {array.dtype} {[*array.shape]}\n".encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def rows(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        """Cuts values that lie flat over all pieces back into examples.

        Args:
            flat: [T, ...], such as `input_ids`, or a model's output for every piece.

        Yields:
            [pieces, ...], an example at a time.
        """
        for first, last in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield flat[first:last]

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Says where the pieces of some examples lie.

        Args:
            indices: int [m], in any order.

        Returns:
            int64, places among the T pieces: those of the first example, then of the next.
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


def from_packed(
    batches: Iterable[Mapping[str, np.ndarray]],
    labels: Sequence[str] = (),
    token_labels: Sequence[str] = (),
) -> Examples:
    """Gathers batches as `packing.pack` makes them, and drops their padding.

    Args:
        batches: {"input_ids", "input_mask", "segment_ids": [B, S]} and the labels, as arrays or
            eager tensors; B and S may differ from batch to batch.
        labels: names of what is a value or a row an example, [B] or [B, width].
        token_labels: names of what is a value a piece, [B, S].

    Returns:
        The examples in order.
    """
    by_piece = ("input_ids", "segment_ids", *token_labels)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("lengths", *by_piece, *labels)}
    for batch in batches:
        real = np.asarray(batch["input_mask"]) == 1
        parts["lengths"].append(real.sum(axis=1))
        for name in by_piece:
            parts[name].append(np.asarray(batch[name])[real])
        for name in labels:
            parts[name].append(np.asarray(batch[name]))
    whole = {
        name: np.concatenate(values) if values else np.zeros([0], np.int32)
        for name, values in parts.items()
    }
    return Examples(
        whole["input_ids"].astype(np.int32),
        whole["segment_ids"].astype(np.int32),
        row_splits(whole["lengths"]),
        {name: whole[name] for name in labels},
        {name: whole[name] for name in token_labels},
    )
