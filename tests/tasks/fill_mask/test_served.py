"""Tests that served mask filling returns the Keras model's best tokens of each mask."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.serving.network import Network
from keras_bert.tasks.fill_mask import served
from keras_bert.tasks.fill_mask.processor import MaskFillerSettings, MaskFillingProcessor
from keras_bert.tasks.fill_mask.served import ServedFillMask
from keras_bert.text.padding import pad_segments
from keras_bert.text.tokenizer import BertTokenizer

WORDS = ["the", "cat", "sat", "on", "mat", ".", "a", "e", "##a", "##b"]
LENGTH, K = 12, 3
# One mask, none, several, one beyond the length; more texts than one chunk holds.
TEXTS = [
    "The cat [MASK] on the mat.",
    "the mat",
    "[MASK] [MASK] sat on [MASK].",
    "cat [MASK]" + " the" * 20 + " [MASK]",
    "",
    "[mask] a[MASK]b",
    *["on [MASK]"] * 5,
]
MASKS = [1, 0, 3, 1, 0, 1, *[1] * 5]


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return BertTokenizer(vocab, keep_special_tokens=True)


@pytest.fixture(scope="module")
def model(tokenizer: BertTokenizer) -> BertPretrainer:
    keras.utils.set_random_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return BertPretrainer(config)


@pytest.fixture(scope="module")
def filler(model, tokenizer):
    processor = MaskFillingProcessor(tokenizer, MaskFillerSettings(LENGTH, K))
    return ServedFillMask(Network(model), processor)


@pytest.fixture(scope="module")
def signatures(filler):
    return filler.signatures()


@pytest.mark.slow
def test_tokens_and_scores_equal_the_keras_model(model, tokenizer, signatures):
    ids = pad_segments(
        tokenizer.tokenize(tf.constant(TEXTS)),
        max_seq_length=LENGTH,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    row, place = np.nonzero(ids["input_ids"].numpy() == tokenizer.mask_token_id)
    assert np.bincount(row, minlength=len(TEXTS)).tolist() == MASKS
    everywhere = np.tile(np.arange(LENGTH, dtype=np.int32), [len(TEXTS), 1])
    logits = model(ids | {"masked_lm_positions": everywhere})["masked_lm_logits"].numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    for answer in (
        signatures["serving_default"](tf.constant(TEXTS)),
        signatures["token_ids"](**ids),
    ):
        tokens, token_ids, scores = (
            answer[name].numpy() for name in ("tokens", "token_ids", "scores")
        )
        assert tokens.shape == token_ids.shape == scores.shape == (len(TEXTS), max(MASKS), K)
        for i in range(len(TEXTS)):
            own = probabilities[i, place[row == i]]  # [masks, V]
            best = np.argsort(-own, axis=1)[:, :K]
            assert token_ids[i, : MASKS[i]].tolist() == best.tolist()
            np.testing.assert_allclose(
                scores[i, : MASKS[i]], np.take_along_axis(own, best, axis=1), atol=1e-5
            )
            assert tokens[i, : MASKS[i]].tolist() == [
                [tokenizer.vocab[token].encode() for token in mask] for mask in best
            ]
            assert set(tokens[i, MASKS[i] :].ravel()) <= {b""}
            assert set(token_ids[i, MASKS[i] :].ravel()) <= {-1}
            assert not scores[i, MASKS[i] :].any()


@pytest.mark.slow
def test_text_of_1_mb_is_truncated_to_its_first_tokens(signatures):
    answer = signatures["serving_default"](
        tf.constant(
            ["the [MASK] sat on " * 60_000, "the [MASK] sat on the [MASK] sat on the [MASK]"]
        )
    )
    assert answer["tokens"].shape == (2, 3, K)
    assert answer["tokens"][0].numpy().tolist() == answer["tokens"][1].numpy().tolist()
    np.testing.assert_allclose(answer["scores"][0], answer["scores"][1], atol=1e-5)
    assert answer["truncated"].numpy().tolist() == [True, False]


def test_mask_beyond_the_length_has_no_tokens_and_its_text_is_marked(signatures):
    texts = ["the " * (LENGTH - 3) + "[MASK]", "the " * (LENGTH - 2) + "[MASK]"]
    answer = {name: x.numpy() for name, x in signatures["serving_default"](texts).items()}
    assert (answer["token_ids"][:, 0, 0] >= 0).tolist() == [True, False]
    assert answer["truncated"].tolist() == [False, True]


def test_many_masks_are_scored_in_chunks(filler, signatures, monkeypatch):
    monkeypatch.setattr(served, "_MASKS_AT_ONCE", 4)
    by_four = filler.run("serving_default", tf.constant(TEXTS))
    at_once = signatures["serving_default"](tf.constant(TEXTS))
    assert by_four["tokens"].numpy().tolist() == at_once["tokens"].numpy().tolist()
    np.testing.assert_allclose(by_four["scores"], at_once["scores"], atol=1e-6)


def test_any_number_of_texts_and_masks_is_accepted(signatures):
    for texts in ([], [""], ["the cat"] * 20):
        answer = signatures["serving_default"](tf.constant(texts, tf.string))
        assert answer.pop("truncated").shape == (len(texts),)
        assert {value.shape for value in answer.values()} == {(len(texts), 0, K)}
    for shape in ((2, 0), (0, 4), (0, 0)):
        answer = signatures["token_ids"](*[np.zeros(shape, np.int32)] * 3)
        assert answer.pop("truncated").shape == shape[:1]
        assert {value.shape for value in answer.values()} == {(shape[0], 0, K)}
