"""Texts with more tokens than the window: the mean over windows, in every way to predict."""

import numpy as np
import pytest

from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.load import load
from keras_bert.tasks.text_processor import LongText

SHORT = ["good film .", "", "bad"]
LONG = "good bad book film it is a very good film . " * 2 + "bad"
TEXTS = [SHORT[0], LONG, *SHORT[1:]]
NAMES = ("cls", "mean", "pooled")


@pytest.fixture
def embedder(pretrained):
    return TextEmbedder.from_pretrained(pretrained, max_seq_length=10)


@pytest.mark.parametrize(("stride", "normalize"), [(3, False), (8, True)])
def test_vectors_of_windows_are_averaged_before_they_are_normalized(pretrained, stride, normalize):
    words = LONG.split()
    starts = range(0, len(words) - 8 + stride, stride)
    parts = [" ".join(words[start : start + 8]) for start in starts]
    each = TextEmbedder.from_pretrained(pretrained, 10).predict(parts)
    embedder = TextEmbedder.from_pretrained(pretrained, 10, normalize)
    embedder.set_long_text("windows", stride)
    found = embedder.predict(TEXTS)
    for name in NAMES:
        expected = each[name].mean(axis=0)
        if normalize:
            expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(found[name][1], expected, atol=1e-5)
    assert found["num_tokens"].tolist() == [5, each["num_tokens"].sum(), 2, 3]
    assert not found["truncated"].any()


@pytest.mark.slow
def test_fit_and_evaluate_accept_long_texts(embedder):
    """With windows, the end of a text counts; both texts of a pair start with the same words."""
    texts = [f"{'it is a film . ' * 3}{'good ' * 7}", f"{'it is a film . ' * 3}{'bad ' * 7}"]
    pairs = ([*texts, "good " * 9, "bad " * 9], [*texts, "good " * 9, "bad " * 9])
    before = embedder.evaluate(pairs)["recall_at_1"]
    embedder.set_long_text("windows")
    assert embedder.evaluate(pairs)["recall_at_1"] == 1.0 > before
    history = embedder.fit(pairs, batch_size=4, epochs=1, verbose=0, jit_compile=False)
    assert np.isfinite(history.history["loss"]).all()
    assert embedder.settings.long_text == LongText("windows")


@pytest.mark.slow
@pytest.mark.parametrize("way", [("head_tail", 0), ("windows", 3)])
def test_saved_and_exported_models_give_the_same_vectors(embedder, tmp_path, way):
    embedder.set_long_text(*way)
    expected = embedder.predict(TEXTS)
    embedder.save_pretrained(tmp_path / "model")
    saved = TextEmbedder.from_pretrained(tmp_path / "model")
    engines = ["onnxruntime"] if way == ("windows", 3) else []
    saved.export(tmp_path / "1", engines=engines)
    for other in (saved, *(load(tmp_path / "1", engine=name) for name in ("tensorflow", *engines))):
        assert other.settings == embedder.settings
        found = other.predict(TEXTS, batch_size=2)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)
