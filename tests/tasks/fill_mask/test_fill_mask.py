"""Filling masks with a random model: as many fillings as were asked for, likeliest first."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.tasks.fill_mask.fill_mask import fill_masks
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS

VOCAB = [*SPECIAL_TOKENS, "the", "sky", "sea", "is", "blue", "and", "."]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    initializer_range=0.5,
)
TEXTS = ["The [MASK] is blue.", "The [MASK] and the [MASK] and."]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return BertPretrainer(CONFIG)


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCAB, keep_special_tokens=True)


def test_a_list_a_text_of_a_list_a_mask_of_top_k_fillings(model, tokenizer):
    fillings = fill_masks(model, tokenizer, TEXTS, max_seq_length=16, top_k=3)
    assert [[len(mask) for mask in text] for text in fillings] == [[3], [3, 3]]


def test_the_likeliest_piece_comes_first_and_all_pieces_sum_to_1(model, tokenizer):
    fillings = fill_masks(model, tokenizer, TEXTS, max_seq_length=16, top_k=len(VOCAB))
    for pieces, probabilities in (zip(*mask, strict=True) for text in fillings for mask in text):
        assert sorted(pieces) == sorted(VOCAB)
        assert list(probabilities) == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)


def test_each_mask_has_the_models_probabilities_at_its_place(model, tokenizer):
    ids = [2, 5, 4, 10, 5, 4, 10, 11, 3]  # [CLS] the [MASK] and the [MASK] and . [SEP]
    inputs = {
        "input_ids": np.array([ids], np.int32),
        "input_mask": np.ones([1, 9], np.int32),
        "segment_ids": np.zeros([1, 9], np.int32),
        "masked_lm_positions": np.array([[2, 5]], np.int32),
    }
    logits = np.asarray(model(inputs)["masked_lm_logits"], float)[0]
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    fillings = fill_masks(model, tokenizer, TEXTS, max_seq_length=16, top_k=len(VOCAB))[1]
    for mask, probabilities in zip(fillings, expected, strict=True):
        found = dict(mask)
        np.testing.assert_allclose([found[p] for p in VOCAB], probabilities, atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


@pytest.mark.parametrize("text", ["The sky is blue.", "the " * 8 + "[MASK]", ""])
def test_a_text_without_a_mask_in_reach_is_refused(model, tokenizer, text):
    with pytest.raises(InputError, match=r"no \[MASK\] within the first 8 pieces of the text '"):
        fill_masks(model, tokenizer, ["The [MASK].", text], max_seq_length=8)


def test_a_left_to_right_model_fills_no_masks(tokenizer):
    causal = BertPretrainer(dataclasses.replace(CONFIG, is_decoder=True))
    with pytest.raises(InputError, match=r"a left-to-right model .* fills no masks"):
        fill_masks(causal, tokenizer, ["The [MASK]."], max_seq_length=8)
