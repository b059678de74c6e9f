"""Embeddings: word + position + segment, then LayerNorm, then dropout, in that order."""

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models.layers import BertEmbeddings

IDS = np.array([[1, 5, 5, 0], [2, 3, 9, 9]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], "int32")


@pytest.fixture
def layer():
    config = BertConfig(10, 8, 1, 2, max_position_embeddings=6, hidden_dropout_prob=0.5)
    layer = BertEmbeddings(config, name="embeddings")
    layer.build()
    return layer


def test_output_is_the_normalized_sum_of_the_three_tables(layer):
    words, positions, segments, _, _ = (np.asarray(v, "float64") for v in layer.variables)
    x = words[IDS] + positions[:4] + segments[SEGMENTS]
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(layer(IDS, SEGMENTS), expected, atol=1e-5)


def test_position_ids_select_rows_of_the_position_table(layer):
    counted = np.array([[0, 1, 2, 3], [0, 1, 2, 3]], "int32")
    np.testing.assert_allclose(layer(IDS, SEGMENTS, None, counted), layer(IDS, SEGMENTS), atol=1e-6)
    packed = np.asarray(layer(IDS, SEGMENTS, None, np.array([[0, 1, 0, 1]] * 2, "int32")))
    alone = np.asarray(layer(IDS[:, 2:], SEGMENTS[:, 2:]))
    np.testing.assert_allclose(packed[:, 2:], alone, atol=1e-6)


def test_dropout_is_applied_last(layer):
    seeds = np.array([3, 4], "int32")
    dropped, kept = np.asarray(layer(IDS, SEGMENTS, seeds)), np.asarray(layer(IDS, SEGMENTS))
    zeroed = dropped == 0
    assert 0 < zeroed.mean() < 1
    np.testing.assert_allclose(dropped[~zeroed], 2 * kept[~zeroed], rtol=1e-6)


def test_sequence_over_max_position_embeddings_is_rejected(layer):
    ids = np.zeros((1, 7), "int32")
    with pytest.raises(InputError, match=r"sequences of 7 tokens.*max_position_embeddings.*6"):
        layer(ids, ids)


def test_tables_are_initialized_from_different_truncated_normals():
    config = BertConfig(200, 64, 1, 1, max_position_embeddings=200, type_vocab_size=200)
    layer = BertEmbeddings(config)
    layer.build()
    tables = [np.asarray(v) for v in layer.variables[:3]]
    for table in tables:
        assert np.abs(table).max() <= 0.04
        # A normal truncated at two standard deviations has 0.88 of its standard deviation.
        assert 0.017 < table.std() < 0.0182
    assert not np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[1], tables[2])
