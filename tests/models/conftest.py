"""Fixtures: the golden model of tests/golden/make_model_golden.py, opened for each kind of rows."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from keras_bert.checkpoints.hugging_face import open_model_directory
from keras_bert.models import BertPretrainer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="session")
def golden_directory(tmp_path_factory):
    """Returns a function: settings of config.json -> the golden weights as transformers saves."""

    @functools.cache
    def write(**settings) -> Path:
        folder = tmp_path_factory.mktemp("golden")
        weights = dict(np.load(GOLDEN / "model_weights.npz"))
        config = json.loads(str(weights.pop("config"))) | settings
        (folder / "config.json").write_text(json.dumps(config))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return write


@pytest.fixture(scope="session")
def golden_model(golden_directory):
    """Returns a function: settings of config.json -> the pre-trainer with the golden weights."""

    @functools.cache
    def make(**settings) -> BertPretrainer:
        opened = open_model_directory(golden_directory(**settings))
        model = BertPretrainer(opened.config)
        report = opened.load_into(model)
        assert (report.new, report.ignored) == ((), ())
        return model

    return make


@pytest.fixture(scope="session")
def golden_batches():
    """Returns {name: arrays}: the batch with transformers' outputs and gradients, of each model."""
    names = ("model_gelu", "model_gelu_new", "left_to_right")
    batches = {name: dict(np.load(GOLDEN / f"{name}.npz")) for name in names}
    inputs = {name: batches["model_gelu"][name] for name in ROW}
    return batches | {"left_to_right": batches["left_to_right"] | inputs}


ROW = ("input_ids", "input_mask", "segment_ids")


def tensors(batch, names=None):
    """Returns the entries of a batch as tensors."""
    return {name: tf.constant(batch[name]) for name in names or batch}
