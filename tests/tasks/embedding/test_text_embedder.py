"""Tests TextEmbedder: the encoder's text vectors, from the Keras model and from the export."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.common.errors import InputError
from keras_bert.tasks.embedding.text_embedder import TextEmbedder
from keras_bert.tasks.load import load
from keras_bert.text.strings import encode_texts

TEXTS = ["The film is good.", "", f"{'very ' * 40}good", "a book", "\ud800 it"]


@pytest.fixture(scope="module")
def embedder(pretrained):
    return TextEmbedder.from_pretrained(pretrained, max_seq_length=16)


def test_vectors_are_those_of_the_encoder(embedder):
    vectors = embedder.predict(TEXTS)
    assert vectors.pop("truncated").tolist() == [False, False, True, False, False]
    lengths = [len(ids) for ids in embedder.preprocess(encode_texts(TEXTS)).input_ids.numpy()]
    assert vectors.pop("num_tokens").tolist() == lengths
    assert {name: value.shape for name, value in vectors.items()} == dict.fromkeys(
        ("cls", "mean", "pooled"), (len(TEXTS), 16)
    )
    for index, text in enumerate(TEXTS):
        encoded = text.encode("utf-8", "ignore")
        ids = embedder.processor.preprocess([encoded]).input_ids.numpy()
        assert ids.shape[1] <= 16
        outputs = embedder.model(
            {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
        )
        hidden = np.asarray(outputs["sequence_output"])[0]
        np.testing.assert_allclose(vectors["cls"][index], hidden[0], atol=1e-5)
        np.testing.assert_allclose(vectors["mean"][index], hidden.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(
            vectors["pooled"][index], np.asarray(outputs["pooled_output"])[0], atol=1e-5
        )


def test_vectors_do_not_depend_on_the_batch(embedder):
    texts = TEXTS * 3
    expected = embedder.predict(texts)
    for batch_size in (1, 4):
        for name, value in embedder.predict(texts, batch_size=batch_size).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-5)


def test_hidden_states_stay_on_the_device(make_checkpoint, tmp_path):
    sizes = {"hidden_size": 64, "max_position_embeddings": 256}
    wide = TextEmbedder.from_pretrained(make_checkpoint(tmp_path / "bert", ["a"], **sizes), 256)
    texts = ["a " * 250] * 32
    wide.predict(texts)  # Traces the model.
    tracemalloc.start()
    try:
        wide.predict(texts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 32 * 256 * 64 / 2  # Half of the hidden states, in bytes.


def test_evaluation_of_symmetric_pairs_ignores_the_text_of_the_anchor(embedder):
    scores = embedder.evaluate((["a film", "the book"], ["the book", "a film"]))
    assert scores["recall_at_1"] == 1.0


def test_empty_list_of_texts_gives_empty_arrays(embedder):
    vectors = embedder.predict([])
    assert vectors.pop("truncated").shape == vectors.pop("num_tokens").shape == (0,)
    assert {name: value.shape for name, value in vectors.items()} == dict.fromkeys(
        ("cls", "mean", "pooled"), (0, 16)
    )


@pytest.mark.slow
def test_saved_and_exported_models_give_the_same_vectors(pretrained, embedder, tmp_path):
    unit = TextEmbedder.from_pretrained(pretrained, 16, normalize=True)
    expected = unit.predict(TEXTS)
    for name, value in embedder.predict(TEXTS).items():
        if name in ("truncated", "num_tokens"):
            continue
        lengths = np.linalg.norm(value, axis=1, keepdims=True)
        np.testing.assert_allclose(expected[name], value / lengths, atol=1e-5)
    unit.save_pretrained(tmp_path / "out")
    opened = load(tmp_path / "out")
    assert isinstance(opened, TextEmbedder)
    exported = load(opened.export(tmp_path / "vectors" / "1"))
    for other in (opened, exported):
        assert other.settings == unit.settings
        found = other.predict(TEXTS, batch_size=2)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5)
        assert other.predict([])["mean"].shape == (0, 16)


def test_encoder_without_a_pooler_has_no_pooled_vector(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    save_file(weights, file)
    assert TextEmbedder.from_pretrained(tmp_path / "model").predict(["a"]).keys() == {
        "cls",
        "mean",
        "truncated",
        "num_tokens",
    }


def test_fine_tuned_model_gives_embeddings(pretrained, tmp_path):
    """The heads of a fine-tuned model are ignored."""
    shutil.copytree(pretrained, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    settings = json.loads(file.read_text()) | {"architectures": ["BertForTokenClassification"]}
    file.write_text(json.dumps(settings))
    assert TextEmbedder.from_pretrained(tmp_path / "model").predict(["a"])["cls"].shape == (1, 16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.predict("a text"), "texts is 'a text', a str; expected a list of strings"),
        (lambda it: it.predict(["a", None]), r"texts\[1\] is None, a NoneType; expected a string"),
        (lambda it: it.predict((["a"], ["b"])), "texts is a tuple of 2 items; expected a list"),
        (lambda it: it.predict(["a"], batch_size=-1), "batch_size=-1: expected a whole number"),
        (lambda it: it.predict(["a"], size=17), "size=17: expected a whole number from 1 to 16"),
        (lambda it: it.predict(["a"], size=0), "size=0: expected a whole number from 1 to 16"),
    ],
)
def test_invalid_arguments_are_named(embedder, call, message):
    with pytest.raises(InputError, match=message):
        call(embedder)


def test_length_above_the_number_of_positions_is_rejected(pretrained):
    with pytest.raises(InputError, match="max_seq_length=64: expected from 5 to the model's 32"):
        TextEmbedder.from_pretrained(pretrained, max_seq_length=64)
