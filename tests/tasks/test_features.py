"""Features equal transformers' in line order; each file format holds them, or stays as it was."""

import dataclasses
import itertools
import json
import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.tasks import features
from keras_bert.tasks.features import (
    check_not_input,
    check_output_file,
    extract_features,
    write_features,
)
from keras_bert.text.tokenizer import BertTokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def golden():
    """Returns texts, their tokens and all hidden states, written by make_features_golden.py."""
    values = dict(np.load(GOLDEN / "features.npz"))
    values["texts"] = [str(text) for text in values["texts"]]
    return values


@pytest.fixture(scope="module")
def parts(golden, tmp_path_factory):
    """Returns the encoder and the tokenizer of the model that computed the golden values."""
    folder = tmp_path_factory.mktemp("golden")
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    config = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in golden["vocab"]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(folder)
    encoder = BertEncoder(opened.config)
    opened.load_into(encoder)
    return encoder, BertTokenizer(opened.vocab)


def run(parts, lines, layers, pooling="none", length=16, **settings):
    settings = {"batch_size": 2, "jit_compile": False} | settings
    return list(extract_features(lines, *parts, layers, pooling, length, **settings))


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
def test_layers_equal_transformers_in_the_requested_order(parts, golden, jit_compile):
    rows = run(parts, golden["texts"], [-1, 0, 1], jit_compile=jit_compile)
    for index, (input_ids, values) in enumerate(rows):
        states = golden[f"hidden_states_{index}"][[2, 1, 2]]  # The first are the embeddings.
        assert input_ids.tolist() == golden[f"input_ids_{index}"].tolist()
        np.testing.assert_allclose(values, states.transpose(1, 0, 2), atol=1e-5)
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("cls", lambda states: states[:, 0]),
        ("mean", lambda states: states.mean(axis=1)),
        ("max", lambda states: states.max(axis=1)),
    ],
)
def test_pooling_is_over_the_tokens_of_a_line_without_its_padding(parts, golden, pooling, pooled):
    for index, (_, values) in enumerate(run(parts, golden["texts"], [-2, -1], pooling)):
        expected = pooled(golden[f"hidden_states_{index}"][1:])
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_line_that_is_too_long_is_truncated_and_counted(parts, caplog):
    long = "wa wb wc wd we wf wg wh"
    rows = run(parts, [long, f"{long} ||| wz", "wa"], [-1], length=7)
    assert [" ".join(parts[1].vocab[i] for i in input_ids) for input_ids, _ in rows] == [
        "[CLS] wa wb wc wd we [SEP]",
        "[CLS] wa wb wc [SEP] wz [SEP]",
        "[CLS] wa [SEP]",
    ]
    assert "2 of 3 lines had more than 7 tokens and were truncated" in caplog.text


def test_lines_are_read_one_window_at_a_time(parts, monkeypatch):
    monkeypatch.setattr(features, "WINDOW_BATCHES", 3)
    read = itertools.count()
    lines = ("wa wb" if next(read) % 2 else "wc" for _ in itertools.count())
    rows = extract_features(lines, *parts, [-1], "cls", 16, 2, False)
    values = [next(rows)[1]]
    assert next(read) == 6
    values += [value for _, value in itertools.islice(rows, 6)]
    np.testing.assert_allclose(values[0], values[2], atol=1e-6)
    assert next(read) == 13


def test_batch_must_fit_in_memory_but_is_not_larger_than_the_file(parts, monkeypatch):
    monkeypatch.setattr("keras_bert.models.memory.available_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"--batch_size=1000: 512 rows of 3 tokens need at least"):
        run(parts, ["wa"] * 512, [-1], "cls", batch_size=1000)


@pytest.mark.parametrize("layers", [[2], [-3], [], [0, 5]])
def test_layer_that_does_not_exist_is_rejected(parts, layers):
    message = r"--layers=.*: expected numbers from 0 .* to 1 .*, or from -2"
    with pytest.raises(InputError, match=message):
        run(parts, ["wa"], layers)


def test_first_token_of_a_left_to_right_encoder_is_rejected(parts):
    causal = BertEncoder(dataclasses.replace(parts[0].config, is_decoder=True))
    with pytest.raises(InputError, match=r"--pooling=cls: in a left-to-right model .*mean or max"):
        run((causal, parts[1]), ["wa"], [-1], "cls")


# --- files ---

VOCAB = ["[PAD]", "[CLS]", "[SEP]", "a", "b"]
LAYERS = [-1, -2]


def lines_of(pooled, count=3):
    rng = np.random.default_rng(0)
    for index in range(count):
        ids = np.array([1, *rng.integers(3, 5, index), 2], np.int32)
        shape = (2, 4) if pooled else (len(ids), 2, 4)
        yield ids, rng.normal(size=shape).astype(np.float32)


def write(path, pooling, lines):
    write_features(path, lines, LAYERS, pooling, VOCAB, 4)


@pytest.mark.parametrize("pooling", ["none", "cls", "mean", "max"])
def test_jsonl_has_google_keys_and_six_decimals(tmp_path, pooling):
    path, pooled = tmp_path / "out.jsonl", pooling != "none"
    write(path, pooling, lines_of(pooled))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for index, (row, (ids, expected)) in enumerate(zip(rows, lines_of(pooled), strict=True)):
        assert row.keys() == {"linex_index", "features"}
        assert row["linex_index"] == index
        tokens = [feature["token"] for feature in row["features"]]
        names = {"none": [VOCAB[i] for i in ids], "cls": ["[CLS]"]}
        assert tokens == names.get(pooling, [pooling])
        assert [layer["index"] for layer in row["features"][0]["layers"]] == LAYERS
        values = [[layer["values"] for layer in f["layers"]] for f in row["features"]]
        assert values == np.round(expected.astype(float).reshape(-1, 2, 4), 6).tolist()


@pytest.mark.parametrize("count", [0, 1, 1200])
def test_npy_is_one_array_of_all_lines(tmp_path, count):
    write(tmp_path / "out.npy", "mean", lines_of(True, count))
    loaded = np.load(tmp_path / "out.npy", mmap_mode="r" if count else None)
    expected = [values for _, values in lines_of(True, count)]
    assert (loaded.dtype, loaded.shape) == (np.float32, (count, 2, 4))
    assert np.array_equal(loaded, np.reshape(expected, [count, 2, 4]))


@pytest.mark.parametrize("count", [0, 3])
def test_npz_has_the_tokens_of_all_lines_and_the_start_of_each_line(tmp_path, count):
    path = tmp_path / "new" / "out.npz"
    write(path, "none", lines_of(False, count))
    loaded = np.load(path)
    assert loaded["values"].shape == (loaded["starts"][-1], 2, 4)
    for index, (ids, values) in enumerate(lines_of(False, count)):
        of_line = slice(*loaded["starts"][index : index + 2])
        assert np.array_equal(loaded["values"][of_line], values)
        assert np.array_equal(loaded["input_ids"][of_line], ids)
    assert [entry.name for entry in path.parent.iterdir()] == ["out.npz"]


def test_input_file_is_not_overwritten(tmp_path):
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text("a\n")
    other.symlink_to(path)
    for output in (path, other):
        with pytest.raises(InputError, match=r"--output_file=.*\.jsonl is also the --input_file"):
            check_not_input(str(path), output)
    check_not_input(str(path), tmp_path / "c.jsonl")
    check_not_input("-", path)


@pytest.mark.parametrize(
    ("name", "pooling", "expected"),
    [("out.npy", "none", "npz"), ("out.npz", "cls", "npy"), ("out.h5", "cls", "npy")],
)
def test_file_name_without_a_known_format_is_rejected(name, pooling, expected):
    message = rf"{name}: got --pooling={pooling}; expected .* ends in \.jsonl or \.{expected}"
    with pytest.raises(InputError, match=message):
        check_output_file(Path(name), pooling)
    check_output_file(Path("out.jsonl"), pooling)


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy"])
@pytest.mark.parametrize("failure", ["input", "disk"])
def test_failure_keeps_the_earlier_file(tmp_path, name, failure):
    """A limit of the file size simulates a full disk."""

    def lines():
        yield from lines_of(True, 3000 if failure == "disk" else 3)
        raise InputError("line 4 is bad")

    path = tmp_path / name
    path.write_text("earlier")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    message = rf"{name}: cannot be written \(.*File too large\)$" if failure == "disk" else "line 4"
    if failure == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(InputError, match=message):
            write(path, "cls", lines())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
