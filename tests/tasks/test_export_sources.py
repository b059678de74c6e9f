"""Tests the labels, pairs, lengths and outputs that an export reads from any checkpoint."""

import json
from pathlib import Path

import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.export.network import Network
from keras_bert.models import BertClassifier
from keras_bert.tasks.load import task_class
from keras_bert.tasks.model_export import export, task_settings
from keras_bert.tasks.settings import ExportOptions
from keras_bert.tasks.task import Task
from tests.other_formats import write_tf1


def opened(task: str, path: Path, **settings) -> Task:
    checkpoint = open_checkpoint(path)
    options = ExportOptions(str(path), "1", **settings)
    settings = task_settings(options, task, checkpoint)
    return task_class(task).from_checkpoint(checkpoint, **settings)


def labels_of(path: Path) -> tuple[str, list[str]]:
    described = opened("classification", path).export_entries()
    return described["problem_type"], described["labels"]


def without(path: Path, *parts: str) -> None:
    """Removes weights from a model directory."""
    weights = load_file(path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not any(p in name for p in parts)}
    assert len(kept) < len(weights)
    save_file(kept, path / "model.safetensors")


def test_given_setting_overrides_that_of_the_run(runs: dict):
    settings = opened(
        "classification", runs["classification"], max_seq_length=9, pair=False
    ).settings
    assert (settings.max_seq_length, settings.pair) == (9, False)


def test_labels_without_names_are_numbered(make_run, edit_json, tmp_path: Path):
    model = make_run(tmp_path, "classification") / "model"
    edit_json(model / "config.json", id2label=None, label2id=None)
    assert labels_of(model) == ("single_label_classification", ["LABEL_0", "LABEL_1"])
    edit_json(model / "config.json", problem_type="multi_label_classification")
    assert labels_of(model) == ("multi_label_classification", ["LABEL_0", "LABEL_1"])
    edit_json(model / "config.json", problem_type="ranking")
    with pytest.raises(InputError, match="problem_type is 'ranking'; expected one of single_label"):
        labels_of(model)


def test_single_logit_is_a_regression(vocab, make_run, edit_json, tmp_path: Path):
    config = open_checkpoint(make_run(tmp_path, "classification")).config
    save_model_directory(tmp_path / "one", BertClassifier(config, 1), vocab)
    assert labels_of(tmp_path / "one") == ("regression", [])
    edit_json(tmp_path / "one" / "config.json", id2label=None, label2id=None)
    assert labels_of(tmp_path / "one") == ("regression", [])


def test_classifiers_of_other_formats_have_numbered_labels(runs: dict, root: Path, tmp_path: Path):
    model = BertClassifier.from_pretrained(runs["classification"])
    write_tf1(tmp_path / "tf1", model, open_checkpoint(runs["classification"]).vocab)
    settings = tmp_path / "tf1" / "bert_config.json"
    config = model.config.to_dict()
    settings.write_text(json.dumps({**config, "hidden_act": "gelu"}))  # Google writes no more.
    assert labels_of(tmp_path / "tf1")[1] == ["LABEL_0", "LABEL_1"]
    folder = root / "tests" / "golden" / "keras_hub_classifier"
    assert labels_of(folder) == ("single_label_classification", ["LABEL_0", "LABEL_1", "LABEL_2"])


def test_pair_needs_two_segments(make_run, tmp_path: Path):
    for task in ("classification", "question_answering"):
        path = make_run(tmp_path / task, task, type_vocab_size=1) / "model"
        with pytest.raises(InputError, match="type_vocab_size is 1; expected at least 2"):
            opened(task, path)
    assert opened("classification", tmp_path / "classification", pair=False)


@pytest.mark.parametrize("task", ["fill_mask", "question_answering"])
def test_format_without_text_inputs_needs_no_length(task: str, make_run, tmp_path: Path):
    run = make_run(tmp_path, task, {"max_seq_length": 3})
    assert opened(task, run, format="onnx")
    with pytest.raises(InputError, match="max_seq_length=3: expected"):
        opened(task, run)


def test_encoder_without_a_pooler_gives_no_pooled_vector(make_run, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    model = make_run(tmp_path, "embedding") / "model"
    without(model, "pooler")
    embedder = opened("embedding", model)
    served = embedder.served_class(Network(embedder.model), embedder.processor)
    found = served.run("serving_default", tf.constant(["a b"]))
    assert set(found) == {"cls", "mean", "truncated", "num_tokens"}
    folder = export(ExportOptions(str(model), str(tmp_path / "1"), format="onnx"))
    signatures = json.loads((folder / "export.json").read_text())["signatures"]
    assert set(signatures["serving_default"]["outputs"]) == {"sequence_output"}


@pytest.mark.slow
def test_masked_lm_alone_gives_no_next_sentence_logits(make_run, tmp_path: Path):
    model = make_run(tmp_path, "fill_mask") / "model"
    without(model, "seq_relationship", "pooler")
    folder = export(ExportOptions(str(model), str(tmp_path / "1"), format="onnx"))
    signatures = json.loads((folder / "export.json").read_text())["signatures"]
    assert set(signatures["serving_default"]["outputs"]) == {"masked_lm_logits"}
    session = pytest.importorskip("onnxruntime").InferenceSession(folder / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["masked_lm_logits"]
