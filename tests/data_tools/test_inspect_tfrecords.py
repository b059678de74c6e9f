"""Tests of inspecting records: damaged files, statistics, and examples printed as text."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from data_tools import tfrecords
from data_tools.inspect_tfrecords import (
    manifest_statistics,
    read_all,
    report,
    use_color,
    verify_all,
)
from data_tools.inspection.record_text import describe
from data_tools.settings import Settings
from keras_bert.common import files
from keras_bert.common.errors import InputError
from keras_bert.data import record_files

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ",", "dog", "水"]
IDS = {token: number for number, token in enumerate(VOCAB)}
S, P = 12, 4


def row(text_a, text_b="", label=0):
    """Makes an unpacked row from text.

    A word `now/token` is a prediction: `now` is the input, `token` is the label.
    """
    masks = ([], [])
    ids, segments = [], []
    for segment, text in enumerate((text_a, text_b)):
        for word in text.split():
            now, _, original = word.partition("/")
            if original:
                masks[0].append(len(ids))
                masks[1].append(IDS[original])
            ids.append(IDS[now])
            segments.append(segment)
    return {
        "input_ids": pad(ids, S),
        "input_mask": pad([1] * len(ids), S),
        "segment_ids": pad(segments, S),
        "masked_lm_positions": pad(masks[0], P),
        "masked_lm_ids": pad(masks[1], P),
        "masked_lm_weights": np.array(pad([1] * len(masks[0]), P), np.float32),
        "next_sentence_labels": [label],
    }


def pad(values, length):
    return list(values) + [0] * (length - len(values))


ROWS = [
    row("[CLS] the [MASK]/cat ##s sat [SEP]", "[MASK]/the dog/cat , [SEP]", label=1),
    row("[CLS] the cat [MASK]/##s sat [SEP]", "the cat , [SEP]"),  # same tokens, other masks
    row("[CLS] sat/sat [UNK] [SEP]", "dog [SEP]"),
    row("[CLS] sat/sat [UNK] [SEP]", "dog [SEP]"),  # same tokens, same masks
]
PACKED_TEXT = "[CLS] the [MASK]/cat [SEP] [CLS] dog/dog [SEP] [CLS] 水 水 [SEP]"


def packed_row():
    return row(PACKED_TEXT) | {
        "position_ids": [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0],
        "example_ids": [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0],
        "next_sentence_positions": [0, 4, 7, 0],
        "next_sentence_labels": [0, 1, 0, 0],
        "next_sentence_weights": np.array([1, 1, 1, 0], np.float32),
    }


def without_masks(features):
    return {name: values for name, values in features.items() if not name.startswith("masked")}


def write(path, rows):
    features = {name: np.array([each[name] for each in rows]) for name in rows[0]}
    return tfrecords.write_shard(path, [tfrecords.encode_examples(features)])


def dataset(folder, rows=ROWS, next_sentence="random", odd=None):
    """Creates a dataset of two shards, as create_pretraining_data writes it."""
    files.write_bytes(folder / "vocab.txt", "".join(f"{token}\n" for token in VOCAB).encode())
    entries = [
        write(folder / tfrecords.shard_name(index, 2), part)
        for index, part in enumerate((rows[:1], rows[1:] or rows))
    ]
    manifest = {
        "format": record_files.FORMAT,
        "version": record_files.VERSION,
        "settings": Settings().to_dict() | {"next_sentence": next_sentence},
        "vocab": {"file": "vocab.txt", "sha256": files.sha256(folder / "vocab.txt")},
        "inputs": [{"file": "a.txt", "odd": odd or {}}],
        "counts": {"documents": 2, "sentences": 7},
        "shards": entries,
    }
    files.write_json(folder / record_files.MANIFEST, manifest)
    return folder


def inspect(path, vocab_file=None, num_examples=9, max_examples=0):
    """Returns the statistics and the printed lines."""
    found = record_files.find_record_files(str(path), include_unlisted=True)
    verify_all(found)
    statistics, shown = read_all(found, vocab_file, num_examples, max_examples)
    lines = [line for each in shown for line in describe(*each, color=False)]
    return manifest_statistics(found) | statistics.to_dict(), lines


def test_statistics(tmp_path):
    statistics, _ = inspect(dataset(tmp_path))
    assert (statistics["documents"], statistics["sentences"]) == (2, 7)
    assert (statistics["rows"], statistics["examples"], statistics["tokens"]) == (4, 4, 32)
    assert statistics["padding_share"] == 16 / 48
    assert statistics["length"] == {
        "mean": 8, "p0": 6, "p5": 6, "p25": 6, "p50": 6, "p75": 10, "p95": 10, "p100": 10,
    }  # fmt: skip
    assert (statistics["length_a"]["mean"], statistics["length_b"]["mean"]) == (5, 3)
    assert statistics["predictions_per_row"]["mean"] == 1.5
    assert statistics["predictions"] == 6
    assert statistics["predicted_share"] == 6 / 32
    assert (statistics["mask_share"], statistics["random_share"]) == (3 / 6, 1 / 6)
    assert statistics["kept_share"] == 2 / 6
    # Words with a prediction: cat ##s (in part), the, cat; cat ##s (in part); sat; sat.
    assert statistics["partly_predicted_words_share"] == 2 / 6
    assert statistics["unknown_share"] == 2 / 32
    assert statistics["label_1_share"] == 1 / 4
    assert (statistics["duplicates_unmasked"], statistics["duplicates_masked"]) == (2, 1)


def test_examples_are_printed_as_text(tmp_path):
    _, lines = inspect(dataset(tmp_path), num_examples=3)
    first, last = (
        tmp_path / tfrecords.shard_name(0, 2),
        tmp_path / tfrecords.shard_name(1, 2),
    )
    assert lines == [
        f"{first} record 0: 10 tokens, 3 to predict, B is a random text",
        "  A: [CLS] the [MASK→cat]s sat [SEP]",
        "  B: [MASK→the] [dog→cat], [SEP]",
        f"{last} record 0: 10 tokens, 1 to predict, B follows A",
        "  A: [CLS] the cat[MASK→s] sat [SEP]",
        "  B: the cat, [SEP]",
        f"{last} record 1: 6 tokens, 1 to predict, B follows A",
        "  A: [CLS] [=sat] [UNK] [SEP]",
        "  B: dog [SEP]",
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("random", ("B follows A", "B is a random text")),
        ("order", ("in order", "swapped")),
        (None, ("next sentence 0", "next sentence 1")),
    ],
)
def test_labels_are_printed_in_words(tmp_path, kind, words):
    folder = dataset(tmp_path, next_sentence=kind or "random")
    if kind is None:  # the records of another tool
        (folder / record_files.MANIFEST).unlink()
    _, lines = inspect(folder, folder / "vocab.txt")
    titles = [line for line in lines if " record " in line]
    assert [title.rpartition(", ")[2] for title in titles] == [words[1], *[words[0]] * 3]


def test_rows_without_pairs_have_no_label(tmp_path):
    rows = [row("[CLS] the cat [SEP] [MASK]/dog [SEP]")] * 2
    statistics, lines = inspect(dataset(tmp_path, rows, next_sentence="none"))
    assert lines[:2] == [
        f"{tmp_path / tfrecords.shard_name(0, 2)} record 0: 6 tokens, 1 to predict",
        "  A: [CLS] the cat [SEP] [MASK→dog] [SEP]",
    ]
    assert not any(line.startswith("next sentence") for line in report(statistics))


def test_dynamic_records_have_no_masks(tmp_path):
    statistics, lines = inspect(dataset(tmp_path, [without_masks(each) for each in ROWS]))
    assert lines[0].endswith("10 tokens, masks are generated during training, B is a random text")
    assert "predictions" not in statistics
    assert "duplicates_masked" not in statistics
    assert "predicted          masks are generated during training" in list(report(statistics))


def test_every_example_of_a_packed_row_is_printed_and_counted(tmp_path):
    statistics, lines = inspect(dataset(tmp_path, [packed_row()] * 3), num_examples=1)
    path = tmp_path / tfrecords.shard_name(0, 2)
    assert lines == [
        f"{path} record 0, example 1 of 3: 4 tokens, 1 to predict, B follows A",
        "  A: [CLS] the [MASK→cat] [SEP]",
        f"{path} record 0, example 2 of 3: 3 tokens, 1 to predict, B is a random text",
        "  A: [CLS] [=dog] [SEP]",
        f"{path} record 0, example 3 of 3: 4 tokens, 0 to predict, B follows A",
        "  A: [CLS] 水水 [SEP]",
    ]
    assert (statistics["rows"], statistics["examples"], statistics["tokens"]) == (3, 9, 33)
    assert statistics["examples_per_row"]["mean"] == 3
    assert (statistics["length"]["p0"], statistics["length"]["p100"]) == (3, 4)
    assert statistics["label_1_share"] == 1 / 3
    assert statistics["duplicates_unmasked"] == 6


def test_dynamic_and_packed_records(tmp_path):
    statistics, lines = inspect(dataset(tmp_path, [without_masks(packed_row())]), num_examples=1)
    assert statistics["examples"] == 6
    assert lines[3] == "  A: [CLS] dog [SEP]"


def test_files_of_other_tools_need_the_vocabulary_to_print_text(tmp_path, write_records):
    path = write_records(tmp_path / "google.tfrecord", 40)
    statistics, lines = inspect(path)
    assert lines == []
    assert statistics["examples"] == 40
    assert "replaced_share" in statistics
    assert "mask_share" not in statistics
    vocab = tmp_path / "v.txt"
    vocab.write_text("".join(f"{p}\n" for p in [*VOCAB, *(f"w{i}" for i in range(38))]))
    statistics, lines = inspect(path, str(vocab))
    assert len(lines) == 9 * 3
    shares = [statistics[f"{kind}_share"] for kind in ("mask", "random", "kept")]
    assert sum(shares) == pytest.approx(1)
    vocab.write_text("".join(f"{token}\n" for token in VOCAB))
    with pytest.raises(
        InputError,
        match=r"google\.tfrecord record \d+: input_ids has 49; expected "
        "ids below the vocabulary's size, 12",
    ):
        inspect(path, str(vocab))


@pytest.mark.parametrize("make", [row, lambda _: packed_row()])
def test_rows_of_padding_are_counted(tmp_path, make):
    nothing = {name: values * 0 for name, values in as_arrays(make("[CLS] the [SEP]")).items()}
    write(tmp_path / "a.tfrecord", [nothing])
    statistics, _ = inspect(tmp_path / "a.tfrecord")
    assert (statistics["rows"], statistics["tokens"], statistics["padding_share"]) == (1, 0, 1)
    assert "padding            100.00% of all positions" in list(report(statistics))


def as_arrays(features):
    return {name: np.asarray(values) for name, values in features.items()}


def test_max_examples_limits_the_rows_that_are_read(tmp_path):
    assert inspect(dataset(tmp_path), max_examples=3)[0]["rows"] == 3
    assert inspect(tmp_path, max_examples=1)[0]["rows"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"counts": {"sentences": "7"}},
        {"inputs": [{"odd": {"empty_documents": 3}}]},
        {"inputs": [{"odd": []}]},
    ],
    ids=str,
)
def test_manifest_with_invalid_counts_is_rejected(tmp_path, change):
    manifest_file = dataset(tmp_path) / record_files.MANIFEST
    files.write_json(manifest_file, files.read_json(manifest_file) | change)
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest of create_pre"):
        inspect(tmp_path)


def test_odd_input_in_the_manifest_is_reported(tmp_path):
    place = {"file": "a.txt", "line": 1, "offset": 3}
    odd = {"undecodable_bytes": {"count": 7, "files": 1, "first": [place]}}
    statistics, _ = inspect(dataset(tmp_path, odd=odd))
    assert statistics["odd"] == odd
    assert any("7 undecodable bytes" in line for line in report(statistics))


def test_every_damaged_file_is_reported(tmp_path, capsys):
    folder = dataset(tmp_path)
    first, second = (folder / tfrecords.shard_name(index, 2) for index in range(2))
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second.write_bytes(second.read_bytes() + b"x")
    (folder / "vocab.txt").unlink()
    (folder / "other.tfrecord").touch()
    with pytest.raises(InputError, match=r"files that failed verification: 4 \(listed above\)"):
        inspect(folder)
    lines = capsys.readouterr().err.splitlines()
    lines = [line for line in lines if line.startswith(str(folder))]
    size = second.stat().st_size
    manifest = files.read_json(folder / record_files.MANIFEST)
    digest = manifest["shards"][0]["sha256"]
    assert lines == [
        f"{first}: found sha256 {files.sha256(first)}; expected {digest}",
        f"{second}: found {size} bytes; expected {size - 1}",
        f"{folder}/other.tfrecord: not listed in manifest.json; expected only listed record files",
        f"{folder}/vocab.txt: cannot be read (No such file or directory)",
    ]


def damage(content, kind):
    middle = len(content) // 2
    return {
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "truncated": content[:-3],
        "text": b"no records at all\n",
    }[kind]


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("flipped", r"damaged after record 0: corrupted record at "),
        ("truncated", r"damaged after record 0: truncated record at "),
        ("text", r"record 0 cannot be read"),
    ],
)
def test_checksums_of_records_are_checked(tmp_path, kind, match):
    path = tmp_path / "a.tfrecord"
    write(path, ROWS)
    path.write_bytes(damage(path.read_bytes(), kind))
    with pytest.raises(InputError, match=match) as error:
        inspect(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"segment_ids": [0] * 11 + [99]}, r"record 1: segment_ids\[11\] is 99; expected 0 to 1"),
        ({"masked_lm_positions": [0, 0, 0, 12]}, r"masked_lm_positions\[3\] is 12; expected 0 to"),
        ({"example_ids": [1, 3] + [0] * 10}, r"record 1: example_ids\[1\] is 3; expected 1, 2"),
        ({"next_sentence_weights": np.ones(4, np.float32)}, "record 1: 4 next-sentence labels; "
         "expected one for each of its 3 examples"),
    ],
)  # fmt: skip
def test_impossible_values_are_rejected(tmp_path, change, match):
    path = tmp_path / "a.tfrecord"
    write(path, [packed_row(), packed_row() | change])
    with pytest.raises(InputError, match=match):
        inspect(path)


def test_records_of_another_shape_are_rejected(tmp_path):
    write(tmp_path / "a.tfrecord", ROWS)
    shorter = {name: values[:3] for name, values in ROWS[0].items()}
    write(tmp_path / "b.tfrecord", [shorter])
    with pytest.raises(
        InputError, match=r"b\.tfrecord: found records with .*; expected records as in"
    ):
        inspect(tmp_path)
    with tf.io.TFRecordWriter(str(tmp_path / "c.tfrecord")) as writer:
        writer.write(b"not a message")
        writer.write(tf.train.Example().SerializeToString())
    with pytest.raises(InputError, match=r"c\.tfrecord: record 0"):
        inspect(tmp_path / "c.tfrecord")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "manifest.json"),
        ('{"format": "other"}', "not a manifest "),
        (None, "no record files match"),
    ],
)
def test_invalid_folders_are_rejected(tmp_path, content, match):
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=match):
        record_files.find_record_files(str(tmp_path))


def test_program_prints_text_or_json_and_rejects_damaged_files(tmp_path, run_program):
    good, bad = dataset(tmp_path / "good"), dataset(tmp_path / "bad")
    (bad / "vocab.txt").write_text("the")
    arguments = [
        [f"--input_file={good}", "--color=always", "--num_examples=1"],
        [f"--input_file={good}", "--json"],
        [f"--input_file={bad}"],
    ]
    done = [run_program("inspect_tfrecords.py", *each) for each in arguments]
    outputs = [(each.stdout, each.stderr) for each in done]
    (text, error), (statistics, _), (nothing, errors) = outputs
    assert [each.returncode for each in done] == [0, 0, 1], error
    assert "examples           4 in 4 rows" in text
    assert "\033[36m[MASK→cat]\033[0m" in text  # masked
    assert "\033[31m[dog→cat]\033[0m" in text  # random token
    assert json.loads(statistics)["predictions"] == 6
    assert nothing == ""
    lines = errors.splitlines()
    assert any(line.startswith(f"{bad}/vocab.txt: found sha256 ") for line in lines)
    assert lines[-1].endswith("error: files that failed verification: 1 (listed above)")
    assert "Traceback" not in errors


def test_color_is_used_only_on_terminals_by_default(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not use_color("auto")  # the stdout of pytest is not a terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert use_color("auto")
    assert not use_color("never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color("auto")
    assert use_color("always")


def test_folder_given_several_times_counts_once(tmp_path, monkeypatch):
    folder = dataset(tmp_path / "k1")
    monkeypatch.chdir(tmp_path)
    shard = f"k1/{tfrecords.shard_name(0, 2)}"
    statistics, _ = inspect(f"k1,k1/,./k1,{folder},{shard}")
    assert (statistics["documents"], statistics["rows"]) == (2, 4)
