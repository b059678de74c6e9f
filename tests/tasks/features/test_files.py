"""Tests feature files: each format holds every value, and files are written atomically."""

import json
import resource

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.features import LineFeatures, check_not_input, make_writer

VOCAB = ["[PAD]", "[CLS]", "[SEP]", "a", "b"]
LAYERS = [-1, -2]


def lines_of(pooled, count=3):
    rng = np.random.default_rng(0)
    for index in range(count):
        ids = np.array([1, *rng.integers(3, 5, index), 2], np.int32)
        shape = (2, 4) if pooled else (len(ids), 2, 4)
        yield LineFeatures(index, ids, rng.normal(size=shape).astype(np.float32))


def write(path, pooling, lines):
    make_writer(path, LAYERS, pooling, VOCAB, 4)(path, lines)


def test_jsonl_has_google_keys_and_six_decimals(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, "none", lines_of(False))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["linex_index"] for row in rows] == [0, 1, 2]
    for row, line in zip(rows, lines_of(False), strict=True):
        assert row.keys() == {"linex_index", "features"}
        tokens = [feature["token"] for feature in row["features"]]
        assert tokens == [VOCAB[i] for i in line.input_ids]
        assert [layer["index"] for layer in row["features"][0]["layers"]] == LAYERS
        values = [[layer["values"] for layer in f["layers"]] for f in row["features"]]
        assert values == [
            [[round(float(x), 6) for x in layer] for layer in token_values]
            for token_values in line.values
        ]


@pytest.mark.parametrize(("pooling", "token"), [("cls", "[CLS]"), ("mean", "mean"), ("max", "max")])
def test_pooled_jsonl_has_one_entry_per_line(tmp_path, pooling, token):
    path = tmp_path / "out.jsonl"
    write(path, pooling, lines_of(True))
    row = json.loads(path.read_text().splitlines()[1])
    assert [feature["token"] for feature in row["features"]] == [token]
    expected = list(lines_of(True))[1].values
    values = [layer["values"] for layer in row["features"][0]["layers"]]
    np.testing.assert_allclose(values, expected, atol=5e-7)


@pytest.mark.parametrize("count", [1, 3, 1200])
def test_npy_is_one_array_of_all_lines(tmp_path, count):
    path = tmp_path / "out.npy"
    write(path, "mean", lines_of(True, count))
    expected = np.stack([line.values for line in lines_of(True, count)])
    loaded = np.load(path, mmap_mode="r")
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, expected)


@pytest.mark.parametrize(("name", "pooling"), [("out.npy", "cls"), ("out.npz", "none")])
def test_empty_input_gives_an_empty_array_of_the_same_form(tmp_path, name, pooling):
    write(tmp_path / name, pooling, [])
    loaded = np.load(tmp_path / name)
    assert (loaded if pooling == "cls" else loaded["values"]).shape == (0, 2, 4)


def test_input_file_is_not_overwritten(tmp_path):
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text("a\n")
    other.symlink_to(path)
    for output in (path, other):
        with pytest.raises(InputError, match=r"--output_file=.*\.jsonl is also the --input_file"):
            check_not_input(str(path), output)
    check_not_input(str(path), tmp_path / "c.jsonl")
    check_not_input("-", path)


def test_npz_has_the_tokens_of_all_lines_and_the_start_of_each_line(tmp_path):
    path = tmp_path / "new" / "out.npz"
    write(path, "none", lines_of(False))
    loaded = np.load(path)
    for index, line in enumerate(lines_of(False)):
        own = slice(*loaded["starts"][index : index + 2])
        assert np.array_equal(loaded["values"][own], line.values)
        assert np.array_equal(loaded["input_ids"][own], line.input_ids)
    assert [entry.name for entry in path.parent.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    ("name", "pooling", "expected"),
    [
        ("out.npy", "none", r"expected a file name that ends in \.jsonl or \.npz"),
        ("out.npz", "cls", r"expected a file name that ends in \.jsonl or \.npy"),
        ("out.h5", "cls", r"--output_file=.*out\.h5"),
    ],
)
def test_file_name_without_a_known_format_is_rejected(tmp_path, name, pooling, expected):
    with pytest.raises(InputError, match=expected):
        make_writer(tmp_path / name, LAYERS, pooling, VOCAB)


@pytest.mark.parametrize("name", ["out.jsonl", "out.npz"])
def test_interrupted_input_keeps_the_earlier_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("earlier")

    def broken():
        yield from lines_of(False)
        raise InputError("line 4 is bad")

    with pytest.raises(InputError, match="line 4 is bad"):
        write(path, "none", broken())
    assert path.read_text() == "earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy"])
def test_full_disk_is_reported_and_keeps_the_earlier_file(tmp_path, name):
    """A file size limit simulates the full disk."""
    path = tmp_path / name
    path.write_text("earlier")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(InputError, match=rf"{name}: cannot be written \(.*File too large\)$"):
            write(path, "cls", lines_of(True, 3000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
