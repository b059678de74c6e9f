"""Tests that an engine's rows run in groups of similar length and bounded size."""

import itertools

import numpy as np
import pytest

from keras_bert.export.engine_network import sort_into_groups


@pytest.mark.parametrize(
    ("lengths", "parallel", "masks", "sizes"),
    [
        ([1024] * 8, 1, 0, [4, 4]),
        ([100_000], 1, 0, [1]),
        ([512] * 16, 16, 0, [1] * 16),
        ([128] * 64, 16, 0, [4] * 16),  # On many cores, groups are not smaller than needed.
        ([60] * 16, 2, 64, [2] * 8),
        ([300] * 2, 1, 300, [1, 1]),
        ([], 2, 0, []),
        ([9], 2, 0, [1]),
        ([1, 60, 7, 30, 2, 59, 8, 31, 9, 10], 2, 0, [5, 5]),
    ],
)
def test_groups_of_long_rows_or_many_masks_are_smaller(lengths, parallel, masks, sizes):
    lengths = np.array(lengths)
    groups = sort_into_groups(lengths, lengths * 0 + masks, parallel)
    assert sorted(np.concatenate([*groups, []])) == list(range(len(lengths)))
    assert [len(group) for group in groups] == sizes
    for longer, shorter in itertools.pairwise(groups):
        assert lengths[longer].min() >= lengths[shorter].max()
