"""TextEmbedder: vectors, training with fit, exported signatures."""

import json
import shutil
import tracemalloc
from dataclasses import replace

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.errors import InputError
from keras_bert.models import memory
from keras_bert.tasks.embedding import search
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.load import load
from keras_bert.text.offsets import encode_texts

TEXTS = ["The film is good.", "", f"{'very ' * 40}good", "a book", "\ud800 it"]


@pytest.fixture(scope="module")
def embedder(pretrained):
    return TextEmbedder.from_pretrained(pretrained, max_seq_length=16)


def test_vectors_are_those_of_the_encoder(embedder):
    vectors = embedder.predict(TEXTS, batch_size=2)
    assert vectors.pop("truncated").tolist() == [False, False, True, False, False]
    lengths = [
        len(ids) for ids in embedder.processor.preprocess(encode_texts(TEXTS)).input_ids.numpy()
    ]
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
    # The text of the anchor is no candidate.
    scores = embedder.evaluate((["a film", "the book"], ["the book", "a film"]))
    assert scores["recall_at_1"] == 1.0
    shapes = {name: value.shape for name, value in embedder.predict([]).items()}
    assert shapes.pop("truncated") == shapes.pop("num_tokens") == (0,)
    assert shapes == dict.fromkeys(("cls", "mean", "pooled"), (0, 16))


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


def test_encoder_without_a_pooler_or_with_another_head_is_loaded(pretrained, edit_json, tmp_path):
    shutil.copytree(pretrained, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    save_file(weights, file)
    edit_json(tmp_path / "model" / "config.json", architectures=["BertForTokenClassification"])
    embedder = TextEmbedder.from_pretrained(tmp_path / "model")
    embedder.save_pretrained(tmp_path / "out")  # With the newly initialized pooler.
    for opened in (embedder, load(tmp_path / "out")):
        assert opened.predict(["a"]).keys() == {"cls", "mean", "truncated", "num_tokens"}


# --- vectors, similarities, search ---


def test_encode_returns_the_vectors_of_the_pooling(pretrained):
    for pooling in ("cls", "mean"):
        embedder = TextEmbedder.from_pretrained(pretrained, 16, pooling=pooling)
        vectors = embedder.encode(TEXTS, size=4)
        np.testing.assert_array_equal(vectors, embedder.predict(TEXTS, size=4)[pooling])
        np.testing.assert_allclose(embedder.encode(TEXTS[0])[:4], vectors[0], atol=1e-6)


def test_similarity_is_the_cosines_of_texts_or_vectors(embedder):
    first, second = TEXTS[:2], TEXTS[2:]
    vectors = [embedder.encode(texts) for texts in (first, second)]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors]
    expected = unit[0] @ unit[1].T
    for pair in ((first, second), vectors, ([*vectors[0]], tf.constant(vectors[1]))):
        np.testing.assert_allclose(embedder.similarity(*pair), expected, atol=1e-6)
    np.testing.assert_allclose(embedder.similarity(first[0], second), expected[:1], atol=1e-6)


@pytest.mark.parametrize("top_k", [1, 3, 60])
def test_search_is_exact(embedder, monkeypatch, top_k):
    monkeypatch.setattr(search, "_QUERIES", 2)
    monkeypatch.setattr(search, "_CORPUS", 20)
    # Their cosines are exact, and many are equal: the first ones of these must be found.
    rng = np.random.default_rng(0)
    corpus, queries = (rng.choice([-1.0, 1.0], [n, 4]).astype(np.float32) for n in (50, 5))
    indices, scores = embedder.search(queries, corpus, top_k)
    cosines = embedder.similarity(queries, corpus)
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :top_k]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(cosines, expected, 1))
    found, _ = embedder.search(queries[1], corpus, top_k)
    assert found.tolist() == indices[1].tolist()
    for one, vector in (("book", embedder.encode("film")), (queries[1], queries[0])):
        assert embedder.search(one, vector, top_k)[0].tolist() == [0]
    assert embedder.search(["book", "is"], "a film", top_k)[0].tolist() == [[0], [0]]


def test_search_in_texts_uses_the_prompts_of_the_model(embedder):
    prompts = {"query": "very very ", "document": "it is a "}
    settings = replace(embedder.settings, prompts=prompts)
    prompted = TextEmbedder(embedder.model, embedder.tokenizer, settings)
    corpus = ["good film", "bad book", "a film is it"]
    indices, scores = prompted.search("book", corpus, top_k=2)
    expected = embedder.search("very very book", [f"it is a {text}" for text in corpus], top_k=2)
    assert indices.tolist() == expected[0].tolist()
    np.testing.assert_allclose(scores, expected[1], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], ["b"], 0), "top_k=0: expected a whole number of at least 1"),
        ((["a"], []), "corpus is empty; expected at least one"),
        ((np.ones([1, 1, 3]), ["a"]), r"shapes queries \[1, 1, 3\], corpus \[1, 16\]; expected"),
        ((["a"], [1]), r"corpus\[0\] is 1, .*; expected a string"),
    ],
)
def test_invalid_search(embedder, arguments, message):
    with pytest.raises(InputError, match=message):
        embedder.search(*arguments)


# --- fit ---

# Texts about something good or bad; the score is whether two texts agree.
FIRST = [f"{'very ' * (i % 3)}{('bad', 'good')[i % 2]} film" for i in range(12)]
SECOND = [f"{'it is ' * (i % 2)}a {('bad', 'good')[i // 2 % 2]} book ." for i in range(12)]
SCORES = [0.9 if i % 2 == i // 2 % 2 else -0.4 for i in range(12)]
PAIRS = (["good film", "bad film", "very book"], ["a good book .", "it is bad", "very very"])
FAST = {"verbose": 0, "batch_size": 6, "learning_rate": 1e-2, "jit_compile": False}


def open_new(pretrained, **changes):
    return TextEmbedder.from_pretrained(pretrained, 16, **changes)


def weights_of(embedder):
    return {
        variable.path: keras.ops.convert_to_numpy(variable) for variable in embedder.model.weights
    }


@pytest.fixture(scope="module")
def trained(pretrained):
    """Returns an embedder after four epochs, and its history."""
    embedder = open_new(pretrained)
    loss = EmbeddingLoss("cosent", sizes=(16, 4))
    held_out = ((FIRST, SECOND), SCORES)
    history = embedder.fit(
        (FIRST, SECOND),
        SCORES,
        loss=loss,
        epochs=4,
        seed=0,
        validation_data=held_out,
        **FAST,
    )
    return embedder, history.history


@pytest.mark.slow
def test_fit_learns_the_order_of_the_scores(pretrained, trained):
    embedder, history = trained
    before = open_new(pretrained).evaluate((FIRST, SECOND), SCORES)["spearman"]
    scores = embedder.evaluate((FIRST, SECOND), SCORES, batch_size=3)
    assert scores.keys() == {"spearman", "pearson", "spearman_4", "pearson_4"}
    assert scores["spearman"] > max(before, 0.8)
    assert len(history["loss"]) == 4
    assert history["val_spearman_4"][-1] == pytest.approx(scores["spearman_4"], abs=1e-6)


@pytest.mark.slow
def test_saved_model_keeps_pooling_sizes_and_vectors(trained, tmp_path):
    embedder = trained[0]
    embedder.save_pretrained(tmp_path / "out")
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [module["type"].split(".")[-1] for module in modules] == ["Transformer", "Pooling"]
    opened = load(tmp_path / "out")
    assert opened.settings == embedder.settings
    assert (opened.settings.pooling, opened.settings.matryoshka_sizes) == ("mean", (16, 4))
    opened.save_pretrained(tmp_path / "out")  # A directory of an earlier save is replaced.
    expected = embedder.predict(FIRST)["mean"]
    np.testing.assert_allclose(opened.predict(FIRST, size=4)["mean"], expected[:, :4], atol=1e-5)


def test_normalized_model_has_the_module_of_sentence_transformers(pretrained, tmp_path):
    unit = open_new(pretrained, normalize=True, pooling="cls")
    unit.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "2_Normalize").is_dir()
    pooling = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    assert not pooling["pooling_mode_mean_tokens"]
    assert load(tmp_path / "out").settings == unit.settings
    short = unit.predict(FIRST, size=4)["cls"]
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_triplets_train_the_pooled_hidden_states_but_not_the_pooler(pretrained):
    embedder = open_new(pretrained, pooling="cls")
    before = weights_of(embedder)
    triplets = pa.table({"anchor": FIRST, "positive": FIRST[::-1], "negative": SECOND})
    held_out = pa.table({"anchor": PAIRS[0], "positive": PAIRS[1]})
    names = ("anchor", "positive", "negative")
    history = embedder.fit(
        triplets, text=names, epochs=2, seed=1, validation_data=held_out, **FAST
    ).history
    assert history.keys() >= {"val_recall_at_1", "val_recall_at_5", "val_recall_at_10"}
    changed = {
        path for path, value in weights_of(embedder).items() if (value != before[path]).any()
    }
    assert changed == {path for path in before if "pooler" not in path}
    assert embedder.model.pooler.trainable


@pytest.mark.slow
def test_float16_training_moves_with_gradients_that_underflow_without_loss_scaling(pretrained):
    embedder = open_new(pretrained, dtype="mixed_float16")
    before = weights_of(embedder)
    # The gradient of the hidden states is below 6e-8, the smallest number of float16.
    loss = EmbeddingLoss("mnrl", scale=1e-6)
    options = FAST | {"weight_decay": 0.0, "epochs": 2}
    embedder.fit(PAIRS, loss=loss, gradient_accumulation_steps=2, **options)
    for path, value in weights_of(embedder).items():
        if "pooler" not in path and not path.endswith("key/bias"):
            assert np.abs(value - before[path]).max() > 1e-6, path


def test_vectors_that_exceed_the_memory_are_rejected(pretrained, monkeypatch):
    embedder = open_new(pretrained)
    needed = 4 * 2 * 3 * embedder.model.config.hidden_size  # Three texts, two vectors of each.
    free = iter([10**9, *[needed - 1] * 9])
    monkeypatch.setattr(memory, "available_memory", lambda: next(free))
    with pytest.raises(InputError, match=r"the vectors of 3 texts or windows need .* GB more, but"):
        embedder.predict(PAIRS[0])


SIZES = EmbeddingLoss("mnrl", sizes=(16, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.predict((["a"], ["b"])), "texts is a tuple of 2 items; expected a list"),
        (lambda it: it.predict(["a"], size=17), "size=17: expected a whole number from 1 to 16"),
        (lambda it: it.fit(PAIRS, loss="cosine"), "loss='cosine': expected examples with scores"),
        (lambda it: it.fit(PAIRS, [0, 1, 0], loss="mnrl"), "loss='mnrl': expected examples with"),
        (lambda it: it.fit(PAIRS, [0, 1, 0], loss="l2"), "loss='l2': expected one of mnrl, cosent"),
        (lambda it: it.fit(PAIRS, loss=SIZES, batch_size=1), "batch size 1: the loss mnrl compare"),
        (
            lambda it: it.fit(PAIRS, [0, 1, 0], loss="cosent", batch_size=1),
            "batch size 1: the loss cosent compares each pair",
        ),
        (lambda it: it.fit(PAIRS, [1] * 3, loss="cosine"), "3 scores are equal, so nothing can be"),
        (lambda it: it.fit(PAIRS, 1.0), "scores is 1.0, a float; expected a list of numbers"),
        (lambda it: it.fit(PAIRS, [1, True, 0]), r"scores\[1\] is True; expected a number"),
        (lambda it: it.fit(PAIRS, [float("nan"), 0, 1]), "item 0: the score is nan; expected from"),
        (lambda it: it.fit((["a"], [" "])), r"texts\[1\]\[0\] is ' '; expected a text"),
        (
            lambda it: it.fit(PAIRS, batch_size=3, gradient_accumulation_steps=2),
            "gradient_accumulation_steps=2: expected a divisor of batch_size=3",
        ),
        (lambda it: it.fit(PAIRS, num_frozen_layers=1), "num_frozen_layers=1: leaves no weights "),
        (lambda it: it.fit(["a", "b"]), "texts is a list of 2 items; expected a tuple of two"),
        (
            lambda it: it.fit(PAIRS, loss=EmbeddingLoss("mnrl", sizes=(32,))),
            r"sizes=\(32,\): expected different whole numbers from 1 to 16, the model's",
        ),
        (lambda it: it.evaluate((*PAIRS, PAIRS[0])), "tuple of 3 items; expected a tuple of two"),
        (lambda it: it.evaluate(([], [])), "texts: has no examples; expected at least one"),
        (lambda it: it.evaluate(PAIRS, [3, 1, 0]), "item 0: the score is 3; expected from -1 to 1"),
        (
            lambda it: it.fit(PAIRS, validation_data=(PAIRS,)),
            r"validation_data is .*; expected a tuple \(texts, scores\), with None",
        ),
        (
            lambda it: it.fit(PAIRS, validation_data=(PAIRS, [1, 2])),
            r"validation_data\[0\]\[0\] has 3 items, scores has 2 items",
        ),
        (
            lambda it: it.fit(PAIRS, validation_data=(PAIRS, [1, 1, 1])),
            "all 3 scores are equal, so Spearman's correlation is undefined",
        ),
    ],
)
def test_invalid_arguments_are_named_before_anything_changes(embedder, call, message):
    before = embedder.settings
    with pytest.raises(InputError, match=message):
        call(embedder)
    assert embedder.settings == before


def test_unknown_pooling_is_rejected(pretrained):
    with pytest.raises(InputError, match="pooling='max': expected one of mean, cls"):
        open_new(pretrained, pooling="max")
