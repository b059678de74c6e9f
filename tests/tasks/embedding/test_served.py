"""Tests that served embeddings equal the outputs of the Keras model, pooled in the test."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.models import BertEncoder
from keras_bert.serving.network import Network
from keras_bert.tasks.embedding.processor import EmbedderSettings, EmbeddingProcessor
from keras_bert.tasks.embedding.served import ServedEmbedding
from keras_bert.text.padding import pad_segments
from keras_bert.text.tokenizer import BertTokenizer

WORDS = ["the", "cat", "sat", "on", "mat", ".", "a", "e", "##a", "##b"]


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def model(tokenizer: BertTokenizer) -> BertEncoder:
    keras.utils.set_random_seed(0)
    return BertEncoder(
        BertConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=16,
            initializer_range=0.3,
        )
    )


def serve(model, tokenizer, length, normalize):
    """Returns the signatures of a served model."""
    processor = EmbeddingProcessor(tokenizer, EmbedderSettings(length, normalize))
    return ServedEmbedding(Network(model), processor).signatures()


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_embeddings_equal_the_keras_model_pooled_by_hand(model, tokenizer, normalize: bool):
    texts = ["The cat sat on the mat.", "", "aab", "cat " * 40, b"\xff the", *["on the mat"] * 9]
    ids = pad_segments(
        tokenizer.tokenize(tf.constant(texts)),
        max_seq_length=12,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    outputs = model(ids)
    hidden = outputs["sequence_output"].numpy()
    mask = ids["input_mask"].numpy()[..., np.newaxis]
    expected = {
        "cls": hidden[:, 0],
        "mean": (hidden * mask).sum(axis=1) / mask.sum(axis=1),
        "pooled": outputs["pooled_output"].numpy(),
    }
    if normalize:
        for name, vectors in expected.items():
            expected[name] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    signatures = serve(model, tokenizer, 12, normalize)
    for found in (
        signatures["serving_default"](tf.constant(texts)),
        signatures["token_ids"](**ids),
    ):
        assert found.keys() == {*expected, "truncated", "num_tokens"}
        np.testing.assert_array_equal(found["num_tokens"], mask.sum(axis=1)[:, 0])
        for name, vectors in expected.items():
            np.testing.assert_allclose(found[name], vectors, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_text_of_1_mb_is_truncated_to_its_first_tokens(model, tokenizer):
    embed = serve(model, tokenizer, 8, False)["serving_default"]
    found = embed(tf.constant(["the cat sat on " * 70_000, "the cat sat on the cat"]))
    assert found.pop("truncated").numpy().tolist() == [True, False]
    assert found.pop("num_tokens").numpy().tolist() == [8, 8]
    for vectors in found.values():
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_empty_batch_gives_no_vectors(model, tokenizer):
    embed = serve(model, tokenizer, 8, True)["serving_default"]
    found = embed(tf.constant([], tf.string))
    assert found.pop("truncated").shape == found.pop("num_tokens").shape == (0,)
    assert {name: vectors.shape for name, vectors in found.items()} == dict.fromkeys(
        ("cls", "mean", "pooled"), (0, 16)
    )
