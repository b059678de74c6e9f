"""Batch size ramp: number of micro-batches in each step and before it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.training.ramp import BatchRamp


def test_micro_batches_grow_linearly_from_one_to_all():
    assert BatchRamp(4, 6).counts().tolist() == [1, 1, 2, 2, 3, 3]
    assert [BatchRamp(4, 6).before(step) for step in (0, 1, 6, 8)] == [0, 1, 12, 20]


def test_without_a_ramp_every_step_has_all_micro_batches():
    assert BatchRamp(4).before(3) == 12
    assert BatchRamp().before(3) == 3


@given(st.integers(2, 40), st.integers(1, 200), st.integers(0, 300))
def test_counts_rise_by_at_most_one_and_add_up(micro_batches, steps, step):
    ramp = BatchRamp(micro_batches, steps)
    counts = np.append(ramp.counts(), micro_batches)
    assert counts[0] == 1
    assert (np.diff(counts) >= 0).all()
    if steps >= micro_batches:
        assert np.diff(counts).max() <= 1
    assert ramp.before(step + 1) - ramp.before(step) == counts[min(step, steps)]
