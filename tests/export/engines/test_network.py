"""Rows run in groups of similar lengths, and their outputs get their order back."""

import itertools
import threading

import numpy as np
import pytest

from keras_bert.export import engine_network as network
from keras_bert.export.engine_network import (
    Batch,
    EngineNetwork,
    Rows,
    open_network,
    sort_into_groups,
)
from keras_bert.export.engines import NetworkSpec

SPEC = NetworkSpec({"length": "row"})
MASK = 4


def make_rows(lengths, seed=0) -> Rows:
    rng = np.random.default_rng(seed)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(MASK, MASK + 4, splits[-1]).astype(np.int32)
    return Rows(ids, rng.integers(0, 2, splits[-1]).astype(np.int32), splits)


class Lengths:
    """Computes the length of each row, and records the shapes of its inputs."""

    def __init__(self, parallel: int = 1):
        self.parallel = parallel
        self.shapes: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def __call__(self, inputs):
        with self._lock:
            self.shapes.append(inputs["input_mask"].shape)
        return {"length": inputs["input_mask"].sum(1)}


@pytest.mark.parametrize(
    ("rows", "single", "several"),
    [(1, 1, 0), (3, 1, 0), (4, 0, 4), (9, 0, 4), (32, 0, 4), (33, 0, 8)],
)
def test_several_groups_run_at_the_same_time_if_each_call_has_one(rows, single, several):
    networks = Lengths(), Lengths()
    lengths = np.random.default_rng(rows).integers(1, 9, rows)
    [found] = EngineNetwork(SPEC, *networks, 4)(make_rows(lengths))
    np.testing.assert_array_equal(found, lengths)
    assert [len(each.shapes) for each in networks] == [single, several]


@pytest.mark.parametrize(("cores", "compiled"), [(1, [1]), (2, [1, 2]), (64, [1, 8])])
def test_as_many_groups_as_cores_run_at_the_same_time(cores, compiled, monkeypatch):
    made = []

    def compile_network(path, threads, parallel):
        assert threads == cores
        made.append(Lengths(parallel))
        return made[-1]

    monkeypatch.setattr(network, "run_in_onnxruntime", compile_network)
    monkeypatch.setattr(network, "available_cores", lambda: cores)
    opened = open_network("onnxruntime", None, "float32", SPEC)
    assert [each.parallel for each in made] == compiled
    assert opened.parallel == compiled[-1]


@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
def test_every_row_is_in_one_group_of_similar_lengths(count, parallel):
    lengths = np.random.default_rng(count).integers(1, 60, count)
    groups = sort_into_groups(lengths, 8, parallel)
    assert sorted(np.concatenate([*groups, []])) == list(range(count))
    assert all(0 < len(group) <= 8 for group in groups)
    if count >= parallel:
        assert len(groups) % parallel == 0
    longest = [lengths[group].max() for group in groups]
    assert longest == sorted(longest, reverse=True)
    assert all(
        lengths[one].min() >= lengths[other].max() for one, other in itertools.pairwise(groups)
    )


def test_groups_of_long_rows_are_smaller():
    assert [len(group) for group in sort_into_groups(np.full(32, 512), 32, 1)] == [8] * 4
    assert len(sort_into_groups(np.full(1, 100_000), 8, 1)) == 1


def test_groups_that_run_at_the_same_time_share_the_limits(monkeypatch):
    assert [len(group) for group in sort_into_groups(np.full(32, 512), 32, 2)] == [4] * 8
    assert [len(group) for group in sort_into_groups(np.full(16, 512), 8, 16)] == [1] * 16
    # On many cores, groups are not smaller than needed.
    assert [len(group) for group in sort_into_groups(np.full(64, 128), 8, 16)] == [4] * 16
    monkeypatch.setattr(network, "_MAX_MASKS", 8)
    rows = make_rows([6] * 6)
    rows.input_ids[:] = MASK
    rows.input_ids.reshape(6, 6)[:, 2:] = 7  # Two masks in each row.
    batch = Batch(rows, NetworkSpec({"best": "mask"}, top_k=2, mask_token_id=MASK))
    assert [len(group.masks) for group in batch.groups(3, 1)] == [6, 6]
    assert max(len(group.masks) for group in batch.groups(3, 2)) == 4


def run(batch: Batch, rows: Rows, group_rows: int, parallel: int) -> None:
    """Sets outputs from the group's padded inputs alone."""
    for group in batch.groups(group_rows, parallel):
        ids, mask = group.inputs["input_ids"], group.inputs["input_mask"]
        assert ids.shape == group.inputs["segment_ids"].shape == mask.shape
        assert not ids[mask == 0].any()
        outputs = {"sum": (ids * mask).sum(1), "ids": ids * 10}
        if "mask_places" in group.inputs:
            outputs = {"best": np.stack([ids.ravel()[group.inputs["mask_places"]]] * 2, 1)}
        batch.set_outputs(group, outputs)


@pytest.mark.parametrize("lengths", [[], [5], [3, 9, 1, 4, 4, 30, 2]])
@pytest.mark.parametrize("group_rows", [1, 2, 8])
def test_outputs_per_row_and_per_token_are_in_the_order_of_the_rows(lengths, group_rows):
    rows = make_rows(lengths)
    batch = Batch(rows, NetworkSpec({"sum": "row", "ids": "token"}))
    run(batch, rows, group_rows, 2)
    if not lengths:
        assert batch.outputs() is None
        return
    sums, ids = batch.outputs()
    expected = [rows.input_ids[a:b].sum() for a, b in itertools.pairwise(rows.splits)]
    np.testing.assert_array_equal(sums, np.array(expected, int))
    np.testing.assert_array_equal(ids, rows.input_ids * 10)


def test_rows_without_masks_are_skipped_and_groups_have_a_limited_number_of_masks(monkeypatch):
    monkeypatch.setattr(network, "_MAX_MASKS", 5)
    rows = make_rows([6, 3, 9, 2, 7, 12, 5])
    rows.input_ids[rows.splits[1] : rows.splits[2]] = 7
    spec = NetworkSpec({"best": "mask"}, top_k=2, mask_token_id=MASK)
    batch = Batch(rows, spec)
    for group in batch.groups(8, 1):
        assert 1 not in group.rows
        assert len(group.masks) <= 5 or len(group.rows) == 1
    run(batch, rows, 8, 1)
    [best] = batch.outputs()
    np.testing.assert_array_equal(best, np.full([(rows.input_ids == MASK).sum(), 2], MASK))
