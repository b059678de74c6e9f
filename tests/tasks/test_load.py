"""Tests that load returns the task object of a model directory, run folder or export."""

import json
import re
import shutil

import pytest

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.tasks import CLASSES
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller
from keras_bert.tasks.load import load
from tests.other_formats import write_tf1


def edited(pretrained, folder, **settings):
    """Copies a model directory and changes its config."""
    shutil.copytree(pretrained, folder)
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("BertForPreTraining", MaskFiller),
        ("BertForMaskedLM", MaskFiller),
        ("BertModel", TextEmbedder),
    ],
)
def test_class_is_determined_by_the_heads(pretrained, architecture, expected, tmp_path):
    folder = edited(pretrained, tmp_path / "model", architectures=[architecture])
    assert type(load(folder)) is expected
    assert type(load(str(folder))) is expected


def test_run_folder_is_opened_as_its_model(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text('{"settings": {"max_seq_length": 12}}')
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        assert load(path).settings.max_seq_length == 12


def test_saved_settings_override_those_of_the_run(pretrained, tmp_path):
    MaskFiller.from_pretrained(pretrained, 9, top_k=2).save_pretrained(tmp_path / "model")
    (tmp_path / "run.json").write_text('{"settings": {"max_seq_length": 12}}')
    settings = load(tmp_path / "model").settings
    assert (settings.max_seq_length, settings.top_k) == (9, 2)


def test_saved_setting_of_another_type_is_named(pretrained, tmp_path):
    folder = edited(pretrained, tmp_path / "model", keras_bert={"max_seq_length": "9"})
    with pytest.raises(InputError, match=r"config\.json: max_seq_length is '9'; expected a whole"):
        load(folder)


def test_checkpoint_without_head_names_needs_its_class(pretrained, tmp_path):
    folder = edited(pretrained, tmp_path / "model", architectures=None)
    message = r"has no known task head \(architecture None\); load it with the class of its task, s"
    with pytest.raises(InputError, match=message):
        load(folder)
    assert TextClassifier.from_pretrained(folder, labels=["a", "b"]).untrained


def test_class_of_a_google_checkpoint_is_determined_by_its_weights(pretrained, tmp_path):
    model = BertPretrainer.from_pretrained(pretrained)
    write_tf1(tmp_path / "tf1", model, open_checkpoint(pretrained).vocab)
    assert type(load(tmp_path / "tf1")) is MaskFiller


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "onnxruntime"}, r"engine='onnxruntime', .* found a model directory"),
        ({"precision": "bfloat16"}, "precision='bfloat16': found a model directory"),
        ({"engine": "pytorch"}, "engine='pytorch': expected one of tensorflow"),
    ],
)
def test_engine_of_a_model_directory_is_rejected(pretrained, arguments, message):
    with pytest.raises(InputError, match=message):
        load(pretrained, **arguments)


@pytest.mark.parametrize(
    "info", [{"format": "onnx", "task": "ner"}, {"format": "saved_model", "task": "chat"}, {}]
)
def test_export_that_python_cannot_call_is_named(info, tmp_path):
    (tmp_path / "export.json").write_text(json.dumps(info))
    with pytest.raises(
        InputError, match=r"export\.json: found task .* and format .*; expected one of the tasks"
    ):
        load(tmp_path)


# --- help for users ---


@pytest.mark.parametrize("task", CLASSES)
def test_object_shows_its_model_and_its_public_names(runs, root, task):
    task_object = load(runs[task])
    count = f"{task_object.model.count_params():,}"
    shown = repr(task_object)
    assert shown.startswith(f"<{CLASSES[task][1]} task={task}, model=Bert")
    assert f"(layers=1, hidden_size=16, parameters={count}), " in shown
    labels = [*task_object.label_names]
    assert (f"labels={labels}, " in shown) == bool(labels)
    assert shown.endswith(f"max_seq_length={task_object.settings.max_seq_length}>")
    names = {name for name in dir(task_object) if not name.startswith("_")}
    assert len(names) <= 15
    pages = (page.read_text() for page in (root / "docs/reference/api").glob("*.md"))
    page = next(page for page in pages if f"heading: keras_bert.{CLASSES[task][1]}\n" in page)
    members = {*re.search(r"members: \[(.*)\]", page)[1].split(", ")}
    assert names == {*members, "settings", "tokenizer"}
    assert all(hasattr(task_object, name) for name in names)
    assert "Example:" in type(task_object).fit.__doc__
