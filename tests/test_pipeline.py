"""From text to a served model with the programs alone; each reads the output of the one before."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers the ops of the loaded model.

# The text is cased, and its length is no program's default.
DOCUMENTS = """The Cat sat on the Mat .
The Dog saw the Cat .
A Mat is red .

The Dog ran .
A Cat saw a red Mat .
The Mat is on the Dog .
"""
LENGTH, PREDICTIONS = 24, 3
TEXT = "The [MASK] sat on the Mat ."
CONFIG = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory) -> Path:
    """Returns a folder with records of the documents, and their vocabulary."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "text.txt").write_text(DOCUMENTS)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(DOCUMENTS.split()))]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(tokens)}))
    flags = {
        "input_file": folder / "text.txt",
        "vocab_file": folder / "vocab.txt",
        "output_dir": folder / "records",
        "do_lower_case": False,
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "num_workers": 1,
    }
    command = [sys.executable, "-m", "keras_bert", "create-pretraining-data"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_model_trained_from_text_is_exported_and_served(run_program, folder: Path):
    done = run_program(
        "run_pretraining.py",
        input_file=folder / "records",
        bert_config=folder / "config.json",
        output_dir=folder / "run",
        num_train_steps=2,
        num_warmup_steps=0,
        train_batch_size=4,
        do_eval=False,
        mixed_precision="float32",
        jit_compile=False,
        export=True,
    )
    assert done.returncode == 0, done.stderr
    served = folder / "run" / "export" / "1"
    assert f"export = {served}" in done.stdout

    settings = json.loads((folder / "run" / "run.json").read_text())["settings"]
    assert settings["max_seq_length"] == LENGTH
    assert settings["max_predictions_per_seq"] == PREDICTIONS
    info = json.loads((served / "export.json").read_text())
    assert (info["max_seq_length"], info["do_lower_case"]) == (LENGTH, False)

    answer = tf.saved_model.load(str(served)).signatures["serving_default"](tf.constant([TEXT]))
    (filled_tokens,) = answer["tokens"].numpy()[0]
    shown = run_program("run_fill_mask.py", TEXT, model_dir=folder / "run" / "model")
    assert shown.returncode == 0, shown.stderr
    filled = re.findall(r"(\S+) [\d.]+%", shown.stdout)
    assert [token.decode() for token in filled_tokens] == filled
