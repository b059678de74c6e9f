"""Fixtures: exports of small models of every task with the files of all engines."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.engines import PRECISIONS
from tests.export.conftest import VOCAB, make_task

pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")

INSTALLED = [name for name in PRECISIONS if importlib.util.find_spec(name)]


@pytest.fixture(scope="session")
def export_with_engines(tmp_path_factory) -> Callable[..., Path]:
    """Returns a function: (name in TASKS, compute type) -> version folder, created once."""
    folders: dict[tuple[str, str], Path] = {}

    def export(name: str, compute_type: str = "float32") -> Path:
        key = name, compute_type
        if key not in folders:
            folder = tmp_path_factory.mktemp(name) / "1"
            folders[key] = make_task(name).export(
                folder, compute_type=compute_type, engines=tuple(PRECISIONS), int8=True
            )
        return folders[key]

    return export


@pytest.fixture(scope="session")
def requests_of() -> Callable[[dict], dict[str, dict[str, tf.Tensor]]]:
    """Returns a function: content of export.json -> {signature: a request of several rows}."""
    rng = np.random.default_rng(0)
    # A periodic text would have equal answers in several windows.
    words = " ".join(rng.choice(["the", "m\xe4t", "cat", "sat", "on"], 80)).encode()
    texts = [b"The cat [MASK] on the mat. [MASK]", b"", b"Wh\xff o? " + words]
    texts += [b"on the mat", b"who sat on [MASK]"]
    lengths = np.array([[7], [12], [1], [0], [20]])
    values = {
        "words": np.array([[b"The", b"cat", b"U.S."], [b"\xff", b"sat", b""], [b""] * 3], object),
        "text_pair": np.array(texts[::-1], object),
        "question": np.array([b"Who sat?", b"", b"\xff", b"the mat", b"on"], object),
        "input_ids": rng.integers(4, len(VOCAB), [5, 20]).astype(np.int32),
        "input_mask": (np.arange(20) < lengths).astype(np.int32),
        "segment_ids": rng.integers(0, 2, [5, 20]).astype(np.int32),
    }

    def make(info: dict) -> dict[str, dict[str, tf.Tensor]]:
        default = np.array(texts, object)
        return {
            name: {key: tf.constant(values.get(key, default)) for key in signature["inputs"]}
            for name, signature in info["signatures"].items()
        }

    return make
