"""Checks of a signature's inputs in the graph, padding, and the messages of failed checks."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.inputs import TOKEN_ID_SPECS, UnpaddedRows, failed_check

NAMES = ("input_ids", "input_mask", "segment_ids")
CONFIG = BertConfig(vocab_size=13, max_position_embeddings=8)


@tf.function(input_signature=TOKEN_ID_SPECS)
def unpadded(input_ids, input_mask, segment_ids):
    """Returns tokens, segments, both padded, and `truncated`, in a graph of unknown shapes."""
    rows = UnpaddedRows.of_request(input_ids, input_mask, segment_ids, CONFIG)
    values = tf.stack([rows.input_ids.values, rows.segment_ids.values], axis=1)
    return rows.input_ids, rows.segment_ids, rows.padded(values), rows.truncated


def call(*arrays):
    return unpadded(*(np.array(x, np.int32) for x in arrays))


def test_padding_can_be_at_any_position_and_have_any_value():
    ids = np.array([[0, 0, 2, 5, 3], [2, 0, 6, -1, 3], [2, 7, 3, 9, 99], [4, 5, 6, 7, 8]])
    mask = np.array([[0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0] * 5])
    segments = [[1, 9, 0, 0, 1], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0] * 5]
    tokens, token_segments, padded, _ = call(ids, mask, segments)
    assert tokens.to_list() == [[2, 5, 3], [2, 6, 3], [2, 7, 3], [4]]
    assert token_segments.to_list() == [[0, 0, 1], [0, 0, 1], [0, 1, 1], [0]]
    mask[3, 0] = 1  # A row of only padding keeps its first token.
    np.testing.assert_array_equal(padded, np.stack([ids, segments], 2) * mask[..., None])


def test_rows_with_more_tokens_than_positions_are_truncated():
    ids = np.arange(12).reshape(1, 12)
    mask = np.array([[0, 0, *[1] * 10]])
    tokens, _, padded, truncated = call(ids, mask, ids * 0)
    assert tokens.to_list() == [[2, 3, 4, 5, 6, 7, 8, 9]]
    assert padded[0, :, 0].numpy().tolist() == [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]
    assert truncated.numpy().tolist() == [True]
    mask = np.array([[1] * 8 + [0], [0] + [1] * 8, [0] * 9])
    assert not call(mask, mask, mask * 0)[-1].numpy().any()


@pytest.mark.parametrize(("shape", "tokens"), [((2, 0), [[0], [0]]), ((0, 3), []), ((0, 0), [])])
def test_empty_arrays_give_empty_outputs(shape, tokens):
    ids, segments, padded, truncated = call(*[np.zeros(shape)] * 3)
    assert ids.to_list() == segments.to_list() == tokens
    assert padded.shape == (*shape, 2)
    assert truncated.shape == shape[:1]


@pytest.mark.parametrize(
    ("name", "value", "highest"),
    [
        ("input_ids", 13, 12),
        ("segment_ids", -7, 1),
        ("input_mask", 2, 1),
    ],
)
def test_values_out_of_range_are_rejected(name, value, highest):
    arrays = {name: np.ones([2, 4], np.int32) for name in NAMES}
    arrays[name][1, 2] = value
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call(*arrays.values())
    message = f"{name}: expected values from 0 to {highest}, got [{value}]"
    assert failed_check(caught.value.message) == message
    assert failed_check("Incompatible shapes: [2] vs. [3] [Op:AddV2]") == ""


@pytest.mark.parametrize("wrong", NAMES[1:])
@pytest.mark.parametrize("shape", [(1, 4), (2, 0)])
def test_arrays_of_different_shapes_are_rejected(wrong, shape):
    arrays = [np.zeros(shape if name == wrong else (2, 4)) for name in NAMES]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call(*arrays)
    message = f"{wrong} and input_ids: expected equal shapes, got [{shape[0]} {shape[1]}] [2 4]"
    assert failed_check(caught.value.message) == message
