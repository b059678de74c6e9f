"""extract_features.py as a user runs it: no flags, a whole run, bad flags."""

import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.encoder import BertEncoder

    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    folder = tmp_path_factory.mktemp("model") / "bert"
    save_model_directory(folder, BertEncoder(config), config, vocab)
    return folder


def run(root, *arguments, **options):
    command = [sys.executable, "extract_features.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, **options)


def test_without_flags_it_says_what_it_needs_and_the_shortest_command(root):
    done = run(root)
    assert done.returncode == 1
    assert "--input_file and --output_file and --init_checkpoint not given" in done.stderr
    assert "python extract_features.py --input_file=FILE" in done.stderr
    assert len(done.stderr.splitlines()) < 10


def test_standard_input_goes_to_jsonl_line_by_line(root, checkpoint, tmp_path):
    path = tmp_path / "out.jsonl"
    flags = (f"--output_file={path}", f"--init_checkpoint={checkpoint}", "--max_seq_length=16")
    done = run(root, "--input_file=-", "--layers=-1,-2", *flags, input="A b\nc ||| d\n\n")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    tokens = [" ".join(f["token"] for f in row["features"]) for row in rows]
    assert tokens == ["[CLS] a b [SEP]", "[CLS] c [SEP] d [SEP]", "[CLS] [SEP]"]
    assert np.shape(rows[0]["features"][0]["layers"][0]["values"]) == (8,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers=last"], "--layers=last: expected whole numbers"),
        (["--input_file=none.txt"], "none.txt: cannot be read"),
    ],
)
def test_bad_flags_end_in_one_line(root, checkpoint, tmp_path, flags, message):
    (tmp_path / "in.txt").write_text("a\n")
    done = run(
        root,
        f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/out.npz",
        f"--init_checkpoint={checkpoint}",
        "--max_seq_length=16",
        "--layers=-1",
        *flags,
    )
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.npz").exists()
