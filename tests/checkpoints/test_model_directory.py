"""Model directories, ours and Hugging Face's: atomic saves, weights, and one-line errors."""

import json
import os
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints import hugging_face
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.text.settings import TokenizerSettings
from tests.checkpoints.conftest import check_rejected, edit

KERNEL = "bert.encoder.layer.1.output.dense.weight"
NEW_CLASSIFIER = ("classifier/kernel", "classifier/bias")
NEW_POOLER = ("encoder/pooler/dense/kernel", "encoder/pooler/dense/bias")


@pytest.fixture(scope="module")
def pretrainer(tiny):
    return tiny.make("pretrainer", replace(tiny.config, hidden_act="gelu_tanh"))


@pytest.fixture
def path(tiny, pretrainer, tmp_path):
    """Saves a pre-trained model as a model directory."""
    save_model_directory(tmp_path / "model", pretrainer, tiny.vocab, TokenizerSettings(False))
    return tmp_path / "model"


def load(path, network=BertPretrainer):
    """Returns a network with the weights of a directory, and the report."""
    checkpoint = open_checkpoint(path)
    model = network(checkpoint.config)
    return model, checkpoint.load_into(model)


def classifier(config):
    return BertClassifier(config, 2)


def same_weights(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))


def rewrite(path, change):
    """Applies a function to the weights of a directory and rewrites them."""
    weights = change(load_file(path / "model.safetensors"))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


# --- saving ---


def test_has_the_files_and_the_config_that_transformers_needs(path):
    tokenizer_files = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    names = ["config.json", "model.safetensors", *tokenizer_files]
    assert sorted(os.listdir(path)) == names
    assert len({(path / name).stat().st_mode for name in names}) == 1  # All have equal permissions.
    config = json.loads((path / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["model_type"] == "bert"
    assert config["hidden_act"] == "gelu_new"  # transformers has no gelu_tanh.
    assert config["layer_norm_eps"] == 1e-12
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] is False
    assert tokenizer["model_max_length"] == 16


def test_labels_problem_type_and_other_entries_are_restored(tiny, tmp_path):
    labels = ["contradiction", "entailment", "neutral"]
    save_model_directory(
        tmp_path / "m",
        BertClassifier(tiny.config, 3),
        labels=labels,
        problem_type="single_label_classification",
        extra={"finetuning_task": "mnli"},
    )
    checkpoint = open_checkpoint(tmp_path / "m")
    assert checkpoint.labels == labels
    assert checkpoint.problem_type == "single_label_classification"
    assert checkpoint.architecture == "BertForSequenceClassification"
    assert checkpoint.settings["finetuning_task"] == "mnli"
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}
    assert config["label2id"] == {"contradiction": 0, "entailment": 1, "neutral": 2}
    # transformers gives these names to labels without one.
    edit(tmp_path / "m" / "config.json", id2label={"0": "no", "3": "yes"})
    assert open_checkpoint(tmp_path / "m").labels == ["no", "LABEL_1", "LABEL_2", "yes"]


@pytest.mark.parametrize("rate", [0.5, None])
def test_classifier_dropout_replaces_hidden_dropout_prob_in_the_head(tiny, tmp_path, rate):
    config = replace(tiny.config, hidden_dropout_prob=0.2, num_hidden_layers=1)
    save_model_directory(tmp_path / "m", BertClassifier(config, 2))
    edit(tmp_path / "m" / "config.json", classifier_dropout=rate)
    model = BertClassifier.from_pretrained(tmp_path / "m")
    assert model.dropout.rate == (0.2 if rate is None else rate)
    save_model_directory(tmp_path / "again", model)
    assert open_checkpoint(tmp_path / "again").settings.get("classifier_dropout") == rate


@pytest.mark.parametrize("kind", [OSError, SafetensorError])
def test_failed_save_keeps_the_earlier_files(path, pretrainer, monkeypatch, kind):
    before = {name: (path / name).read_bytes() for name in os.listdir(path)}

    def fail(*_, **__):
        raise kind("No space left")

    monkeypatch.setattr(hugging_face, "save_file", fail)
    with pytest.raises(InputError, match=r"model: cannot be written.*No space left"):
        save_model_directory(path, pretrainer)
    assert {name: (path / name).read_bytes() for name in os.listdir(path)} == before
    assert os.listdir(path.parent) == ["model"]


# --- files of other libraries ---


def as_of_2018(weights):
    names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    names = (*names, ("predictions.bias", "predictions.decoder.bias"))
    for current, older in names:
        weights = {name.replace(current, older): value for name, value in weights.items()}
    return weights


def with_decoder(weights, offset=0.0):
    table = weights["bert.embeddings.word_embeddings.weight"]
    return weights | {"cls.predictions.decoder.weight": table + np.float32(offset)}


def test_older_and_tied_names_load(path, pretrainer):
    rewrite(path, lambda weights: as_of_2018(with_decoder(weights)))
    model, report = load(path)
    assert same_weights(model, pretrainer)
    assert (report.new, report.ignored) == ((), ())


def test_untied_masked_lm_head_is_rejected(path):
    rewrite(path, lambda weights: with_decoder(weights, 0.5))
    with pytest.raises(InputError, match="differs from the word embeddings"):
        load(path)
    load(path, classifier)


def test_parts_that_the_file_lacks_are_newly_initialized_and_other_parts_ignored(path, pretrainer):
    model, report = load(path, classifier)
    assert same_weights(model.encoder, pretrainer.encoder)
    assert report.new == NEW_CLASSIFIER
    assert "cls.predictions.bias" in report.ignored
    assert "cls.seq_relationship.weight" in str(report)
    rewrite(path, lambda w: {n: v for n, v in w.items() if "pooler" not in n})
    assert load(path)[1].new == NEW_POOLER
    rewrite(path, lambda w: {n[5:]: v for n, v in w.items() if n.startswith("bert.")})
    model, report = load(path)  # Without heads, names have no prefix.
    assert np.array_equal(model.encoder.weights[5], pretrainer.encoder.weights[5])
    assert len(report.new) == 2 + 7
    assert "newly initialized: encoder/pooler/" in str(report)
    assert np.abs(np.asarray(model.next_sentence.kernel)).max() <= 0.04


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files_load_as_float32(path, pretrainer, dtype):
    rewrite(path, lambda w: {name: value.astype(dtype) for name, value in w.items()})
    for a, b in zip(load(path)[0].weights, pretrainer.weights, strict=True):
        assert a.dtype == "float32"
        assert np.array_equal(a, np.asarray(b).astype(dtype).astype(np.float32))


def test_missing_and_unexpected_weights_are_listed(path, pretrainer):
    lost = {
        "bert.encoder.layer.1.output.dense.bias",
        "bert.embeddings.position_embeddings.weight",
        "cls.predictions.transform.dense.weight",
    }
    extra = {
        "bert.encoder.layer.2.output.dense.bias": np.zeros(8, np.float32),
        "bert.encoder.layer.0.crossattention.self.key.bias": np.zeros(8, np.float32),
    }
    rewrite(path, lambda weights: weights | {"bert.embeddings.position_ids": np.arange(16)})
    assert load(path)[1].ignored == ("bert.embeddings.position_ids",)
    rewrite(path, lambda weights: {n: v for n, v in weights.items() if n not in lost} | extra)
    problems = [f"{name} is missing" for name in lost] + [f"{name} is not in" for name in extra]
    check_rejected(path, pretrainer, *problems, "^((?!position_ids).)*$")


def test_all_shape_mismatches_are_listed_and_no_weight_is_loaded(path, tiny):
    config = replace(tiny.config, intermediate_size=20, max_position_embeddings=32)
    check_rejected(
        path,
        BertPretrainer(config),
        r"position_embeddings\.weight has shape \[16, 8\], expected \[32, 8\]",
        r"layer\.0\.intermediate\.dense\.weight has shape \[12, 8\], expected \[20, 8\]",
        r"layer\.1\.output\.dense\.weight has shape \[8, 12\], expected \[8, 20\]",
    )


# --- damaged files ---


def test_shards_load_like_one_file_and_damaged_ones_are_rejected(path, pretrainer):
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = [*weights]
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, path / file)
    index = path / "model.safetensors.index.json"
    where = {name: file for file, part in shards.items() for name in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    assert same_weights(load(path)[0], pretrainer)
    save_file({name: weights[name] for name in names[3::2]}, path / "b.safetensors")
    with pytest.raises(InputError, match=f"contain different weights: .*{names[1]}"):
        load(path)
    (path / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors: not a valid .*No such file"):
        load(path)
    for content in ({}, {"weight_map": []}, {"weight_map": {names[0]: "../a.safetensors"}}):
        index.write_text(json.dumps(content))
        with pytest.raises(InputError, match="expected a weight_map"):
            load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.astype(np.int8), r"safetensors: .*\.weight has type int8; expected one of f"),
        (lambda w: w.astype(np.complex64), "has type complex64"),
        (lambda w: np.where(w == w.flat[5], np.nan, w), "1 of the 96 values of .* inf or NaN"),
        (lambda w: np.full(w.shape, 1e300), "96 of the 96 values"),
    ],
)
def test_weights_must_be_finite_floats(path, pretrainer, change, message):
    rewrite(path, lambda weights: weights | {KERNEL: change(weights[KERNEL])})
    check_rejected(path, pretrainer, message)


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_truncated_weights_file_is_rejected(path, pretrainer, size):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:size])
    check_rejected(path, pretrainer, "not a valid safetensors file")


def test_directory_without_weights_is_rejected(path):
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no model\.safetensors; expected a model directory$"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("id2label", "x", "id2label is 'x'; expected an object"),
        ("id2label", {"0": "a", "1000000": "b"}, "id2label is"),
        ("architectures", 3, "architectures is 3; expected a list"),
        ("hidden_act", 5, "hidden_act is 5; expected one of gelu"),
    ],
)
def test_settings_of_a_wrong_type_are_rejected(path, key, value, message):
    edit(path / "config.json", **{key: value})
    with pytest.raises(InputError, match=rf"config\.json: {message}"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickle_is_rejected_with_the_way_to_convert_it(path, name):
    (path / "model.safetensors").rename(path / name)
    with pytest.raises(InputError, match=rf"{name}, a pickle.*save_pretrained"):
        open_checkpoint(path)


@pytest.mark.slow
def test_transformers_loads_our_directory_with_the_same_outputs(tmp_path, tiny, run_in_peers):
    inputs = {
        "input_ids": np.array([[2, 5, 6, 7, 3], [2, 10, 3, 0, 0]], np.int32),
        "input_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32),
        "segment_ids": np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], np.int32),
        "masked_lm_positions": np.array([[1, 3], [1, 0]], np.int32),
    }
    pairs = []
    for hidden_act in ("gelu", "gelu_tanh", "relu"):
        model = tiny.make("pretrainer", replace(tiny.config, hidden_act=hidden_act))
        pairs += [tmp_path / hidden_act, tmp_path / f"{hidden_act}.npz"]
        save_model_directory(pairs[-2], model, tiny.vocab)
        outputs = {**model.encoder(inputs), **model(inputs)}
        np.savez(
            pairs[-1],
            **inputs,
            **{name: np.asarray(value) for name, value in outputs.items()},
            text=["All work ÉE", "caf [MASK] zzz"],
            token_ids=["2 5 6 1 3", "2 15 4 1 3"],
        )
    run_in_peers("../check_transformers_opens.py", *pairs)
