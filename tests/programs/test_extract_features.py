"""Runs extract_features.py as a user does: complete runs."""

import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint, tmp_path_factory):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 16}
    return make_checkpoint(tmp_path_factory.mktemp("model") / "bert", "abcdefgh", **sizes)


@pytest.mark.slow
def test_each_line_of_standard_input_becomes_a_jsonl_row(run_program, checkpoint, tmp_path):
    path = tmp_path / "out.jsonl"
    flags = {"output_file": path, "init_checkpoint": checkpoint, "max_seq_length": 16}
    text = "A b\nc ||| d\n\n"
    done = run_program(
        "extract_features.py", "--input_file=-", "--layers=-1,-2", input=text, **flags
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    tokens = [" ".join(f["token"] for f in row["features"]) for row in rows]
    assert tokens == ["[CLS] a b [SEP]", "[CLS] c [SEP] d [SEP]", "[CLS] [SEP]"]
    assert np.shape(rows[0]["features"][0]["layers"][0]["values"]) == (8,)


@pytest.mark.slow
def test_default_layers_are_those_of_the_model(run_program, checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("a b\n")
    path = tmp_path / "out.npy"
    flags = {"input_file": tmp_path / "in.txt", "output_file": path, "init_checkpoint": checkpoint}
    flags |= {"max_seq_length": 16, "pooling": "mean", "jit_compile": False}
    done = run_program("extract_features.py", **flags)
    assert done.returncode == 0, done.stderr
    assert "Extracting the layers -1,-2\n" in done.stderr
    assert np.load(path).shape == (1, 2, 8)
