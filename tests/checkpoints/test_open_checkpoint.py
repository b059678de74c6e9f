"""open_checkpoint for every format: detection, casing, labels, shards."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.tokenizer_files import guess_lower_case
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.text.vocabulary import load_vocab
from tests.other_formats import WRITERS, write_tf1


@pytest.fixture
def saved(tiny, tmp_path):
    model = tiny.make("pretrainer")
    save_model_directory(tmp_path / "model", model, ModelDescription(tiny.config, tiny.vocab))
    return tmp_path / "model", model


def shard(path, parts=2):
    """Splits the weights of a directory into shards, as transformers does for large models."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    where = {
        name: f"model-{1 + i % parts:05}-of-{parts:05}.safetensors"
        for i, name in enumerate(weights)
    }
    for file in set(where.values()):
        own = {name: value for name, value in weights.items() if where[name] == file}
        save_file(own, path / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return where


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("hugging_face", "a Hugging Face model directory"),
        ("tf1", "a TF1 checkpoint in Google's format"),
        ("keras_hub", "a KerasHub preset"),
    ],
)
def test_format_is_detected(tiny, tmp_path, form, kind):
    model = tiny.make("pretrainer")
    WRITERS[form](tmp_path / "other", model, ModelDescription(tiny.config, tiny.vocab))
    checkpoint = open_checkpoint(str(tmp_path / "other"))
    assert checkpoint.kind == kind
    assert checkpoint.config == tiny.config
    assert checkpoint.vocab == tiny.vocab
    loaded = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(loaded)
    # KerasHub has no next-sentence head.
    assert len(report.new) == (2 if form == "keras_hub" else 0)
    for found, expected in zip(loaded.weights, model.weights, strict=True):
        assert found.path in report.new or np.array_equal(found, expected)


def test_run_folder_opens_the_model_of_the_run(saved):
    path, _ = saved
    (path.parent / "run.json").write_text("{}")
    assert open_checkpoint(path.parent).path == path


@pytest.mark.parametrize("form", ["hugging_face", "keras_hub"])
def test_model_folder_that_also_has_a_run_opens_the_model(tiny, tmp_path, form):
    description = ModelDescription(tiny.config, tiny.vocab)
    WRITERS[form](tmp_path / "other", tiny.make("pretrainer"), description)
    (tmp_path / "other" / "run.json").write_text("{}")
    assert open_checkpoint(tmp_path / "other").path == tmp_path / "other"


def test_hugging_face_directory_may_also_have_googles_config(saved):
    path, _ = saved
    (path / "bert_config.json").write_text("{}")
    assert open_checkpoint(path).kind == "a Hugging Face model directory"


@pytest.mark.parametrize("form", WRITERS)
def test_vocabulary_of_wrong_size_is_rejected(tiny, tmp_path, form):
    description = ModelDescription(tiny.config, tiny.vocab)
    WRITERS[form](tmp_path / "other", tiny.make("encoder"), description)
    if form == "hugging_face":
        (tmp_path / "other" / "tokenizer.json").unlink()
    vocab = next((tmp_path / "other").rglob("vocab*.txt"))
    vocab.write_text(vocab.read_text() + "extra\n")
    expected = rf"{vocab.name}: has 18 tokens, but vocab_size in the config is 17"
    with pytest.raises(InputError, match=expected):
        open_checkpoint(tmp_path / "other")


@pytest.mark.parametrize("form", WRITERS)
def test_short_vocabulary_is_padded_to_the_embedding_table(tiny, tmp_path, form, caplog):
    config = replace(tiny.config, vocab_size=24)
    padded = [*tiny.vocab, *(f"more{index}" for index in range(7))]
    WRITERS[form](tmp_path / "other", BertPretrainer(config), ModelDescription(config, padded))
    file = next((tmp_path / "other").rglob("vocab*.txt"))
    if form == "hugging_face":
        (tmp_path / "other" / "tokenizer.json").unlink()
    file.write_text("".join(f"{token}\n" for token in [*tiny.vocab, "[unused1]"]))
    checkpoint = open_checkpoint(tmp_path / "other")
    added = [f"[unused{n}]" for n in (0, 2, 3, 4, 5, 6)]
    assert checkpoint.vocab == [*tiny.vocab, "[unused1]", *added]
    assert (
        "has 18 tokens for 24 embedding rows; the other rows are named [unused0] to [unused6]"
        in caplog.text
    )
    convert(tmp_path / "other", tmp_path / "again")
    assert open_checkpoint(tmp_path / "again").vocab == checkpoint.vocab
    for name in ("vocab.txt", "tokenizer.json"):
        assert open_checkpoint(tmp_path / "again").vocab == checkpoint.vocab
        (tmp_path / "again" / name).unlink()
    file.write_text("".join(f"{token}\n" for token in tiny.vocab[:13]))
    names = [f"[unused{n}]" for n in range(11)]
    assert open_checkpoint(tmp_path / "other").vocab == [*tiny.vocab[:13], *names]


def test_labels_and_problem_type_are_restored(tiny, tmp_path):
    labels = ["contradiction", "entailment", "neutral"]
    save_model_directory(
        tmp_path / "m",
        BertClassifier(tiny.config, 3),
        ModelDescription(
            tiny.config,
            labels=labels,
            problem_type="single_label_classification",
            extra={"finetuning_task": "mnli"},
        ),
    )
    checkpoint = open_checkpoint(tmp_path / "m")
    assert checkpoint.labels == labels
    assert checkpoint.problem_type == "single_label_classification"
    assert checkpoint.architecture == "BertForSequenceClassification"
    assert checkpoint.description.extra == {"finetuning_task": "mnli"}
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}
    assert config["label2id"] == {"contradiction": 0, "entailment": 1, "neutral": 2}


@pytest.mark.parametrize(
    ("name", "is_lower"),
    [
        ("bert-base-uncased", True),  # Contains "ℝ", which has no lower case.
        ("bert-base-chinese", True),  # Contains "<S>".
        ("bert-base-cased", False),
        ("bert-base-multilingual-cased", False),
    ],
)
def test_casing_is_inferred_from_the_vocabulary(shared_data, name, is_lower):
    vocab = load_vocab(shared_data / "vocab" / name / "vocab.txt")
    assert guess_lower_case(vocab) is is_lower


def test_casing_is_inferred_from_googles_names_without_vocabulary(tiny, tmp_path):
    model, description = tiny.make("encoder"), ModelDescription(tiny.config)
    for name, is_lower in (
        ("cased_L-12_H-768_A-12", False),
        ("uncased_L-12_H-768_A-12", True),
        ("multi_cased_L-12_H-768_A-12", False),
        ("chinese_L-12_H-768_A-12", True),
    ):
        write_tf1(tmp_path / name, model, description)
        config = tmp_path / name / "bert_config.json"
        config.write_text(config.read_text().replace('"do_lower_case"', '"other"'))
        assert open_checkpoint(tmp_path / name).do_lower_case is is_lower
        assert open_checkpoint(tmp_path / name / "bert_model.ckpt").do_lower_case is is_lower


def test_shards_load_like_one_file(saved):
    path, model = saved
    shard(path)
    checkpoint = open_checkpoint(path)
    loaded = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(loaded)
    assert (len(report.loaded), report.new, report.ignored) == (46, (), ())
    for found, expected in zip(loaded.weights, model.weights, strict=True):
        assert np.array_equal(found, expected)


def test_damaged_shards_are_rejected(saved, tmp_path):
    path, _ = saved
    where = shard(path)
    index = path / "model.safetensors.index.json"
    model = BertPretrainer(open_checkpoint(path).config)
    (path / "model-00002-of-00002.safetensors").rename(tmp_path / "kept")
    with pytest.raises(InputError, match=r"lists missing files: model-00002-of-00002\.safetensors"):
        open_checkpoint(path).load_into(model)
    lost = next(name for name, file in where.items() if "00002-of" in file)
    weights = load_file(tmp_path / "kept")
    del weights[lost]
    save_file(weights, path / "model-00002-of-00002.safetensors")
    with pytest.raises(
        InputError, match=f"weight_map and the files contain different weights: .*{lost}"
    ):
        open_checkpoint(path).load_into(model)
    for broken in ({}, {"weight_map": []}, {"weight_map": {lost: "../kept"}}):
        index.write_text(json.dumps(broken))
        with pytest.raises(InputError, match="expected a weight_map"):
            open_checkpoint(path).load_into(model)


def test_unexpected_bert_weights_are_rejected_and_listed(saved):
    path, model = saved
    weights = load_file(path / "model.safetensors")
    extra = {
        "bert.encoder.layer.2.output.dense.bias": np.zeros(8, np.float32),
        "bert.encoder.layer.0.crossattention.self.key.bias": np.zeros(8, np.float32),
    }
    buffers = {"bert.embeddings.position_ids": np.arange(16)}
    save_file(weights | buffers, path / "model.safetensors")
    report = open_checkpoint(path).load_into(model)
    assert report.ignored == ("bert.embeddings.position_ids",)
    save_file(weights | buffers | extra, path / "model.safetensors")
    with pytest.raises(InputError) as error:
        open_checkpoint(path).load_into(model)
    for name in extra:
        assert f"{name} is not in the model" in str(error.value)
    assert "position_ids" not in str(error.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickle_is_rejected_with_the_way_to_convert_it(saved, name):
    path, _ = saved
    (path / "model.safetensors").rename(path / name)
    with pytest.raises(InputError, match=rf"{name}, a pickle.*save_pretrained"):
        open_checkpoint(path)


def test_missing_checkpoint_is_rejected_with_expected_formats(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such checkpoint; expected a model direc"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"model\.bin: is not a checkpoint; expected a model direc"
    ):
        open_checkpoint(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)


def test_labels_without_a_name_have_the_name_that_transformers_gives(tiny, tmp_path):
    save_model_directory(
        tmp_path / "m", BertClassifier(tiny.config, 4), ModelDescription(tiny.config, tiny.vocab)
    )
    edit_config(tmp_path / "m", id2label={"0": "no", "3": "yes"})
    classifier = TextClassifier.from_pretrained(tmp_path / "m")
    assert [*classifier.labels] == ["no", "LABEL_1", "LABEL_2", "yes"]


@pytest.mark.parametrize("rate", [0.5, 0.0, None])
def test_dropout_of_a_classifier_is_that_of_config_json(tiny, tmp_path, rate):
    """transformers' `classifier_dropout` replaces `hidden_dropout_prob` in the head."""
    config = replace(
        tiny.config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.0, num_hidden_layers=1
    )
    labels = ["a", "b"]
    save_model_directory(
        tmp_path / "m",
        BertClassifier(config, 2),
        ModelDescription(config, tiny.vocab, labels=labels),
    )
    edit_config(tmp_path / "m", classifier_dropout=rate)
    classifier = TextClassifier.from_pretrained(tmp_path / "m")
    assert classifier.model.dropout.rate == (0.2 if rate is None else rate)
    classifier.save_pretrained(tmp_path / "again")
    assert (
        json.loads((tmp_path / "again" / "config.json").read_text()).get("classifier_dropout")
        == rate
    )


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
