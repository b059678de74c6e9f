"""Tests that the records, config, vocabulary and starting point of pre-training must agree."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.inputs import find_inputs
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.run import pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import make_strategy
from tests.pretraining.conftest import edit_manifest

CONFIG = BertConfig(50, 8, 1, 1, 8, max_position_embeddings=16)


def make_dataset(folder, write_dataset, words="word", max_seq_length=16, **settings):
    """Writes records of a cased vocabulary of 50 tokens."""
    settings |= {"max_seq_length": max_seq_length, "max_predictions_per_seq": 3}
    write_dataset(folder, documents=12, num_shards=1, do_lower_case=False, **settings)
    return set_vocab(folder, [*SPECIAL_TOKENS, *(f"{words}{i}" for i in range(45))])


@pytest.fixture
def records(tmp_path, write_dataset):
    return make_dataset(tmp_path / "records", write_dataset)


@pytest.fixture
def config_file(tmp_path):
    CONFIG.to_json(tmp_path / "config.json")
    return tmp_path / "config.json"


def run(tmp_path, **settings):
    """Trains two steps."""
    settings = {n: str(v) if isinstance(v, Path) else v for n, v in settings.items()}
    settings = PretrainingSettings(**{"num_warmup_steps": 0, "eval_batch_size": 4} | settings)
    training = TrainingSettings(num_train_steps=2, train_batch_size=4, jit_compile=False)
    return pretrain([Phase(settings, training)], make_strategy(), tmp_path / "out")


def damage(folder, name):
    """Removes the last byte of a file; returns its folder."""
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    return folder


@pytest.fixture
def other(tmp_path, write_dataset):
    """Returns a function that makes further records."""
    return lambda **changes: make_dataset(tmp_path / "other", write_dataset, **changes)


def with_another_config(records, config, other):
    replace(CONFIG, hidden_size=4).to_json(config)
    return {"init_checkpoint": save_start(config.parent / "start", records)}


# What is wrong: a function of the records, the config file and `other`, which returns the settings
# of the run that differ; and the message.
INVALID = {
    "vocabulary size": (
        lambda records, config, other: replace(CONFIG, vocab_size=60).to_json(config),
        "has 50 tokens, but vocab_size in the config is 60",
    ),
    "held-out vocabulary": (
        lambda records, config, other: {"eval_file": other(words="Wort")},
        r"other.vocab\.txt: its vocabulary differs .* line 6 is 'Wort0', not 'word0'",
    ),
    "vocabularies": (
        lambda records, config, other: {"input_file": f"{records},{other(words='Wort')}"},
        "records/vocab.txt: the sha256 of the vocabulary is .*, as in .*other/vocab.txt",
    ),
    "held-out next sentences": (
        lambda records, config, other: {"eval_file": other(next_sentence="order")},
        "other.* next_sentence is order; expected random, as in .*records",
    ),
    "casing of the flag": (
        lambda records, config, other: {"do_lower_case": True},
        "records: do_lower_case is False; expected True, as in --do_lower_case",
    ),
    "length": (
        lambda records, config, other: {"input_file": other(max_seq_length=32)},
        "max_seq_length 32, but the model has only 16 positions",
    ),
    "damaged shard": (
        lambda records, config, other: damage(records, "records-00000-of-00001.tfrecord"),
        r"records-00000-of-00001\.tfrecord: is damaged: it has",
    ),
    "config of the starting point": (
        with_another_config,
        "differs from the config of --init_checkpoint",
    ),
    "damaged starting point": (
        lambda records, config, other: {
            "init_checkpoint": damage(
                save_start(config.parent / "start", records), "model.safetensors"
            )
        },
        r"model\.safetensors",
    ),
    "export without vocabulary": (
        lambda records, config, other: (records / "manifest.json").unlink() or {"export": True},
        "--export: .*tfrecord has no vocabulary; expected a --vocab_file",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_inputs_that_do_not_match_are_rejected_before_training(
    tmp_path, records, config_file, other, name
):
    change, message = INVALID[name]
    changes = change(records, config_file, other)
    settings = {"input_file": records} | (changes if isinstance(changes, dict) else {})
    with pytest.raises(InputError, match=message):
        run(tmp_path, bert_config=config_file, **settings)
    assert not (tmp_path / "out").exists()


def test_foreign_file_at_the_model_path_is_rejected_before_training(tmp_path, records, config_file):
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        run(tmp_path, input_file=records, bert_config=config_file)
    assert not (tmp_path / "out" / "run.json").exists()


def test_changed_config_and_records_change_the_record_of_the_run(records, config_file):
    settings = PretrainingSettings(str(records), bert_config=str(config_file))
    before = find_inputs(settings).record()
    assert (before["max_seq_length"], before["max_predictions_per_seq"]) == (16, 3)
    replace(CONFIG, hidden_dropout_prob=0.5).to_json(config_file)
    edit_manifest(records, lambda manifest: manifest["shards"][0].update(sha256="another"))
    after = find_inputs(settings).record()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"config", "data_fingerprint", "eval_fingerprint"}


def save_start(folder, records):
    """Saves a model with the vocabulary of records."""
    tokens = (records / "vocab.txt").read_text().splitlines()
    save_model_directory(folder, BertPretrainer(CONFIG), tokens, TokenizerSettings(False))
    return folder


def test_records_of_an_extended_vocabulary_extend_that_of_the_checkpoint(tmp_path, write_dataset):
    folders = {}
    for name, last in (("old", "[unused0]"), ("new", "angina"), ("wrong", "angina")):
        folder = folders[name] = make_dataset(tmp_path / name, write_dataset)
        tokens = (folder / "vocab.txt").read_text().splitlines()
        tokens[-1] = last
        if name == "wrong":
            tokens[-2] = "sepsis"
        set_vocab(folder, tokens)
    start = {"init_checkpoint": str(save_start(tmp_path / "first", folders["old"]))}
    with pytest.raises(InputError, match=r"first.*: line 49 is 'word43', not 'sepsis'; .*unusedN"):
        find_inputs(PretrainingSettings(str(folders["wrong"]), **start))
    assert find_inputs(PretrainingSettings(str(folders["new"]), **start)).vocab[-1] == "angina"


def set_vocab(folder, tokens):
    """Replaces the vocabulary of records; returns their folder."""
    content = "".join(f"{token}\n" for token in tokens)
    (folder / "vocab.txt").write_text(content)
    checksum = hashlib.sha256(content.encode()).hexdigest()
    return edit_manifest(folder, lambda manifest: manifest["vocab"].update(sha256=checksum))


def change_settings(folder, **settings):
    """Changes settings in the manifest of records; returns their folder."""
    return edit_manifest(folder, lambda manifest: manifest["settings"].update(settings))


def test_records_and_checkpoint_must_share_the_tokenizer(tmp_path, records, config_file, other):
    save_start(tmp_path / "first", records)
    change_settings(records, strip_accents=True)
    message = (
        "first: strip_accents is False; expected True, as in .*records; "
        "create the records with --strip_accents=False$"
    )
    with pytest.raises(InputError, match=message):
        run(tmp_path, input_file=records, init_checkpoint=tmp_path / "first")
    assert not (tmp_path / "out").exists()
    message = "other: strip_accents is False; expected True, as in .*records"
    with pytest.raises(InputError, match=message):
        run(tmp_path, input_file=records, eval_file=other(), bert_config=config_file)


@pytest.mark.slow
def test_model_directory_and_run_json_have_the_tokenizer_settings_of_the_records(
    tmp_path, records, config_file, caplog
):
    change_settings(records, strip_accents=True, tokenize_chinese_chars=False)
    with caplog.at_level("INFO", "absl"):
        results = run(tmp_path, input_file=records, bert_config=config_file)
    assert re.search(r"Evaluating on 4 of \d+ training records", caplog.text)
    assert set(results) >= {"loss", "masked_lm_accuracy", "next_sentence_accuracy"}
    model = tmp_path / "out" / "model"
    assert (model / "vocab.txt").read_bytes() == (records / "vocab.txt").read_bytes()
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    assert (tokenizer["do_lower_case"], tokenizer["strip_accents"]) == (False, True)
    assert tokenizer["tokenize_chinese_chars"] is False
    assert (
        "cased tokens without accents. CJK ideographs are not" in (model / "README.md").read_text()
    )
    record = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert (record["strip_accents"], record["tokenize_chinese_chars"]) == (True, False)
    assert run(tmp_path, input_file=records, bert_config=config_file) == results
    # A checkpoint that agrees is accepted.
    find_inputs(PretrainingSettings(str(records), init_checkpoint=str(tmp_path / "out")))


def test_default_tokenizer_settings_resume_runs_of_earlier_versions(tmp_path, records, config_file):
    """Covers manifests with and without the settings, whose default values are not recorded."""
    names = ("strip_accents", "tokenize_chinese_chars")
    edit_manifest(records, lambda manifest: [manifest["settings"].pop(name) for name in names])
    settings = PretrainingSettings(str(records), bert_config=str(config_file))
    before = find_inputs(settings).record()
    assert not {*names} & {*before}
    change_settings(records, strip_accents=False, tokenize_chinese_chars=True)
    assert find_inputs(settings).record() == before


def test_casing_of_foreign_records_is_inferred_from_the_vocabulary(
    tmp_path, write_records, config_file, caplog
):
    path = write_records(tmp_path / "a.tfrecord", 2)
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\n".join([*SPECIAL_TOKENS, *(f"Wort{i}" for i in range(45))]))
    settings = PretrainingSettings(
        str(path), vocab_file=str(vocab_file), bert_config=str(config_file), num_warmup_steps=0
    )
    with caplog.at_level("INFO", "absl"):
        assert find_inputs(settings).tokenizer_settings == TokenizerSettings(False)
    assert f"inferred from the tokens of {vocab_file}: --do_lower_case=false" in caplog.text


@pytest.mark.slow
def test_evaluation_alone_writes_only_results(tmp_path, records):
    save_start(tmp_path / "first", records)
    results = run(tmp_path, input_file=records, do_train=False, init_checkpoint=tmp_path / "first")
    assert "step" not in results
    assert results["loss"] > 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"run.json", "results.json"}


def test_evaluation_batch_that_does_not_fit_in_memory_is_rejected(
    tmp_path, records, config_file, monkeypatch
):
    monkeypatch.setattr("keras_bert.models.memory.available_memory", lambda: 10**6)
    with pytest.raises(InputError, match=r"--eval_batch_size=4096: 4096 rows of \d+ tokens need"):
        run(tmp_path, input_file=records, bert_config=config_file, eval_batch_size=4096)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_loss_that_is_not_finite_in_the_first_step_leaves_no_files(tmp_path, records, config_file):
    """The weights are finite, but too large to compute with."""
    tokens = (records / "vocab.txt").read_text().split()
    model = BertPretrainer(CONFIG)
    model.encoder.embeddings.set_weights(
        [np.full(w.shape, 1e38) for w in model.encoder.embeddings.get_weights()]
    )
    save_model_directory(tmp_path / "start", model, tokens, TokenizerSettings(False))
    with pytest.raises(InputError, match="step 1: the loss is nan") as caught:
        run(tmp_path, input_file=records, init_checkpoint=tmp_path / "start")
    assert "no weight has been updated yet; expected" in str(caught.value)
    assert "learning_rate" not in str(caught.value)
    assert not (tmp_path / "out").exists()
