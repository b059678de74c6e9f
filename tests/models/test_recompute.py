"""Marking layers for recomputation: without an active recomputation function it has no effect."""

import keras
import pytest

from keras_bert.config import BertConfig
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers import recompute_with, recomputed


def test_marked_layer_is_unchanged_without_recompute_with():
    layer = keras.layers.Identity()
    assert recomputed(layer) is layer


def test_encoder_marks_its_blocks():
    encoder = BertEncoder(BertConfig(20, 8, 2, 2, 16, max_position_embeddings=8))
    ones = keras.ops.ones((1, 4), "int32")
    marked = []

    def note(layer):
        marked.append(layer)
        return layer

    with recompute_with(note):
        encoder({"input_ids": ones, "input_mask": ones, "segment_ids": ones})
    assert marked == encoder.blocks


def test_error_deactivates_recompute_with():
    layer = keras.layers.Identity()
    with pytest.raises(ZeroDivisionError), recompute_with(lambda layer: None):
        raise ZeroDivisionError
    assert recomputed(layer) is layer
