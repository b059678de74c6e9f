"""Tests of padding segments to [CLS] a [SEP] (b [SEP]): truncation, masks and segment ids."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.padding import combine_segments, pad_segments

CLS, SEP, PAD = 101, 102, 0


def packed(a, b=None, length=8):
    a = tf.ragged.constant(a, tf.int32, ragged_rank=1)
    b = None if b is None else tf.ragged.constant(b, tf.int32, ragged_rank=1)
    return pad_segments(
        a, b, max_seq_length=length, cls_token_id=CLS, sep_token_id=SEP, pad_token_id=PAD
    )


def test_one_segment():
    out = packed([[7, 8], []])
    assert out["input_ids"].numpy().tolist() == [
        [CLS, 7, 8, SEP, 0, 0, 0, 0],
        [CLS, SEP, 0, 0, 0, 0, 0, 0],
    ]
    assert out["input_mask"].numpy().tolist() == [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1] + [0] * 6]
    assert not out["segment_ids"].numpy().any()


def test_two_segments():
    out = packed([[7, 8]], [[9]])
    assert out["input_ids"].numpy().tolist() == [[CLS, 7, 8, SEP, 9, SEP, 0, 0]]
    assert out["input_mask"].numpy().tolist() == [[1, 1, 1, 1, 1, 1, 0, 0]]
    assert out["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]]


def test_all_outputs_are_int32_of_the_full_length():
    for out in (packed([[7]]), packed([[7]], [[8]]), packed([[]], [[]])):
        assert {(v.dtype, tuple(v.shape)) for v in out.values()} == {(tf.int32, (1, 8))}


def test_single_segment_is_truncated_at_its_end():
    out = packed([list(range(1, 20))])
    assert out["input_ids"].numpy().tolist() == [[CLS, 1, 2, 3, 4, 5, 6, SEP]]


def test_second_of_two_equal_segments_is_truncated_first():
    out = packed([[1, 2, 3]], [[4, 5, 6]])
    assert out["input_ids"].numpy().tolist() == [[CLS, 1, 2, 3, SEP, 4, 5, SEP]]


def test_pairs_are_truncated_one_token_at_a_time_from_the_longer_segment():
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 14, size=(300, 2))
    for length in (5, 8, 9, 16):
        a = [list(range(100, 100 + n)) for n, _ in lengths]
        b = [list(range(200, 200 + n)) for _, n in lengths]
        ids = packed(a, b, length)["input_ids"].numpy()
        for row, left, right in zip(ids, a, b, strict=True):
            left, right = list(left), list(right)
            while len(left) + len(right) > length - 3:
                (left if len(left) > len(right) else right).pop()
            expected = [CLS, *left, SEP, *right, SEP]
            assert row.tolist() == expected + [PAD] * (length - len(expected))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([(6,), (7,), (0,)], [False, True, False]), ([(5, 0), (6, 0), (2, 4), (3, 2)], [0, 1, 1, 0])],
)
def test_rows_that_lose_tokens_are_marked_as_truncated(lengths, expected):
    sides = [tf.ragged.constant([[7] * n for n in side], tf.int32) for side in zip(*lengths)]  # noqa: B905
    combined = combine_segments(*sides, max_seq_length=8, cls_token_id=CLS, sep_token_id=SEP)
    assert combined.truncated.numpy().tolist() == [bool(value) for value in expected]


def test_padding_uses_the_given_id():
    a = tf.ragged.constant([[7]], tf.int32)
    out = pad_segments(a, max_seq_length=4, cls_token_id=1, sep_token_id=2, pad_token_id=9)
    assert out["input_ids"].numpy().tolist() == [[1, 7, 2, 9]]


@pytest.mark.parametrize(("b", "least"), [(None, 3), ([[1]], 5)])
def test_too_short_length_is_rejected(b, least):
    packed([[1]], b, least)
    with pytest.raises(InputError, match=f"at least {least} .*got {least - 1}"):
        packed([[1]], b, least - 1)


def test_uses_core_ops_only():
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    function = tf.function(
        lambda a, b: pad_segments(a, b, max_seq_length=8, cls_token_id=CLS, sep_token_id=SEP)
    ).get_concrete_function(spec, spec)
    graph = function.graph.as_graph_def()
    ops = {node.op for part in [graph, *graph.library.function] for node in _nodes(part)}
    assert not [op for op in ops if op.startswith(("TFText", "RaggedTensorToVariant", "Trim"))]


def _nodes(part):
    return part.node if isinstance(part, tf.compat.v1.GraphDef) else part.node_def
