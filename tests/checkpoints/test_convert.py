"""Conversions: bit-exact between all formats; weights missing from the source stay missing."""

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.conversion import WRITERS, Changes, convert
from keras_bert.checkpoints.model_description import ModelDescription
from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.common.errors import InputError
from keras_bert.models import BertClassifier
from keras_bert.models.encoder import BertEncoder
from keras_bert.text.settings import TokenizerSettings

KINDS = ("encoder", "pretrainer", "classifier", "token_classifier", "span_labeler")


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tiny, tmp_path_factory):
    """Saves a model of each kind with every setting that a directory can hold."""
    model = tiny.make(request.param)
    labels = [f"label {index}" for index in range(getattr(model, "num_labels", 0))]
    path = tmp_path_factory.mktemp(request.param) / "saved"
    save_model_directory(
        path,
        model,
        ModelDescription(
            tiny.config,
            tiny.vocab,
            TokenizerSettings(False),
            labels=labels,
            problem_type="multi_label_classification" if labels else None,
            extra={"task_specific_params": {"threshold": 0.5}},
        ),
    )
    return path


@pytest.mark.slow
def test_round_trips_between_all_formats_are_bit_exact(saved, tmp_path):
    path = saved
    # Converts from each format to each other format.
    route = ("tf1", "keras_hub", "hugging_face", "keras_hub", "tf1", "hugging_face")
    for step, to in enumerate(route):
        report = convert(path, tmp_path / str(step), to)
        assert (report.new, report.ignored) == ((), ())
        path = tmp_path / str(step)
    for file in saved.iterdir():
        if file.name == "config.json":  # The order of its keys may differ.
            assert open_checkpoint(path).settings == open_checkpoint(saved).settings
        else:
            assert (path / file.name).read_bytes() == file.read_bytes(), file.name


def test_public_checkpoint_round_trip_is_bit_exact(shared_data, tmp_path):
    source = shared_data / "checkpoints" / "keras_bert_test_checkpoint"
    convert(source, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b", "keras_hub")
    convert(tmp_path / "b", tmp_path / "c", "tf1")
    before, after = (
        tf.train.load_checkpoint(str(path / "bert_model.ckpt")) for path in (source, tmp_path / "c")
    )
    names = set(after.get_variable_to_shape_map())
    everything = set(before.get_variable_to_shape_map())
    assert {name for name in everything - names if "adam" not in name} == {"global_step"}
    assert names < everything
    for name in names:
        assert before.get_tensor(name).tobytes() == after.get_tensor(name).tobytes()


def test_heads_missing_from_the_source_are_not_written(tiny, tmp_path):
    save_model_directory(
        tmp_path / "a", tiny.make("pretrainer"), ModelDescription(tiny.config, tiny.vocab)
    )
    weights = load_file(tmp_path / "a" / "model.safetensors")
    kept = {n: v for n, v in weights.items() if "seq_relationship" not in n and "pooler" not in n}
    save_file(kept, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    report = convert(tmp_path / "a", tmp_path / "b", "tf1")
    assert report.new == (
        "encoder/pooler/dense/kernel",
        "encoder/pooler/dense/bias",
        "next_sentence/kernel",
        "next_sentence/bias",
    )
    convert(tmp_path / "b", tmp_path / "c")
    found = load_file(tmp_path / "c" / "model.safetensors")
    assert found.keys() == kept.keys()
    assert open_checkpoint(tmp_path / "c").architecture == "BertForMaskedLM"
    with pytest.raises(InputError, match="the weights have no pooler; expected one"):
        convert(tmp_path / "b", tmp_path / "d", "keras_hub")
    assert not (tmp_path / "d").exists()


def test_conversion_without_heads_allows_a_new_task(tiny, tmp_path):
    save_model_directory(
        tmp_path / "a", tiny.make("classifier"), ModelDescription(tiny.config, tiny.vocab)
    )
    model = BertClassifier(tiny.config, 2)
    with pytest.raises(InputError, match=r"classifier\.weight has shape \[3, 8\], expected \[2, 8"):
        open_checkpoint(tmp_path / "a").load_into(model)
    report = convert(tmp_path / "a", tmp_path / "b", changes=Changes(heads=False))
    assert report.ignored == ("classifier.bias", "classifier.weight")
    opened = open_checkpoint(tmp_path / "b")
    assert (opened.architecture, opened.labels) == ("BertModel", None)
    assert opened.load_into(model).new == ("classifier/kernel", "classifier/bias")


def test_do_lower_case_can_be_corrected(tiny, tmp_path):
    save_model_directory(
        tmp_path / "a", tiny.make("encoder"), ModelDescription(tiny.config, tiny.vocab)
    )
    convert(
        tmp_path / "a", tmp_path / "b", "tf1", changes=Changes(tokenizer={"do_lower_case": False})
    )
    assert not open_checkpoint(tmp_path / "b").do_lower_case


@pytest.mark.parametrize("to", list(WRITERS))
def test_only_earlier_output_is_replaced(tiny, tmp_path, to):
    save_model_directory(
        tmp_path / "a", tiny.make("encoder"), ModelDescription(tiny.config, tiny.vocab)
    )
    convert(tmp_path / "a", tmp_path / "b", to)
    convert(tmp_path / "a", tmp_path / "b", to)
    (tmp_path / "b" / "thesis.txt").write_text("all my work")
    with pytest.raises(InputError, match=r"contains thesis\.txt"):
        convert(tmp_path / "a", tmp_path / "b", to)
    with pytest.raises(InputError, match="is both source and target"):
        convert(tmp_path / "a", tmp_path / "a", to)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("to", list(WRITERS))
def test_full_disk_raises_input_error_and_leaves_no_files(tiny, tmp_path, to):
    """Simulates a full disk with a limit on the file size that only the weights exceed."""
    save_model_directory(
        tmp_path / "a", tiny.make("encoder"), ModelDescription(tiny.config, tiny.vocab)
    )
    convert(tmp_path / "a", tmp_path / "b", to)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "b").rglob("*"))
    shutil.rmtree(tmp_path / "b")
    assert sizes[-2] < sizes[-1] - 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[-1] - 1, before[1]))
    try:
        with pytest.raises(InputError, match=r"(?s)/b: cannot be written \(.*File too large"):
            convert(tmp_path / "a", tmp_path / "b", to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("to", list(WRITERS))
def test_conversion_to_a_full_disk_keeps_the_earlier_one(tiny, tmp_path, small_disk, to):
    save_model_directory(
        tmp_path / "a", tiny.make("encoder"), ModelDescription(tiny.config, tiny.vocab)
    )
    target = small_disk.path / "b"
    convert(tmp_path / "a", target, to)
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    size = sum(map(len, before.values()))
    for free in (0, size // 2):  # Nothing can be written, or only some of the files.
        small_disk.fill(free)
        with pytest.raises(InputError, match=r"(?s)\bb\b.*: cannot be written \(.*[Nn]o space"):
            convert(tmp_path / "a", target, to)
        assert os.listdir(small_disk.path) == ["b"]
        assert {path: path.read_bytes() for path in before} == before
        small_disk.release()
    convert(tmp_path / "a", target, to)


def test_differences_in_other_libraries_are_logged(tiny, tmp_path, caplog):
    config = type(tiny.config)(**tiny.config.to_dict() | {"hidden_act": "gelu"})
    save_model_directory(
        tmp_path / "a", tiny.make("encoder", config), ModelDescription(config, tiny.vocab)
    )
    convert(tmp_path / "a", tmp_path / "b")
    assert "tanh form" not in caplog.text
    convert(tmp_path / "a", tmp_path / "c", "tf1")
    assert "hidden_act is gelu, but Google's code computes the tanh approximation" in caplog.text


def test_every_format_keeps_a_left_to_right_model(tiny, tmp_path, caplog):
    config = replace(tiny.config, is_decoder=True)
    model = tiny.make("pretrainer", config)
    save_model_directory(tmp_path / "a", model, ModelDescription(config, tiny.vocab))
    weights = load_file(tmp_path / "a" / "model.safetensors")
    kept = {name: v for name, v in weights.items() if "seq_relationship" not in name}
    save_file(kept, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    for source, target, to in (("a", "b", "tf1"), ("b", "c", "keras_hub")):
        convert(tmp_path / source, tmp_path / target, to)
        assert open_checkpoint(tmp_path / target).config.is_decoder
    assert "is_decoder is true, but KerasHub attends to the tokens on both sides" in caplog.text
    convert(tmp_path / "c", tmp_path / "d")
    opened = open_checkpoint(tmp_path / "d")
    assert (opened.config.is_decoder, opened.architecture) == (True, "BertLMHeadModel")


@pytest.mark.slow
def test_program_prints_a_report_and_one_line_errors(tiny, tmp_path):
    save_model_directory(
        tmp_path / "a", tiny.make("encoder"), ModelDescription(tiny.config, tiny.vocab)
    )
    command = [sys.executable, "-m", "keras_bert.checkpoints.convert", tmp_path / "a"]
    done = subprocess.run([*command, tmp_path / "b", "--to=tf1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/a/model.safetensors: 39 weights loaded"
    assert second == f"{tmp_path}/b: written in format tf1"
    encoder = BertEncoder(tiny.config)
    open_checkpoint(tmp_path / "b").load_into(encoder)
    assert np.array_equal(encoder.weights[0], tiny.make("encoder").weights[0])
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "expected two arguments, SRC and DST" in done.stderr.splitlines()[-1]
