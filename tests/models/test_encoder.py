"""The encoder: effects of padding, sequence length and segments on its outputs."""

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.models.encoder import BertEncoder

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    initializer_range=0.5,
)


@pytest.fixture(scope="module")
def encoder():
    return BertEncoder(CONFIG)


def inputs(batch, length, seed=0):
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(1, 30, (batch, length), np.int32),
        "input_mask": np.ones((batch, length), np.int32),
        "segment_ids": random.integers(0, 2, (batch, length), np.int32),
    }


def test_padding_does_not_change_the_outputs_of_real_tokens(encoder):
    short = inputs(2, 7)
    padded = {name: np.pad(value, ((0, 0), (0, 5))) for name, value in short.items()}
    a, b = encoder(short), encoder(padded)
    np.testing.assert_allclose(b["sequence_output"][:, :7], a["sequence_output"], atol=1e-5)
    np.testing.assert_allclose(b["pooled_output"], a["pooled_output"], atol=1e-5)


def test_int64_inputs_are_accepted(encoder):
    narrow = inputs(2, 6)
    wide = {name: value.astype("int64") for name, value in narrow.items()}
    assert np.array_equal(encoder(wide)["pooled_output"], encoder(narrow)["pooled_output"])


def test_dropout_sites_are_unique(encoder):
    sites = [layer.site for layer in encoder._flatten_layers() if type(layer).__name__ == "Dropout"]
    assert sorted(sites) == list(range(1 + 3 * CONFIG.num_hidden_layers))
    assert encoder.next_dropout_site == len(sites)
