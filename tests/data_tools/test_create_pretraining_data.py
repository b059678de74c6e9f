"""End-to-end tests of the data tool: output, reproducibility and rejected input."""

import gzip
import hashlib
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from data_tools import create_pretraining_data as build
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS
from tests.data_tools.conftest import TOKENIZERS

SMALL = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2)


def read_examples(folder, settings) -> dict[str, np.ndarray]:
    length, most = settings.max_seq_length, settings.max_predictions_per_seq
    lengths = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), length)
    lengths |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), most)
    lengths["next_sentence_labels"] = 1
    spec = {name: tf.io.FixedLenFeature([size], tf.int64) for name, size in lengths.items()}
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([most], tf.float32)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".tfrecord"))
    dataset = tf.data.TFRecordDataset([os.path.join(folder, name) for name in names])
    messages = [message.numpy() for message in dataset]
    assert set(tf.train.Example.FromString(messages[0]).features.feature) == set(spec)
    return {k: v.numpy() for k, v in tf.io.parse_example(messages, spec).items()}


def test_manifest_describes_the_dataset(files, contents, vocab):
    settings = Settings(max_seq_length=32, max_predictions_per_seq=5, num_shards=3)
    manifest = create_pretraining_data(**files, settings=settings, num_workers=1)
    out = contents(files["output_dir"])
    assert json.loads(out["manifest.json"]) == manifest
    names = [f"records-0000{index}-of-00003.tfrecord" for index in range(3)]
    assert sorted(out) == sorted([*names, "manifest.json", "vocab.txt"])

    assert manifest["format"] == "keras_bert.pretraining"
    assert manifest["version"] == 2
    assert manifest["settings"] == settings.to_dict()
    made_with = {"python", "keras_bert", "numpy", "sentencex", "tensorflow", "tensorflow-text"}
    assert set(manifest["made_with"]) == made_with
    vocab_bytes = Path(files["vocab_file"]).read_bytes()
    assert out["vocab.txt"] == vocab_bytes
    assert manifest["vocab"] == {
        "file": "vocab.txt",
        "size": len(vocab),
        "sha256": hashlib.sha256(vocab_bytes).hexdigest(),
    }
    text = Path(files["input_file"]).read_bytes()
    assert manifest["inputs"] == [
        {
            "file": files["input_file"],
            "bytes": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
            "documents": 30,
            "sentences": 600,
            "odd": {},
        }
    ]

    examples = read_examples(files["output_dir"], settings)
    assert manifest["counts"] == {
        "documents": 30,
        "sentences": 600,
        "examples": len(examples["input_ids"]),
        "rows": len(examples["input_ids"]),
        "random_next": examples["next_sentence_labels"].sum(),
        "masked": examples["masked_lm_weights"].sum(),
        "real_tokens": examples["input_mask"].sum(),
    }
    for name, shard in zip(names, manifest["shards"], strict=True):
        assert shard["file"] == name
        assert shard["bytes"] == len(out[name])
        assert shard["sha256"] == hashlib.sha256(out[name]).hexdigest()
    for count in ("examples", "rows"):
        assert sum(shard[count] for shard in manifest["shards"]) == len(examples["input_ids"])


@pytest.mark.parametrize(("changes", "tokens"), TOKENIZERS)
def test_settings_of_the_tokenizer(tmp_path, changes, tokens):
    vocab = [*SPECIAL_TOKENS, "hohe", "höhe", "Hohe", "Höhe", "北", "京", "北京"]
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in vocab), encoding="utf-8")
    (tmp_path / "a.txt").write_text("Höhe 北京\nHöhe 北京\n\n" * 9, encoding="utf-8")
    settings = replace(SMALL, masked_lm_prob=0.0, num_shards=1, **changes)
    names = [str(tmp_path / name) for name in ("a.txt", "out", "vocab.txt")]
    manifest = create_pretraining_data(*names, settings, num_workers=1)
    ids = read_examples(names[1], settings)
    rows = np.arange(len(ids["input_ids"]))
    ids["input_ids"][rows, ids["masked_lm_positions"][:, 0]] = ids["masked_lm_ids"][:, 0]
    assert {vocab[token] for token in {*ids["input_ids"].ravel()}} - {*SPECIAL_TOKENS} == tokens
    found = {name: value for name, value in manifest["settings"].items() if name in changes}
    assert found == changes


def test_shards_do_not_depend_on_the_order_or_files_of_documents(files, tmp_path, corpus):
    manifest = create_pretraining_data(**files, settings=SMALL)
    documents = corpus(30).strip().split("\n\n")
    random.Random(1).shuffle(documents)
    (tmp_path / "split").mkdir()
    (tmp_path / "split/a.txt").write_text("\r\n\n".join(documents[:10]).replace("\n", "\r\n"))
    (tmp_path / "split/b.gz").write_bytes(gzip.compress("\n\n".join(documents[10:]).encode()))
    files |= {"input_file": str(tmp_path / "split"), "output_dir": str(tmp_path / "other")}
    other = create_pretraining_data(**files, settings=SMALL)
    assert other["shards"] == manifest["shards"]


def test_finished_dataset_is_not_changed(files, caplog):
    manifest = create_pretraining_data(**files, settings=SMALL)
    before = {path: path.stat().st_mtime_ns for path in Path(files["output_dir"]).iterdir()}
    caplog.set_level("INFO", logger="absl")
    assert create_pretraining_data(**files, settings=SMALL) == manifest
    assert "is finished; nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_changed_settings_are_rejected_with_the_difference(files, contents):
    create_pretraining_data(**files, settings=SMALL)
    before = contents(files["output_dir"])
    other = Settings(**SMALL.to_dict() | {"max_seq_length": 64, "masked_lm_prob": 0.2})
    with pytest.raises(InputError) as caught:
        create_pretraining_data(**files, settings=other)
    message = str(caught.value)
    assert "masked_lm_prob was 0.15, now 0.2; max_seq_length was 32, now 64" in message
    assert files["output_dir"] in message

    with open(files["vocab_file"], "a") as vocab:
        vocab.write("extra\n")
    text = Path(files["input_file"])
    text.write_bytes(text.read_bytes().replace(b"a", b"o"))  # of the same size
    with pytest.raises(
        InputError,
        match=r"vocabulary differs; the content of the input file corpus\.txt has changed",
    ):
        create_pretraining_data(**files, settings=SMALL)
    assert contents(files["output_dir"]) == before


def test_number_of_shards_depends_on_the_corpus():
    inputs = [{"file": "a.txt", "bytes": 100 << 20}]
    assert build.default_num_buckets(inputs) == 16  # 8 MiB of text each, a power of two
    corpus = {"text_bytes": 20 << 20, "num_sentences": 200_000}
    assert build.default_num_shards(16, 10_000, **corpus) == 16
    # A shard needs 32 documents to draw a random B from.
    assert build.default_num_shards(16, 150, **corpus) == 4
    assert build.default_num_shards(16, 1, **corpus, next_sentence="order") == 16
    # Much text, short lines, and an archive with a high compression.
    assert build.default_num_shards(64, 12, 384 << 20, 3_000_000) == 16
    assert build.default_num_shards(4, 10_000, 31 << 20, 6_400_000) == 16
    assert build.default_num_shards(1, 12, 300 << 20, 1_000_000) == 16


def test_more_shards_than_temporary_files_give_the_same_dataset(files, monkeypatch):
    in_four = replace(SMALL, num_shards=4)
    manifest = create_pretraining_data(**files, settings=in_four, num_workers=1)
    shutil.rmtree(files["output_dir"])
    monkeypatch.setattr(build, "_MAX_SENTENCES_PER_SHARD", 200)  # of 600, in one temporary file
    again = create_pretraining_data(**files, settings=SMALL, num_workers=1)
    assert again["shards"] == manifest["shards"]


@pytest.mark.parametrize(
    ("changes", "num_documents", "warning"),
    [
        ({"pack": True, "max_predictions_per_seq": 4}, 30, "use --max_predictions_per_seq=5 or m"),
        ({}, 1, "every random next sentence comes from that same document"),
    ],
)
def test_unfavorable_settings_log_a_warning(files, caplog, corpus, changes, num_documents, warning):
    Path(files["input_file"]).write_text(corpus(num_documents))
    create_pretraining_data(**files, settings=replace(SMALL, **changes), num_workers=1)
    assert warning in caplog.text


def test_sentences_and_documents_without_tokens_are_dropped(files, corpus):
    Path(files["input_file"]).write_text(
        "ba da .\n\u200b\nfa ga .\n\n\u200b\n\u200b\n\n" + corpus(2)
    )
    counts = create_pretraining_data(**files, settings=SMALL)["counts"]
    assert (counts["documents"], counts["sentences"]) == (3, 42)


@pytest.mark.parametrize(
    ("text", "message", "next_sentence"),
    [
        ("\n\n \n", r"--input_file: no text in .*corpus\.txt", "random"),
        ("ba da .\n\nfa ga .\n", r"no document of .*corpus\.txt has two sentences", "random"),
        ("\u200b\n\u200b\n\n\u200b\n", "found no word", "random"),
        ("ba\n\nda\n\nfa\n", "only documents of a single token", "order"),
    ],
)
def test_unusable_corpus_is_rejected_and_leaves_no_files(files, text, message, next_sentence):
    Path(files["input_file"]).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        create_pretraining_data(**files, settings=Settings(next_sentence=next_sentence))
    assert "\n" not in str(caught.value)
    assert not os.path.exists(files["output_dir"])


def test_folder_with_unknown_records_is_rejected(files):
    os.makedirs(files["output_dir"])
    path = os.path.join(files["output_dir"], "mine.tfrecord")
    open(path, "w").close()
    with pytest.raises(InputError, match=r": holds mine\.tfrecord but no manifest\.json"):
        create_pretraining_data(**files, settings=SMALL)
    assert os.listdir(files["output_dir"]) == ["mine.tfrecord"]


def test_program_reports_errors_in_one_line(run_program, files, tmp_path):
    inside_a_file = files["vocab_file"] + "/out"  # Cannot be written by root, either.
    common = [f"--{name}={value}" for name, value in files.items()]
    for flags, expected in (
        ([*common, f"--output_dir={inside_a_file}"], f"--output_dir={inside_a_file}: cannot be"),
        ([*common, "stray"], "expected flags only, got 'stray'"),
        (
            [*common, "--dask_scheduler=tcp://a:1", "--num_workers=2"],
            "--num_workers=2 with --dask_scheduler: expected 0",
        ),
        (common[1:], "input_file"),
    ):
        done = run_program("create_pretraining_data.py", *flags)
        assert done.returncode == 1
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt", "vocab.txt"]


# --- allowed ranges and combinations of settings ---


def test_settings_are_made_again_from_json():
    for settings in (
        Settings(ngram=3, pack=True),
        Settings(strip_accents=False, user_tokens=("[A]",), max_input_chars_per_word=100),
    ):
        values = json.loads(json.dumps(settings.to_dict()))
        assert values == settings.to_dict()
        assert Settings(**values) == settings


def test_equal_tokenizer_settings_are_not_a_difference():
    assert Settings(strip_accents=True) == Settings()
    assert Settings(do_lower_case=False, strip_accents=False) == Settings(do_lower_case=False)
    assert Settings(strip_accents=False).tokenizer() == TokenizerSettings(True, False)


def test_dupe_factor_is_1_by_default_for_dynamic_masking():
    assert Settings().dupe_factor == 10
    assert Settings(dynamic=True).dupe_factor == 1
    assert Settings(dynamic=True, dupe_factor=3).dupe_factor == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"ngram": 6, "max_predictions_per_seq": 5},
            "--ngram=6: expected at most --max_predictions_per_seq=5",
        ),
        (
            {"max_predictions_per_seq": 200},
            "--max_predictions_per_seq=200: expected at most --max_seq_length=128",
        ),
        ({"strip_accents": "no"}, "strip_accents='no': expected true or false"),
        (
            {"text_field": "body", "input_format": "wiki"},
            "--text_field=body with --input_format=wiki: expected an --input_format of jsonl, "
            "parquet, arrow, mixed, the formats with a choice of fields",
        ),
        ({"text_field": ""}, "--text_field=: expected the name of a field"),
        (
            {"language": "xy", "input_format": "prose"},
            "--language=xy: expected a two-letter ISO 639-1 code, for example en, de or zh",
        ),
        (
            {"language": "de"},
            "--language=de with --input_format=sentences: expected another --input_format, because "
            "a file with one sentence per line is not split",
        ),
    ],
)
def test_settings_out_of_range_or_without_effect_are_rejected(values, message):
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert str(caught.value) == message
