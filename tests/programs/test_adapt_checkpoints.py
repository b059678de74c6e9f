"""`keras-bert adapt` from checkpoints of all formats, and on JAX: the same training."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.models import BertPretrainer
from tests.other_formats import WRITERS
from tests.programs.test_adapt import command, one_line, run, save, write_documents

STEPS = {"num_train_steps": 2, "mixed_precision": "float32"}


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Creates a folder with documents and a Hugging Face model directory."""
    place = tmp_path_factory.mktemp("adapt")
    write_documents(place / "documents")
    save(place / "bert")
    return place


@pytest.fixture(scope="module")
def finished(place):
    """Returns the folder of an adaptation of the Hugging Face model directory."""
    assert run(place, place / "finished", **STEPS) == 0
    return place / "finished"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tf1", "keras_hub"])
def test_checkpoint_of_another_format_gives_the_same_model(place, finished, tmp_path, form):
    model = BertPretrainer.from_pretrained(place / "bert")
    WRITERS[form](tmp_path / form, model, open_checkpoint(place / "bert").description)
    assert run(place, tmp_path / "out", init_checkpoint=tmp_path / form, **STEPS) == 0
    assert results(tmp_path / "out") == results(finished)
    model, expected = (
        load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "out", finished)
    )
    for name, values in expected.items():
        np.testing.assert_array_equal(model[name], values, name)


@pytest.mark.slow
def test_adaptation_on_jax(place, finished, backend_python, tmp_path):
    backend_python("jax")
    environment = {"KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "keras_bert",
            "adapt",
            *command(place, tmp_path / "out", **STEPS)[1:],
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert settings["backend"] == "jax"
    assert results(tmp_path / "out") == pytest.approx(results(finished), rel=1e-3)


def test_vocabulary_without_unk_is_rejected(place, tmp_path, capfd):
    shutil.copytree(place / "bert", tmp_path / "bert")
    vocab = tmp_path / "bert" / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("[UNK]\n", "[OTHER]\n"))
    assert run(place, tmp_path / "out", init_checkpoint=tmp_path / "bert") == 1
    message = f"vocabulary {vocab}: expected the special token(s) [UNK]"
    assert message in one_line(capfd.readouterr().err)
    assert not (tmp_path / "out").exists()
