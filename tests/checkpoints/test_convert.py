"""Conversions: bit-exact from all formats; weights missing from the source stay missing."""

import os
import resource
from dataclasses import replace

import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier
from keras_bert.text.settings import TokenizerSettings
from tests.other_formats import WRITERS

KINDS = ("encoder", "pretrainer", "classifier", "token_classifier", "span_labeler")


@pytest.fixture(scope="module")
def encoder(tiny, tmp_path_factory):
    """Saves an encoder."""
    path = tmp_path_factory.mktemp("encoder") / "a"
    save_model_directory(path, tiny.make("encoder"), tiny.vocab)
    return path


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tiny, tmp_path_factory):
    """Saves a model of each kind with every setting that a directory can hold."""
    model = tiny.make(request.param)
    labels = [f"label {index}" for index in range(getattr(model, "num_labels", 0))]
    path = tmp_path_factory.mktemp(request.param) / "saved"
    description = {
        "vocab": tiny.vocab,
        "tokenizer_settings": TokenizerSettings(False),
        "labels": labels,
        "problem_type": "multi_label_classification" if labels else None,
        "extra": {"task_specific_params": {"threshold": 0.5}},
    }
    save_model_directory(path, model, **description)
    return path, model, description


@pytest.mark.parametrize("form", ["hugging_face", "tf1"])
def test_conversion_is_bit_exact(saved, form, tmp_path):
    path, model, description = saved
    WRITERS[form](tmp_path / "source", model, **description)
    report = convert(tmp_path / "source", tmp_path / "target")
    assert (report.new, report.ignored) == ((), ())
    for file in path.iterdir():
        if file.name == "config.json":  # The order of its keys may differ.
            opened = open_checkpoint(tmp_path / "target")
            assert opened.settings == open_checkpoint(path).settings
        else:
            assert (tmp_path / "target" / file.name).read_bytes() == file.read_bytes(), file.name


def test_heads_missing_from_the_source_are_not_written(tiny, tmp_path):
    save_model_directory(tmp_path / "a", tiny.make("pretrainer"), tiny.vocab)
    weights = load_file(tmp_path / "a" / "model.safetensors")
    weights = {n: v for n, v in weights.items() if "seq_rel" not in n and "pooler" not in n}
    save_file(weights, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    report = convert(tmp_path / "a", tmp_path / "b")
    assert report.new == (
        "encoder/pooler/dense/kernel",
        "encoder/pooler/dense/bias",
        "next_sentence/kernel",
        "next_sentence/bias",
    )
    assert load_file(tmp_path / "b" / "model.safetensors").keys() == weights.keys()
    assert open_checkpoint(tmp_path / "b").architecture == "BertForMaskedLM"


def test_conversion_without_heads_allows_a_new_task(tiny, tmp_path):
    save_model_directory(tmp_path / "a", tiny.make("classifier"), tiny.vocab)
    model = BertClassifier(tiny.config, 2)
    with pytest.raises(InputError, match=r"classifier\.weight has shape \[3, 8\], expected \[2, 8"):
        open_checkpoint(tmp_path / "a").load_into(model)
    report = convert(tmp_path / "a", tmp_path / "b", heads=False)
    assert report.ignored == ("classifier.bias", "classifier.weight")
    opened = open_checkpoint(tmp_path / "b")
    assert (opened.architecture, opened.labels) == ("BertModel", None)
    assert opened.load_into(model).new == ("classifier/kernel", "classifier/bias")


def test_only_earlier_output_is_replaced(encoder, tmp_path):
    convert(encoder, tmp_path / "b")
    convert(encoder, tmp_path / "b")
    (tmp_path / "b" / "thesis.txt").write_text("all my work")
    with pytest.raises(InputError, match=r"contains thesis\.txt"):
        convert(encoder, tmp_path / "b")
    with pytest.raises(InputError, match="is both source and target"):
        convert(encoder, encoder)
    with pytest.raises(InputError, match="is inside the source"):
        convert(encoder, encoder / "new")
    assert os.listdir(tmp_path) == ["b"]


def test_full_disk_raises_input_error_and_leaves_no_files(encoder, tmp_path):
    """Simulates a full disk with a limit on the file size that only the weights exceed."""
    sizes = sorted(path.stat().st_size for path in encoder.rglob("*"))
    assert sizes[-2] < sizes[-1] - 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[-1] - 1, before[1]))
    try:
        with pytest.raises(InputError, match=r"(?s)/b: cannot be written \(.*File too large"):
            convert(encoder, tmp_path / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", ["hugging_face", "tf1"])
def test_left_to_right_model_stays_one(tiny, tmp_path, form):
    config = replace(tiny.config, is_decoder=True)
    model = tiny.make("pretrainer", config)
    WRITERS[form](tmp_path / "a", model, tiny.vocab)
    convert(tmp_path / "a", tmp_path / "b")
    assert open_checkpoint(tmp_path / "b").config.is_decoder


def test_program_prints_a_report_and_one_line_errors(encoder, tmp_path, run_program):
    done = run_program("convert.py", str(encoder), str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{encoder}/model.safetensors: 39 weights loaded"
    assert second == f"{tmp_path}/b: written"
    done = run_program("convert.py", str(encoder))
    assert done.returncode == 1
    assert "expected two arguments, SRC and DST" in done.stderr.splitlines()[-1]
