"""Checks of a signature's inputs in the graph, padding, and the messages of failed checks."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.inputs import (
    TOKEN_ID_SPECS,
    UnpaddedRows,
    failed_check,
    in_range,
    same_shape,
)

NAMES = ("input_ids", "input_mask", "segment_ids")
CONFIG = BertConfig(vocab_size=13, max_position_embeddings=8)


def read(input_ids, input_mask, segment_ids):
    """Returns tokens, segments, both padded, and `truncated`, from a graph of unknown shapes."""

    def run(input_ids, input_mask, segment_ids):
        rows = UnpaddedRows.of_request(input_ids, input_mask, segment_ids, CONFIG)
        values = tf.stack([rows.input_ids.values, rows.segment_ids.values], axis=1)
        return rows.input_ids, rows.segment_ids, rows.padded(values), rows.truncated

    arrays = [np.array(x, np.int32) for x in (input_ids, input_mask, segment_ids)]
    return tf.function(run, input_signature=TOKEN_ID_SPECS)(*arrays)


def call(input_ids, input_mask, segment_ids):
    """Returns tokens, segments, and both padded again."""
    ids, segments, padded, _ = read(input_ids, input_mask, segment_ids)
    return ids.to_list(), segments.to_list(), padded.numpy()


def test_padding_can_be_at_any_position():
    ids = [[0, 0, 2, 5, 3], [2, 0, 6, 0, 3], [2, 7, 3, 9, 9]]
    mask = [[0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 0, 0]]
    segments = [[1, 1, 0, 0, 1], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1]]
    tokens, of, padded = call(ids, mask, segments)
    assert tokens == [[2, 5, 3], [2, 6, 3], [2, 7, 3]]
    assert of == [[0, 0, 1], [0, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(padded, np.stack([ids, segments], 2) * np.array(mask)[..., None])


def test_fully_masked_row_keeps_its_first_token():
    tokens, _, padded = call([[4, 5], [6, 7]], [[0, 0], [0, 1]], [[0, 0], [0, 0]])
    assert tokens == [[4], [7]]
    assert padded[..., 0].tolist() == [[4, 0], [0, 7]]


def test_tokens_beyond_the_maximum_length_are_ignored():
    ids = np.arange(1, 13).reshape(1, 12)
    mask = np.array([[0, 0, *[1] * 10]])
    tokens, _, padded = call(ids, mask, ids * 0)
    assert tokens == [[3, 4, 5, 6, 7, 8, 9, 10]]
    assert padded[0, :, 0].tolist() == [0, 0, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]


def test_rows_with_more_tokens_than_positions_are_truncated():
    mask = np.array([[1] * 9, [1] * 8 + [0], [0] + [1] * 8, [0] * 9])
    assert read(mask, mask, mask * 0)[-1].numpy().tolist() == [True, False, False, False]
    for shape in ((0, 3), (0, 0)):
        assert read(*[np.zeros(shape)] * 3)[-1].shape == (0,)


@pytest.mark.parametrize(
    ("name", "value", "highest"),
    [
        ("input_ids", 13, 12),
        ("input_ids", -1, 12),
        ("input_ids", 2**31 - 1, 12),
        ("segment_ids", 2, 1),
        ("segment_ids", -7, 1),
        ("input_mask", 2, 1),
        ("input_mask", -1, 1),
    ],
)
def test_values_out_of_range_are_rejected(name, value, highest):
    arrays = {name: np.ones([2, 4], np.int32) for name in NAMES}
    call(**arrays)
    arrays[name][1, 2] = value
    message = rf"{name}: expected values from 0 to {highest}, got\D+{value}\b"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(**arrays)


def test_ids_at_padding_can_have_any_value():
    tokens, of, _ = call([[2, 5, -100]], [[1, 1, 0]], [[0, 1, 99]])
    assert (tokens, of) == ([[2, 5]], [[0, 1]])


@pytest.mark.parametrize(("shape", "tokens"), [((2, 0), [[0], [0]]), ((0, 3), []), ((0, 0), [])])
def test_empty_arrays_give_empty_outputs(shape, tokens):
    found, segments, padded = call(*[np.zeros(shape)] * 3)
    assert found == segments == tokens
    assert padded.shape == (*shape, 2)


@pytest.mark.parametrize("wrong", NAMES[1:])
@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (2, 0), (3, 4)])
def test_arrays_of_different_shapes_are_rejected(wrong, shape):
    arrays = {name: np.zeros(shape if name == wrong else (2, 4)) for name in NAMES}
    message = rf"{wrong} and input_ids: expected equal shapes, got.*{shape[0]} {shape[1]}.*2 4"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(**arrays)


@tf.function
def check(x, y):
    x, y = same_shape(x=x, y=y)
    tf.debugging.assert_less_equal(x, 5, "x: expected at most 5")
    return in_range(4, x=x)[0] + y


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1], "y and x: expected equal shapes, got [1] [2]"),
        ([4], [1], "x: expected values from 0 to 3, got [4]"),
        ([1, 7], [1, 1], "x: expected at most 5"),
    ],
)
def test_text_and_values_of_a_check_are_extracted(x, y, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        check(tf.constant(x), tf.constant(y))
    assert failed_check(caught.value.message) == message


@pytest.mark.parametrize("message", ["", "Incompatible shapes: [2] vs. [3] [Op:AddV2]"])
def test_other_errors_have_no_check(message):
    assert failed_check(message) == ""
