"""Tests reading lengths, pooling and normalization from the files of sentence-transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_bert.checkpoints.sentence_transformers import SentenceTransformer
from keras_bert.common.errors import InputError

MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]


def sentence_transformer(folder: Path, modules: list, pooling: dict) -> SentenceTransformer:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1_Pooling").mkdir(parents=True)
    listed = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return SentenceTransformer.of(folder)


def test_pooling_and_normalization_are_those_of_the_modules(tmp_path: Path):
    older = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    of_both = SentenceTransformer(None, "cls", True)
    assert sentence_transformer(tmp_path / "a", MODULES, older) == of_both
    assert sentence_transformer(tmp_path / "a", MODULES, {"pooling_mode": "cls"}) == of_both
    plain = sentence_transformer(tmp_path / "a", MODULES[:2], {"pooling_mode": ["mean"]})
    assert plain == SentenceTransformer(None, "mean", False)
    assert SentenceTransformer.of(tmp_path) == SentenceTransformer()


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (MODULES, {"pooling_mode": "max"}, "skipped unsupported pooling: max"),
        (MODULES, {"pooling_mode": ["cls", "mean"]}, "skipped unsupported pooling: cls, mean"),
        (
            [*MODULES, ("3_Dense", "Dense")],
            {"pooling_mode": "mean"},
            "skipped unsupported modules: Dense",
        ),
    ],
)
def test_unsupported_modules_are_reported(modules, pooling, message, tmp_path: Path, caplog):
    assert sentence_transformer(tmp_path / "a", modules, pooling).pooling is None
    assert message in caplog.text


def test_length_is_read_from_the_sentence_bert_config(tmp_path: Path):
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert SentenceTransformer.of(tmp_path).max_seq_length == 256
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "256"}')
    with pytest.raises(InputError, match=r"max_seq_length is '256'; expected a whole number"):
        SentenceTransformer.of(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"type": "Pooling"}]', "5"])
def test_invalid_list_of_modules_is_named(content: str, tmp_path: Path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(InputError, match=r"modules\.json: cannot be read; expected .* list"):
        SentenceTransformer.of(tmp_path)


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b"])
def test_modules_outside_of_the_model_are_rejected(path: str, tmp_path: Path):
    modules = [{"type": "sentence_transformers.models.Pooling", "path": path}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=f"the path '{path}'; expected a folder in that of the"):
        SentenceTransformer.of(tmp_path)


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", False), ("cls", True)])
def test_trained_model_has_the_same_vectors_in_sentence_transformers(
    pooling, normalize, pretrained, run_in_peers, tmp_path: Path
):
    from keras_bert.tasks.embedding.text_embedder import TextEmbedder

    embedder = TextEmbedder.from_pretrained(pretrained, 16, normalize, pooling=pooling)
    pairs = (["good film", "bad film", "a book"], ["a good book .", "it is bad", "books"])
    embedder.fit(pairs, epochs=2, batch_size=3, learning_rate=1e-2, verbose=0)
    embedder.save_pretrained(tmp_path / "out")
    texts = ["the film is good.", "", f"{'very ' * 40}good", "a Book"]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    script = "embed_sentence_transformers.py"
    run_in_peers(script, tmp_path / "out", tmp_path / "texts.json", tmp_path / "vectors.npz")
    theirs = np.load(tmp_path / "vectors.npz")["directory"]
    np.testing.assert_allclose(embedder.predict(texts)[pooling], theirs, atol=1e-5)
