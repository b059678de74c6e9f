"""Tests that an engine's rows run in groups of similar length and bounded size."""

import itertools

import numpy as np
import pytest

from keras_bert.export.engine_network import sort_into_groups


@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
def test_every_row_is_in_one_group_of_similar_lengths(count, parallel):
    lengths = np.random.default_rng(count).integers(1, 60, count)
    groups = sort_into_groups(lengths, lengths * 0, parallel)
    assert sorted(np.concatenate([*groups, []])) == list(range(count))
    assert all(0 < len(group) <= 8 for group in groups)
    if count >= parallel:
        assert len(groups) % parallel == 0
    for longer, shorter in itertools.pairwise(groups):
        assert lengths[longer].min() >= lengths[shorter].max()
