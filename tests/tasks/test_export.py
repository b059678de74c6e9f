"""Exports: a model of each task becomes a folder that answers, with its card and its settings."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.tasks.export import ExportSettings, export, export_run

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.?"]
VOCAB += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
CONFIG = BertConfig.from_dict(
    {
        "vocab_size": len(VOCAB),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 96,
    }
)
MODELS = {
    "classification": lambda: BertClassifier(CONFIG, 2),
    "question_answering": lambda: BertSpanLabeler(CONFIG),
    "ner": lambda: BertTokenClassifier(CONFIG, 3),
    "fill_mask": lambda: BertPretrainer(CONFIG),
    "embedding": lambda: BertEncoder(CONFIG),
}
LABELS = {"classification": ["no", "yes"], "ner": ["O", "B-PER", "I-PER"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run's folder for each task."""
    root = tmp_path_factory.mktemp("runs")
    settings = {
        "classification": {"task_name": "MRPC", "max_seq_length": 40, "learning_rate": 1e-4},
        "question_answering": {"version_2_with_negative": True, "max_seq_length": 80},
    }
    results = {"question_answering": {"best_f1_thresh": -1.5, "f1": 50.0}}
    for task, make in MODELS.items():
        keras.utils.set_random_seed(0)
        save_model_directory(
            root / task / "model", make(), CONFIG, VOCAB, True, LABELS.get(task), None
        )
        run = {"settings": {"do_train": True, **settings.get(task, {})}}
        (root / task / "run.json").write_text(json.dumps(run))
        (root / task / "results.json").write_text(json.dumps(results.get(task, {"loss": 0.5})))
    return {task: root / task for task in MODELS}


@pytest.mark.parametrize("task", MODELS)
def test_each_task_is_served_as_its_run_was_trained(task: str, runs: dict, tmp_path: Path):
    folder = export(ExportSettings(str(runs[task]), str(tmp_path / "served" / "1")))
    info = json.loads((folder / "export.json").read_text())
    assert info["task"] == task
    loaded = tf.saved_model.load(str(folder))
    assert set(loaded.signatures) == set(info["signatures"]) >= {"serving_default", "token_ids"}
    for name, signature in info["signatures"].items():
        request = {
            key: tf.constant([["a", "b"]] if len(shape) == 2 else ["a b?"])
            if kind == "string"
            else tf.ones([1, 5], tf.int32)
            for key, (kind, shape) in signature["inputs"].items()
        }
        answer = loaded.signatures[name](**request)
        assert set(answer) == set(signature["outputs"])
        assert {value.shape[0] for value in answer.values()} == {1}
    card = (folder / "README.md").read_text()
    assert all(f"### `{name}`" in card for name in info["signatures"])
    assert (folder / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0
    expected = {
        "classification": {"pair": True, "max_seq_length": 40, "labels": ["no", "yes"]},
        "question_answering": {
            "max_seq_length": 80,
            "version_2": True,
            "null_score_diff_threshold": -1.5,
        },
    }
    assert expected.get(task, {}).items() <= info.items()
    if task == "classification":
        assert "`no`, `yes`" in card
        assert "| learning_rate | 0.0001 |" in card
        assert "| loss | 0.5000 |" in card


def test_a_given_setting_goes_before_the_runs(runs: dict, tmp_path: Path):
    settings = ExportSettings(
        str(runs["classification"] / "model"), str(tmp_path / "1"), max_seq_length=9, pair=False
    )
    info = json.loads((export(settings) / "export.json").read_text())
    assert (info["max_seq_length"], info["pair"]) == (9, False)
    assert list(info["signatures"]["serving_default"]["inputs"]) == ["text"]


@pytest.mark.parametrize("kind", ["onnx", "litert"])
def test_other_formats_come_with_vocabulary_card_and_settings(
    kind: str, runs: dict, tmp_path: Path
):
    pytest.importorskip({"onnx": "onnxruntime", "litert": "ai_edge_litert"}[kind])
    settings = ExportSettings(str(runs["classification"]), str(tmp_path / "1"), format=kind)
    folder = export(settings)
    name = {"onnx": "model.onnx", "litert": "model.tflite"}[kind]
    assert {path.name for path in folder.iterdir()} == {
        name,
        "vocab.txt",
        "export.json",
        "README.md",
    }
    assert (folder / "vocab.txt").read_text().splitlines() == VOCAB


def test_bfloat16_is_near_float32(runs: dict, tmp_path: Path):
    logits = []
    for version, compute_type in enumerate(("float32", "bfloat16"), 1):
        folder = tmp_path / str(version)
        export(ExportSettings(str(runs["classification"]), str(folder), compute_type=compute_type))
        serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
        texts = tf.constant(["a b c", "what?"])
        logits.append(serve(text=texts, text_pair=texts)["logits"].numpy())
    assert 0 < np.abs(logits[0] - logits[1]).max() < 0.02


@pytest.mark.parametrize(
    ("task", "how", "message"),
    [
        ("classification", {"task": "ner"}, "labels no, yes; expected tags"),
        ("embedding", {"task": "question_answering"}, "lacks weights that the task needs, span"),
        ("classification", {"max_seq_length": 97}, "from 5 to the model's 96 positions"),
        ("classification", {"int8": True}, "expected --format=onnx or litert"),
        ("fill_mask", {"top_k": 0}, "--top_k=0: expected from 1"),
        ("question_answering", {"max_seq_length": 20}, "--max_seq_length=20: expected at least"),
        ("classification", {"export_dir": "first"}, "expected a numbered version"),
    ],
)
def test_bad_input_is_one_line(task: str, how: dict, message: str, runs: dict, tmp_path: Path):
    where = tmp_path / how.pop("export_dir", "1")
    with pytest.raises(InputError, match=message) as caught:
        export(ExportSettings(str(runs[task]), str(where), **how))
    assert "\n" not in str(caught.value)
    assert not where.exists()


def test_a_run_of_several_seeds_is_exported_seed_by_seed(runs: dict, tmp_path: Path):
    for seed in (1, 2):
        shutil.copytree(runs["embedding"], tmp_path / f"seed-{seed}")
    folders = [tmp_path / f"seed-{seed}" / "export" / "1" for seed in (1, 2)]
    assert export_run(tmp_path) == folders
    before = [(folder / "saved_model.pb").stat().st_mtime_ns for folder in folders]
    assert export_run(tmp_path) == folders  # The same command again does nothing.
    assert [(folder / "saved_model.pb").stat().st_mtime_ns for folder in folders] == before


def test_a_run_that_trained_nothing_is_not_exported(tmp_path: Path):
    with pytest.raises(InputError, match="holds no model/; --export needs a run that trains one"):
        export_run(tmp_path)


def test_a_version_that_is_there_stays(runs: dict, tmp_path: Path):
    (tmp_path / "7").mkdir()
    with pytest.raises(InputError, match=r"7 is there already; expected .*8"):
        export(ExportSettings(str(runs["embedding"]), str(tmp_path / "7")))
