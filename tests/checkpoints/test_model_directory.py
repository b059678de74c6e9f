"""Model directories, ours and Hugging Face's: atomic saves, and one-line mismatch errors."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints import hugging_face
from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.hugging_face import open_model_directory, save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VOCAB = [*SPECIAL_TOKENS, "a", "b", "##c", "é", "\u2028", "hello"]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    hidden_act="gelu_tanh",
    max_position_embeddings=16,
)


def randomised(model, seed=0):
    """Moves every weight away from 0 and 1, so that lost weights are noticed."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(random.normal(0.1, 0.3, variable.shape))
    return model


def same_weights(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))


@pytest.fixture
def saved(tmp_path):
    model = randomised(BertPretrainer(CONFIG))
    save_model_directory(
        tmp_path / "model", model, ModelDescription(CONFIG, VOCAB, TokenizerSettings(False))
    )
    return tmp_path / "model", model


def rewrite(path, change):
    """Applies a function to the weights of a directory and rewrites them."""
    weights = change(load_file(path / "model.safetensors"))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def test_round_trip_is_bit_exact(saved):
    path, model = saved
    directory = open_model_directory(str(path))
    assert directory.config == dataclasses.replace(CONFIG, hidden_act="gelu_new")
    assert directory.vocab == VOCAB
    assert directory.do_lower_case is False
    loaded = BertPretrainer(directory.config)
    report = directory.load_into(loaded)
    assert same_weights(loaded, model)
    assert (len(report.loaded), report.new, report.ignored) == (46, (), ())
    assert str(report) == f"{path}/model.safetensors: 46 weights loaded"


def test_has_the_files_and_the_config_that_transformers_needs(saved):
    path, _ = saved
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


def test_mirrored_variables_are_saved_and_loaded(saved, tmp_path):
    path, model = saved
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        loaded = BertPretrainer(CONFIG)
        open_model_directory(path).load_into(loaded)
    replicas = strategy.run(lambda: loaded.next_sentence.kernel.value.read_value()).values
    assert len(replicas) == 2
    for replica in replicas:
        assert np.array_equal(replica, model.next_sentence.kernel)
    save_model_directory(tmp_path / "again", loaded, ModelDescription(CONFIG))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (path, tmp_path / "again")]
    assert weights[0] == weights[1]


def test_saving_again_replaces_all_files(saved):
    path, _ = saved
    other = randomised(BertPretrainer(CONFIG), seed=1)
    save_model_directory(path, other, ModelDescription(CONFIG))
    assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]
    assert os.listdir(path.parent) == ["model"]
    loaded = BertPretrainer(CONFIG)
    open_model_directory(path).load_into(loaded)
    assert same_weights(loaded, other)


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left"), SafetensorError("No space left")]
)
def test_failed_save_keeps_the_earlier_files(saved, monkeypatch, failure):
    path, model = saved
    before = {name: (path / name).read_bytes() for name in os.listdir(path)}

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(hugging_face, "save_file", fail)
    with pytest.raises(InputError, match=r"model: cannot be written.*No space left"):
        save_model_directory(path, model, ModelDescription(CONFIG))
    assert {name: (path / name).read_bytes() for name in os.listdir(path)} == before
    assert os.listdir(path.parent) == ["model"]


def test_folder_with_other_files_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("all my work")
    model = BertPretrainer(CONFIG)
    with pytest.raises(InputError, match=r"contains thesis\.txt; expected a new path"):
        save_model_directory(tmp_path, model, ModelDescription(CONFIG))
    with pytest.raises(InputError, match="is a file"):
        save_model_directory(tmp_path / "thesis.txt", model, ModelDescription(CONFIG))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_older_weight_names_load(saved):
    path, model = saved

    def as_of_2018(weights):
        def old(name):
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            return name.replace("LayerNorm.bias", "LayerNorm.beta")

        return {old(name): value for name, value in weights.items()}

    rewrite(path, as_of_2018)
    loaded = BertPretrainer(CONFIG)
    report = open_model_directory(path).load_into(loaded)
    assert same_weights(loaded, model)
    assert (report.new, report.ignored) == ((), ())


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"),
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ],
)
def test_two_names_of_one_weight_need_equal_values(saved, name, older):
    path, model = saved
    rewrite(path, lambda weights: weights | {older: weights[name]})
    loaded = BertPretrainer(CONFIG)
    open_model_directory(path).load_into(loaded)
    assert same_weights(loaded, model)
    rewrite(path, lambda weights: weights | {older: weights[name] + 5})
    with pytest.raises(InputError, match="are two names of one weight, with different values"):
        open_model_directory(path).load_into(loaded)


def test_encoder_alone_loads_and_heads_are_newly_initialized(saved):
    path, model = saved
    rewrite(path, lambda w: {n[5:]: v for n, v in w.items() if n.startswith("bert.")})
    loaded = BertPretrainer(CONFIG)
    report = open_model_directory(path).load_into(loaded)
    assert same_weights(loaded.encoder, model.encoder)
    assert len(report.new) == 7
    assert "masked_lm/output_bias" in report.new
    assert "newly initialized: masked_lm/" in str(report)
    assert np.abs(np.asarray(loaded.next_sentence.kernel)).max() <= 0.04


def test_heads_not_found_in_the_model_are_reported_as_ignored(saved):
    path, model = saved
    loaded = BertClassifier(CONFIG, 2)
    report = open_model_directory(path).load_into(loaded)
    assert same_weights(loaded.encoder, model.encoder)
    assert report.new == ("classifier/kernel", "classifier/bias")
    assert "cls.predictions.bias" in report.ignored
    assert "cls.seq_relationship.weight" in str(report)


def test_missing_pooler_is_accepted_but_missing_encoder_weights_not(saved):
    path, _ = saved
    rewrite(path, lambda w: {n: v for n, v in w.items() if "pooler" not in n})
    report = open_model_directory(path).load_into(BertPretrainer(CONFIG))
    assert report.new == ("encoder/pooler/dense/kernel", "encoder/pooler/dense/bias")

    lost = {
        "bert.encoder.layer.1.output.dense.bias",
        "bert.embeddings.position_embeddings.weight",
        "cls.predictions.transform.dense.weight",
    }
    rewrite(path, lambda w: {n: v for n, v in w.items() if n not in lost})
    with pytest.raises(InputError) as error:
        open_model_directory(path).load_into(BertPretrainer(CONFIG))
    for name in lost:
        assert f"{name} is missing" in str(error.value)


def test_all_shape_mismatches_are_listed_and_no_weight_is_loaded(saved):
    path, _ = saved
    config = dataclasses.replace(CONFIG, intermediate_size=20, max_position_embeddings=32)
    model = BertPretrainer(config)
    before = [np.asarray(variable) for variable in model.weights]
    with pytest.raises(InputError) as error:
        open_model_directory(path).load_into(model)
    message = str(error.value)
    assert "\n" not in message
    assert "position_embeddings.weight has shape [16, 8], expected [32, 8]" in message
    assert "layer.0.intermediate.dense.weight has shape [12, 8], expected [20, 8]" in message
    assert "layer.1.output.dense.weight has shape [8, 12], expected [8, 20]" in message
    assert all(np.array_equal(a, b) for a, b in zip(before, model.weights, strict=True))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files_load_as_float32(saved, dtype):
    path, model = saved
    rewrite(path, lambda w: {name: value.astype(dtype) for name, value in w.items()})
    loaded = BertPretrainer(CONFIG)
    open_model_directory(path).load_into(loaded)
    for a, b in zip(loaded.weights, model.weights, strict=True):
        assert a.dtype == "float32"
        assert np.array_equal(a, np.asarray(b).astype(dtype).astype(np.float32))


def test_untied_masked_lm_head_is_rejected(saved):
    path, _ = saved

    def with_decoder(weights, offset):
        table = weights["bert.embeddings.word_embeddings.weight"]
        return weights | {"cls.predictions.decoder.weight": table + np.float32(offset)}

    rewrite(path, lambda w: with_decoder(w, 0.0))
    assert open_model_directory(path).load_into(BertPretrainer(CONFIG)).ignored == ()
    rewrite(path, lambda w: with_decoder(w, 0.5))
    with pytest.raises(InputError, match="differs from the word embeddings"):
        open_model_directory(path).load_into(BertPretrainer(CONFIG))
    open_model_directory(path).load_into(BertClassifier(CONFIG, 2))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, r"has no config\.json"),
        ("config.json", b"{", r"config\.json: is not JSON"),
        ("config.json", b"[]", r"config\.json: contains a list"),
        ("config.json", b'{"vocab_size": -1}', r"config\.json: vocab_size is -1"),
        ("config.json", b'{"vocab_size": 11, "model_type": "roberta"}', 'model_type is "roberta"'),
        ("config.json", b'{"vocab_size": 10}', r"vocab\.txt: has 11 tokens.* 10"),
        ("model.safetensors", None, r"has no model\.safetensors"),
        ("tokenizer_config.json", b"]", r"tokenizer_config\.json: is not JSON"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na", r"vocab\.txt.*\[MASK\]"),
    ],
)
def test_damaged_directory_is_rejected(saved, name, content, expected):
    path, _ = saved
    (path / "tokenizer.json").unlink()
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)
    with pytest.raises(InputError, match=expected):
        open_model_directory(path)


@pytest.mark.parametrize("size", [0, 7, 100, 2000])
def test_truncated_weights_file_is_rejected(saved, size):
    path, _ = saved
    complete = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(complete[:size])
    with pytest.raises(InputError, match="not a valid safetensors file"):
        open_model_directory(path).load_into(BertPretrainer(CONFIG))


@pytest.mark.slow
def test_transformers_loads_our_directory_with_the_same_outputs(tmp_path, root, peers_python):
    inputs = {
        "input_ids": np.array([[2, 5, 6, 7, 3], [2, 10, 3, 0, 0]], np.int32),
        "input_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32),
        "segment_ids": np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], np.int32),
        "masked_lm_positions": np.array([[1, 3], [1, 0]], np.int32),
    }
    pairs = []
    for hidden_act in ("gelu", "gelu_tanh", "relu"):
        config = dataclasses.replace(CONFIG, hidden_act=hidden_act)
        model = randomised(BertPretrainer(config))
        pairs += [tmp_path / hidden_act, tmp_path / f"{hidden_act}.npz"]
        save_model_directory(
            pairs[-2], model, ModelDescription(config, VOCAB, TokenizerSettings(True))
        )
        outputs = {**model.encoder(inputs), **model(inputs)}
        np.savez(
            pairs[-1],
            **inputs,
            **{name: np.asarray(value) for name, value in outputs.items()},
            text=["Hello ac É", "b [MASK] zzz"],
            token_ids=["2 10 5 7 1 3", "2 6 4 1 3"],
        )
    result = subprocess.run(
        [peers_python, GOLDEN.parent / "check_transformers_opens.py", *pairs],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("largest difference") == 3
