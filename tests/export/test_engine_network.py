"""Rows run in groups and get their order back; differences and unknown engines are noticed."""

import itertools
import json
import threading

import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError
from keras_bert.export import engine_network
from keras_bert.export.engine_network import (
    EngineNetwork,
    Rows,
    different,
    open_network,
    sort_into_groups,
)
from keras_bert.export.engines import NetworkSpec, check_engine

SPEC = NetworkSpec({"length": "row"})
MASK = 4


def make_rows(lengths) -> Rows:
    rng = np.random.default_rng(0)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(MASK, MASK + 4, splits[-1]).astype(np.int32)
    return Rows(ids, rng.integers(0, 2, splits[-1]).astype(np.int32), splits)


def groups_of(lengths, parallel: int, masks: int = 0) -> list[int]:
    """Returns the number of rows of each group; each row has `masks` masks."""
    lengths = np.array(lengths)
    return [len(group) for group in sort_into_groups(lengths, lengths * 0 + masks, parallel)]


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
    network = EngineNetwork(SPEC, *networks, 4)
    np.testing.assert_array_equal(network(make_rows(lengths))["length"], lengths)
    assert [len(each.shapes) for each in networks] == [single, several]
    network(make_rows(lengths), one_at_a_time=True)
    assert len(networks[1].shapes) == several


@pytest.mark.parametrize(("cores", "compiled"), [(1, [1]), (2, [1, 2]), (64, [1, 8])])
def test_as_many_groups_as_cores_run_at_the_same_time(cores, compiled, monkeypatch):
    made = []

    def compile_network(path, threads, parallel):
        assert threads == cores
        made.append(Lengths(parallel))
        return made[-1]

    monkeypatch.setattr(engine_network, "run_in_onnxruntime", compile_network)
    monkeypatch.setattr(engine_network, "available_cores", lambda: cores)
    opened = open_network("onnxruntime", None, "float32", SPEC)
    assert [each.parallel for each in made] == compiled
    assert opened.parallel == compiled[-1]


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


@pytest.mark.parametrize(
    ("lengths", "parallel", "masks", "sizes"),
    [
        ([1024] * 8, 1, 0, [4, 4]),
        ([100_000], 1, 0, [1]),
        ([1024] * 8, 2, 0, [2] * 4),
        ([512] * 16, 16, 0, [1] * 16),
        ([128] * 64, 16, 0, [4] * 16),  # On many cores, groups are not smaller than needed.
        ([60] * 16, 1, 64, [4] * 4),
        ([60] * 16, 2, 64, [2] * 8),
        ([300] * 2, 1, 300, [1, 1]),
    ],
)
def test_groups_of_long_rows_or_many_masks_are_smaller(lengths, parallel, masks, sizes):
    assert groups_of(lengths, parallel, masks) == sizes


@pytest.mark.parametrize(
    ("values", "expected", "precision", "message"),
    [
        ([b"a", b"a"], [b"a", b"a"], "float32", None),
        ([b"a", b"a"], [b"a", b"b"], "float32", "50% of x are equal; expected at least 100% in"),
        ([b"a"], [b"a", b"b"], "float32", "x has the shape (1,); expected (2,)"),
        ([b"a"], [b"a", b"b"], "int8", None),
        ([np.nan, 1.0], [1.0, 1.0], "int8", "x differs by nan; expected at most 0.3 in int8"),
        ([], [], "float32", None),
    ],
)
def test_different_values_and_shapes_are_noticed(values, expected, precision, message):
    values, expected = ({"x": np.array(value)} for value in (values, expected))
    problem = different(values, expected, precision)
    assert problem == message if message is None else problem.startswith(message)


@pytest.mark.parametrize(
    ("engine", "precision", "message"),
    [
        ("torch", "", r"engine='torch': expected one of tensorflow, onnxruntime, openvino"),
        ("", "float16", r"precision='float16': expected one of float32, bfloat16, int8"),
        ("onnxruntime", "bfloat16", r"found precision bfloat16; .*needs the engine openvino"),
        ("openvino", "int8", r"found precision int8; .*needs the engine onnxruntime"),
        ("tensorflow", "int8", r"found precision int8; expected one of float32, bfloat16; .*onnxr"),
    ],
)
def test_unknown_values_are_rejected(engine, precision, message):
    with pytest.raises(InputError, match=message):
        check_engine(engine, precision)


def test_model_directory_has_no_engines(pretrained):
    with pytest.raises(InputError, match=r"engine='openvino', .* found a model directory"):
        keras_bert.load(pretrained, engine="openvino")


def test_json_keeps_the_order_of_the_outputs():
    spec = NetworkSpec({"scores": "mask", "b": "row", "a": "token"}, 5, 103, True)
    content = json.loads(json.dumps(spec.to_json(), sort_keys=True))
    assert NetworkSpec.from_json(content) == spec
    assert list(NetworkSpec.from_json(content).per) == ["scores", "b", "a"]
