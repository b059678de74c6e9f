"""run_ner.py as a user runs it: no flags, with data at hand and without, and bad input."""

import json
import subprocess
import sys

import pytest

from keras_bert.tasks.ner.conll import read_conll

TRAIN = "Ada\tB-PER\nmet\tO\nBob\tB-PER\nLee\tI-PER\n\t\nin\tO\nUlm\tB-LOC\n\t\n" * 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to work in, with data/ner and data/bert."""
    from keras_bert.checkpoints.model_directory import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.encoder import BertEncoder

    place = tmp_path_factory.mktemp("place")
    (place / "data" / "ner").mkdir(parents=True)
    (place / "data" / "ner" / "train.conll").write_text(TRAIN)
    (place / "data" / "ner" / "dev.conll").write_text(TRAIN[:70])
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "met", "bob", "lee", "in", "ulm"]
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=128,
    )
    save_model_directory(place / "data" / "bert", BertEncoder(config), config, vocab)
    return place


def run(root, place, *arguments):
    command = [sys.executable, str(root / "run_ner.py"), *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_without_data_it_says_what_to_put_where_and_the_shortest_command(root, tmp_path):
    done = run(root, tmp_path)
    assert done.returncode == 1
    assert "found no column files and no checkpoint" in done.stderr
    assert "data/ner/train.conll" in done.stderr
    assert "python run_ner.py --data_dir=DIR --init_checkpoint=DIR --output_dir=out" in done.stderr
    assert len(done.stderr.splitlines()) < 10


def test_without_flags_it_takes_what_lies_under_data(root, place):
    done = run(root, place)
    assert done.returncode == 0, done.stderr
    output_dir = place / "out" / "ner"
    assert {path.name for path in output_dir.iterdir()} >= {
        "model",
        "checkpoints",
        "tensorboard",
        "metrics.jsonl",
        "results.json",
        "run.json",
        "predictions.conll",
    }
    results = json.loads((output_dir / "results.json").read_text())
    assert {"precision", "recall", "f1", "f1_PER", "f1_LOC"} <= results.keys()
    assert f"f1 = {results['f1']:.6g}" in done.stdout
    words = [s.words for s in read_conll(output_dir / "predictions.conll")]
    assert words == [s.words for s in read_conll(place / "data" / "ner" / "dev.conll")]


def test_a_bad_line_ends_in_one_line_and_leaves_no_folder(root, place, tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("Ada\tB-PER\nmet\n")
    done = run(
        root,
        place,
        f"--train_file={path}",
        "--init_checkpoint=data/bert",
        f"--output_dir={tmp_path / 'out'}",
    )
    assert done.returncode == 1
    assert (
        f"{path}, line 2: expected 2 columns, as line 1 has; got 1: 'met'"
        in (done.stderr.splitlines()[-1])
    )
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
