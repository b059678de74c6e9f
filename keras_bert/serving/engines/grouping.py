"""Sorts rows by length, pads them in groups, and restores their order in the outputs.

B rows, S length of a row, T tokens of all rows, P masks in all rows; b rows of a group, s length of
its longest row.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from keras_bert.serving.engines.spec import NetworkSpec

# The maximum number of tokens, with padding, and of masks in the groups that run at the same time.
# They limit the memory for attention scores and for logits over the vocabulary. On many cores, a
# group may have _GROUP_TOKENS nevertheless, because small groups are slow.
_MAX_TOKENS, _GROUP_TOKENS = 4096, 1024
_MAX_MASKS = 256


class Rows(NamedTuple):
    """The token ids and segment ids of all rows, int32 [T] each, and the row splits, [B + 1]."""

    input_ids: np.ndarray
    segment_ids: np.ndarray
    splits: np.ndarray


class Group(NamedTuple):
    """Some rows with padding, and their places among all rows.

    Attributes:
        inputs: {input of the network: array}.
        rows: [b], the indices of the rows.
        real: bool [b, s], which positions are tokens.
        tokens: the indices of these tokens among the T tokens.
        masks: the indices of the group's masks among the P masks.
    """

    inputs: dict[str, np.ndarray]
    rows: np.ndarray
    real: np.ndarray
    tokens: np.ndarray
    masks: np.ndarray


def sort_into_groups(lengths: np.ndarray, group_rows: int, parallel: int) -> list[np.ndarray]:
    """Divides rows into groups of similar lengths; returns the row indices of each group.

    The number of groups is a multiple of `parallel`, the number of groups that run at the same
    time, if there are enough rows. Such groups share the limit of tokens, but each may have
    _GROUP_TOKENS. The group with the longest rows is first.
    """
    rows = len(lengths)
    count = -(-rows // max(group_rows, 1))
    count = min(-(-count // parallel) * parallel, rows)
    if not count:
        return []
    order = np.argsort(lengths, kind="stable")
    groups = []
    for group in reversed(np.array_split(order, count)):
        # The last row is the longest.
        limit = max(_MAX_TOKENS // parallel, _GROUP_TOKENS)
        parts = -(-len(group) * int(lengths[group[-1]]) // limit)
        groups += reversed(np.array_split(group, min(parts, len(group))))
    return groups


def _limited(rows: np.ndarray, masks: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Yields rows in parts with at most `limit` masks, or of one row; `masks` counts them."""
    if len(rows) == 1 or masks.sum() <= limit:
        yield rows
        return
    middle = len(rows) // 2
    yield from _limited(rows[:middle], masks[:middle], limit)
    yield from _limited(rows[middle:], masks[middle:], limit)


class Batch:
    """All rows of a call, and their outputs.

    Rows without a [MASK] token are skipped if all outputs of the network are per [MASK] token.
    """

    def __init__(self, rows: Rows, spec: NetworkSpec):
        self._rows = rows
        self._spec = spec
        self._starts = np.asarray(rows.splits[:-1], np.int64)
        self._lengths = np.asarray(rows.splits[1:], np.int64) - self._starts
        self._has_masks = "mask" in spec.per.values()
        if self._has_masks:
            self._is_mask = rows.input_ids == spec.mask_token_id
            self._mask_splits = np.concatenate([[0], np.cumsum(self._is_mask)])
        self._outputs: dict[str, np.ndarray] = {}

    @property
    def num_rows(self) -> int:
        """The number of rows, which is the maximum number of groups."""
        return len(self._lengths)

    def groups(self, group_rows: int, parallel: int) -> Iterator[Group]:
        """Yields the rows in padded groups, as `sort_into_groups` divides them."""
        if not self._has_masks:
            for rows in sort_into_groups(self._lengths, group_rows, parallel):
                yield self._group(rows)
            return
        splits = self._rows.splits
        masks = self._mask_splits[splits[1:]] - self._mask_splits[splits[:-1]]
        kept = np.flatnonzero(masks)
        for chosen in sort_into_groups(self._lengths[kept], group_rows, parallel):
            rows = kept[chosen]
            yield from map(self._group, _limited(rows, masks[rows], _MAX_MASKS // parallel))

    def _group(self, rows: np.ndarray) -> Group:
        lengths = self._lengths[rows]
        place = np.arange(lengths.max())
        real = place < lengths[:, np.newaxis]
        tokens = (self._starts[rows, np.newaxis] + place)[real]
        inputs = {"input_mask": real.astype(np.int32)}
        for name in ("input_ids", "segment_ids"):
            inputs[name] = np.zeros(real.shape, np.int32)
            inputs[name][real] = getattr(self._rows, name)[tokens]
        masks = tokens[:0]
        if self._has_masks:
            is_mask = self._is_mask[tokens]
            inputs["mask_places"] = np.flatnonzero(real)[is_mask].astype(np.int32)
            masks = self._mask_splits[tokens[is_mask]]
        return Group(inputs, rows, real, tokens, masks)

    def set_outputs(self, group: Group, outputs: Mapping[str, np.ndarray]) -> None:
        """Stores the outputs of a group at the places of its rows."""
        for name, values in outputs.items():
            kind = self._spec.per[name]
            if kind == "token":
                values = values[group.real]
            target = self._output(name, values.shape[1:], values.dtype)
            target[{"row": group.rows, "token": group.tokens, "mask": group.masks}[kind]] = values

    def outputs(self) -> list[np.ndarray] | None:
        """Returns the outputs in the order of `spec.per`; None if there were no groups."""
        return [self._outputs[name] for name in self._spec.per] if self._outputs else None

    def _output(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._outputs:
            kind = self._spec.per[name]
            count = len(self._lengths) if kind == "row" else len(self._rows.input_ids)
            count = int(self._mask_splits[-1]) if kind == "mask" else count
            self._outputs[name] = np.zeros((count, *shape), dtype)
        return self._outputs[name]
