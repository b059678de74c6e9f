"""Tests of inspecting records: damaged files, statistics, and examples printed as text."""

import json
import re

import numpy as np
import pytest

from data_tools import tfrecords
from data_tools.settings import Settings
from keras_bert import files
from keras_bert.pretraining import record_files

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ",", "dog", "水"]
IDS = {token: number for number, token in enumerate(VOCAB)}
S, P = 12, 4


def row(text_a, text_b="", label=0):
    """Makes an unpacked row from text.

    A word `now/token` is a prediction: `now` is the input, `token` is the label.
    """
    words = [
        (segment, *word.partition("/")[::2])
        for segment, text in enumerate((text_a, text_b))
        for word in text.split()
    ]
    masks = [(at, IDS[original]) for at, (_, _, original) in enumerate(words) if original]
    features = {
        "input_ids": [IDS[now] for _, now, _ in words],
        "input_mask": [1] * len(words),
        "segment_ids": [segment for segment, _, _ in words],
        "masked_lm_positions": [position for position, _ in masks],
        "masked_lm_ids": [token_id for _, token_id in masks],
        "masked_lm_weights": [1] * len(masks),
    }
    for name, values in features.items():
        values += [0] * ((P if name.startswith("masked") else S) - len(values))
    weights = np.array(features["masked_lm_weights"], np.float32)
    return features | {"masked_lm_weights": weights, "next_sentence_labels": [label]}


ROWS = [
    row("[CLS] the [MASK]/cat ##s sat [SEP]", "[MASK]/the dog/cat , [SEP]", label=1),
    row("[CLS] the cat [MASK]/##s sat [SEP]", "the cat , [SEP]"),  # same tokens, other masks
    row("[CLS] sat/sat [UNK] [SEP]", "dog [SEP]"),
    row("[CLS] sat/sat [UNK] [SEP]", "dog [SEP]"),  # same tokens, same masks
]
PACKED = row("[CLS] the [MASK]/cat [SEP] [CLS] dog/dog [SEP] [CLS] 水 水 [SEP]") | {
    "position_ids": [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0],
    "example_ids": [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0],
    "next_sentence_positions": [0, 4, 7, 0],
    "next_sentence_labels": [0, 1, 0, 0],
    "next_sentence_weights": np.array([1, 1, 1, 0], np.float32),
}


def write(path, rows):
    features = {name: np.array([each[name] for each in rows]) for name in rows[0]}
    return tfrecords.write_shard(path, [tfrecords.encode_examples(features)])


def dataset(folder, rows=ROWS, odd=None, **settings):
    """Creates a dataset of two shards, as create_pretraining_data writes it."""
    files.write_bytes(folder / "vocab.txt", "".join(f"{token}\n" for token in VOCAB).encode())
    entries = [
        write(folder / tfrecords.shard_name(index, 2), part)
        for index, part in enumerate((rows[:1], rows[1:] or rows))
    ]
    manifest = {
        "format": record_files.FORMAT,
        "version": record_files.VERSION,
        "settings": Settings(max_seq_length=S, max_predictions_per_seq=P, **settings).to_dict(),
        "vocab": {"file": "vocab.txt", "sha256": files.sha256(folder / "vocab.txt")},
        "inputs": [{"file": "a.txt", "odd": odd or {}}],
        "counts": {"documents": 2, "sentences": 7, "examples": 4, "rows": 4},
        "shards": entries,
    }
    files.write_json(folder / record_files.MANIFEST, manifest)
    return folder


@pytest.fixture
def inspected(run_program):
    """Returns a function: (path, flags) -> the statistics, their lines, the lines of examples."""

    def run(path, **flags):
        flags = {"input_file": path, "num_examples": 9} | flags
        done = [run_program("inspect_tfrecords.py", *each, **flags) for each in ((), ["--json"])]
        assert [each.returncode for each in done] == [0, 0], done
        text, _, examples = done[0].stdout.partition("\n\n")
        lines = [line for line in examples.split("\n") if line]
        return json.loads(done[1].stdout), text.split("\n"), lines

    return run


def test_statistics(tmp_path, inspected):
    place = {"file": "a.txt", "line": 1, "offset": 3}
    odd = {"undecodable_bytes": {"count": 7, "files": 1, "first": [place]}}
    statistics, text, _ = inspected(dataset(tmp_path, odd=odd))
    assert any("undecodable bytes: 7; replaced" in line for line in text)
    assert "examples           4 in 4 rows" in text
    assert statistics == {
        "odd": odd,
        "next_sentence": "random",
        **{"documents": 2, "sentences": 7, "rows": 4, "examples": 4, "tokens": 32},
        **{"padding_share": 16 / 48, "label_1_share": 1 / 4, "unknown_share": 2 / 32},
        **{"predictions": 6, "predicted_share": 6 / 32, "duplicates": 2},
        **{"mask_share": 3 / 6, "random_share": 1 / 6, "kept_share": 2 / 6},
    }


def test_examples_are_printed_as_text(tmp_path, inspected):
    _, _, lines = inspected(dataset(tmp_path), num_examples=3)
    first, last = (tmp_path / tfrecords.shard_name(index, 2) for index in range(2))
    assert lines == [
        f"{first} record 0: 10 tokens, 3 to predict, B is a random text",
        "  A: [CLS] the [MASK→cat]s sat [SEP]",
        "  B: [MASK→the] [dog→cat] , [SEP]",
        f"{last} record 0: 10 tokens, 1 to predict, B follows A",
        "  A: [CLS] the cat[MASK→s] sat [SEP]",
        "  B: the cat , [SEP]",
        f"{last} record 1: 6 tokens, 1 to predict, B follows A",
        "  A: [CLS] [=sat] [UNK] [SEP]",
        "  B: dog [SEP]",
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("order", ("in order", "swapped")), (None, ("B follows A", "B is a random text"))],
)
def test_labels_are_printed_in_words(tmp_path, inspected, kind, words):
    folder = dataset(tmp_path, next_sentence=kind or "random")
    if kind is None:  # the records of another tool
        (folder / record_files.MANIFEST).unlink()
    _, _, lines = inspected(folder, vocab_file=folder / "vocab.txt")
    titles = [line for line in lines if " record " in line]
    assert [title.rpartition(", ")[2] for title in titles] == [words[1], *[words[0]] * 3]


def test_dynamic_records_have_no_masks(tmp_path, inspected):
    rows = [{k: v for k, v in each.items() if not k.startswith("masked")} for each in ROWS]
    statistics, text, lines = inspected(dataset(tmp_path, rows, dynamic=True))
    assert lines[0].endswith("10 tokens, masks are generated during training, B is a random text")
    assert "predictions" not in statistics
    assert "predicted          masks are generated during training" in text


def test_every_example_of_a_packed_row_is_printed_and_counted(tmp_path, inspected):
    statistics, _, lines = inspected(dataset(tmp_path, [PACKED] * 3, pack=True), num_examples=1)
    path = tmp_path / tfrecords.shard_name(0, 2)
    assert lines == [
        f"{path} record 0, example 1 of 3: 4 tokens, 1 to predict, B follows A",
        "  A: [CLS] the [MASK→cat] [SEP]",
        f"{path} record 0, example 2 of 3: 3 tokens, 1 to predict, B is a random text",
        "  A: [CLS] [=dog] [SEP]",
        f"{path} record 0, example 3 of 3: 4 tokens, 0 to predict, B follows A",
        "  A: [CLS] 水 水 [SEP]",
    ]
    assert (statistics["rows"], statistics["examples"], statistics["tokens"]) == (3, 9, 33)
    assert statistics["label_1_share"] == 1 / 3
    assert statistics["duplicates"] == 6


def test_files_of_other_tools_need_the_vocabulary_to_print_text(
    tmp_path, write_records, run_program, inspected
):
    path = write_records(tmp_path / "google.tfrecord", 40)
    statistics, _, lines = inspected(path)
    assert lines == [
        "No vocabulary found next to the files; use --vocab_file to show examples as text"
    ]
    assert statistics["examples"] == 40
    assert statistics["predicted_share"] > 0
    assert "mask_share" not in statistics
    vocab = tmp_path / "v.txt"
    vocab.write_text("".join(f"{p}\n" for p in [*VOCAB, *(f"w{i}" for i in range(38))]))
    statistics, _, lines = inspected(path, vocab_file=vocab)
    assert len(lines) == 9 * 3
    shares = [statistics[f"{kind}_share"] for kind in ("mask", "random", "kept")]
    assert sum(shares) == pytest.approx(1)
    vocab.write_text("".join(f"{token}\n" for token in VOCAB))
    done = run_program("inspect_tfrecords.py", input_file=path, vocab_file=vocab)
    assert done.returncode == 1
    assert re.search(r"google\.tfrecord: record \d+: .*input_ids is out of range", done.stderr)


@pytest.mark.parametrize("pack", [False, True])
def test_rows_of_padding_are_counted(tmp_path, inspected, pack):
    padding = PACKED if pack else row("[CLS] the [SEP]")
    nothing = {name: np.asarray(values) * 0 for name, values in padding.items()}
    statistics, text, _ = inspected(dataset(tmp_path, [nothing], pack=pack))
    assert (statistics["rows"], statistics["tokens"], statistics["padding_share"]) == (2, 0, 1)
    assert "padding            100.00% of all positions" in text


def test_every_damaged_file_is_reported(tmp_path, run_program):
    folder = dataset(tmp_path)
    first, second = (folder / tfrecords.shard_name(index, 2) for index in range(2))
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second.write_bytes(second.read_bytes() + b"x")
    (folder / "vocab.txt").unlink()
    (folder / "other.tfrecord").touch()
    done = run_program("inspect_tfrecords.py", input_file=folder)
    assert (done.returncode, done.stdout) == (1, "")
    *_, last = done.stderr.splitlines()
    assert last.endswith("error: files that failed verification: 4 (listed above)")
    lines = [line for line in done.stderr.splitlines() if line.startswith(str(folder))]
    size = second.stat().st_size
    manifest = files.read_json(folder / record_files.MANIFEST)
    digest = manifest["shards"][0]["sha256"]
    assert lines == [
        f"{first}: found sha256 {files.sha256(first)}; expected {digest}",
        f"{second}: found {size} bytes; expected {size - 1}",
        f"{folder}/other.tfrecord: not listed in manifest.json; expected only listed record files",
        f"{folder}/vocab.txt: cannot be read (No such file or directory)",
    ]
