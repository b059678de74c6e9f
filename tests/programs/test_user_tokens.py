"""A user's own tokens, from the vocabulary to the exported model: whole in every program."""

import json

import numpy as np
import pytest
import tensorflow as tf

import keras_bert
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.text.settings import UserToken
from keras_bert.text.vocabulary import load_vocab

TEXT = "see [URL]. it is good.\n@<user>x: it is bad [URL]\n\nthe film is good, <user>.\ngood film\n"
OWN = (UserToken("[URL]"), UserToken("<user>"))
RECORDS = {"max_seq_length": 24, "max_predictions_per_seq": 4, "num_shards": 1, "num_workers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run_program):
    """Returns a folder with a vocabulary, records, and a model that was trained on them."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "text.txt").write_text(TEXT * 20)
    (folder / "own.txt").write_text("[URL]\n<user>\n")
    BertConfig(64, 16, 1, 2, 32, max_position_embeddings=32).to_json(folder / "config.json")
    files = {"input_file": "text.txt", "vocab_file": "vocab.txt", "user_tokens": "own.txt"}
    training = {"bert_config": "config.json", "input_file": "records", "output_dir": "out"}
    training |= {"num_train_steps": 2, "num_warmup_steps": 1, "train_batch_size": 4}
    commands = [
        ("build_vocab.py", {**files, "vocab_size": 64}),
        ("create_pretraining_data.py", {**files, **RECORDS, "output_dir": "records"}),
        ("run_pretraining.py", {**training, "jit_compile": "false", "export": True}),
    ]
    for program, flags in commands:
        done = run_program(program, cwd=folder, **flags)
        assert done.returncode == 0, done.stderr
        if program == "build_vocab.py":  # As in published vocabularies.
            pad, *tokens = load_vocab(folder / "vocab.txt")
            unused = [f"[unused{number}]" for number in range(63 - len(tokens))]
            (folder / "vocab.txt").write_text("\n".join([pad, *unused, *tokens]) + "\n")
    return folder


@pytest.mark.slow
def test_vocabulary_records_and_manifest_have_the_user_tokens(folder):
    vocab = load_vocab(folder / "vocab.txt")
    assert vocab[-2:] == ["[URL]", "<user>"]
    assert not {"url", "user", "##rl", "##ser"} & {*vocab}
    manifest = json.loads((folder / "records" / "manifest.json").read_text())
    assert manifest["settings"]["user_tokens"] == [token.to_dict() for token in OWN]
    [record] = (folder / "records").glob("*.tfrecord")
    counts = np.zeros(64, int)
    for each in tf.data.TFRecordDataset(str(record)):
        feature = tf.train.Example.FromString(each.numpy()).features.feature
        counts += np.bincount(feature["input_ids"].int64_list.value, minlength=64)
    assert counts[vocab.index("[URL]")] > 20
    assert counts[vocab.index("<user>")] > 20


@pytest.mark.slow
def test_trained_model_and_every_task_have_them(folder):
    checkpoint = open_checkpoint(folder / "out")
    assert checkpoint.tokenizer_settings.user_tokens == OWN
    classifier = keras_bert.TextClassifier.from_pretrained(
        folder / "out", labels=["a", "b"], max_seq_length=16
    )
    assert classifier.tokenizer.settings.user_tokens == OWN
    classifier.save_pretrained(folder / "classifier")
    assert open_checkpoint(folder / "classifier").tokenizer_settings.user_tokens == OWN
    logits = classifier.predict(["it[URL]", "it [URL]", "it url"])["logits"]
    assert np.array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])


@pytest.mark.slow
def test_exported_model_gives_the_outputs_of_the_model(folder):
    texts = ["it[URL]is [MASK]", "it [URL] is [MASK]", "<user> is [MASK].[URL]"]
    own = keras_bert.MaskFiller.from_pretrained(folder / "out").predict(texts)
    served = keras_bert.load(folder / "out" / "export" / "1").predict(texts)
    assert own["token_ids"][0].tolist() == own["token_ids"][1].tolist()
    for name in ("token_ids", "tokens"):
        for a, b in zip(own[name], served[name], strict=True):
            assert np.array_equal(a, b)
    for a, b in zip(own["scores"], served["scores"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    info = json.loads((folder / "out" / "export" / "1" / "export.json").read_text())
    assert info["max_seq_length"] == 24  # As in the records.
    assert info["user_tokens"] == [token.to_dict() for token in OWN]
    card = (folder / "out" / "export" / "1" / "README.md").read_text()
    assert "Tokens that stay whole: `[URL]`, `<user>`." in card


@pytest.mark.slow
def test_unused_tokens_are_replaced_by_user_tokens_before_words(folder, run_program):
    flags = {"extend_vocab": "vocab.txt", "vocab_file": "extended.txt", "user_tokens": "more.txt"}
    flags |= {"input_file": "text.txt", "num_new_words": 1, "cwd": folder}
    for content, code in (("[SEP]\n", 1), ("[URL]\n<user>\n<ent>\n", 0)):
        (folder / "more.txt").write_text(content)
        done = run_program("build_vocab.py", **flags)
        assert done.returncode == code, done.stderr
    old, new = load_vocab(folder / "vocab.txt"), load_vocab(folder / "extended.txt")
    assert new[old.index("[unused0]")] == "<ent>"
    assert len(new) == len(old)


@pytest.mark.slow
def test_records_must_have_the_user_tokens_of_the_model(folder, run_program):
    flags = RECORDS | {"input_file": "text.txt", "vocab_file": "vocab.txt", "output_dir": "plain"}
    done = run_program("create_pretraining_data.py", cwd=folder, **flags)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "plain" / "manifest.json").read_text())
    assert manifest["settings"]["user_tokens"] == []
    done = run_program(
        "run_pretraining.py",
        cwd=folder,
        init_checkpoint="out",
        input_file="plain",
        output_dir="again",
        num_train_steps=1,
        num_warmup_steps=0,
    )
    assert done.returncode == 1
    assert "plain: has no user token '<user>', which out/model has" in done.stderr.splitlines()[-1]
