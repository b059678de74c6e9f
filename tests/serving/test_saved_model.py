"""A version folder: it appears only when complete, and its model returns finite outputs."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving.saved_model import write_saved_model
from tests.disk import SmallDisk


class Served(tf.Module):
    """A model that returns the number of bytes of a text divided by a weight."""

    def __init__(self, weight: float, unused: int = 0):
        super().__init__()
        self.weight = tf.Variable(weight)
        self.unused = tf.Variable(tf.zeros([unused]))

    def signatures(self) -> dict:
        def score(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"score": tf.cast(tf.strings.length(text), tf.float32) / self.weight}

        spec = tf.TensorSpec([None], tf.string, name="text")
        return {"serving_default": tf.function(score, input_signature=[spec])}


def write(folder: Path, weight: float = 1.0) -> None:
    write_saved_model(Served(weight), folder, {}, lambda info: "", {"text": "A text."})


@pytest.mark.parametrize("weight", [0.0, np.nan])
def test_model_with_non_finite_outputs_is_rejected(weight: float, tmp_path: Path):
    with pytest.raises(
        InputError, match="`serving_default` returns values that are not finite in score;"
    ):
        write(tmp_path / "1", weight)
    assert not list(tmp_path.iterdir())


def test_every_file_is_flushed_to_disk_before_the_folder_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed = set()

    def fsync(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "1")
    names = {Path(name).name for name in flushed if "partial" in name}
    written = {path.name for path in (tmp_path / "1").rglob("*")}
    assert {"variables.index", "variables", "saved_model.pb", "assets.extra"} <= written
    assert written <= names


@pytest.mark.parametrize("free", [0, 8192, 1 << 16])
def test_export_to_a_full_disk_is_an_error_and_leaves_no_files(small_disk: SmallDisk, free: int):
    """The disk is full from the start, before the weights, or near the end of the weights."""
    served, folder = Served(1.0, unused=1 << 16), small_disk.path / "1"

    def export() -> None:
        write_saved_model(served, folder, {}, lambda info: "", {"text": "A text."})

    small_disk.fill(free)
    with pytest.raises(InputError, match=r"(?s)1: cannot be written \(.*[Nn]o space left"):
        export()
    assert os.listdir(small_disk.path) == []
    small_disk.release()
    export()
    assert (folder / "saved_model.pb").exists()
