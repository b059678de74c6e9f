"""Fixtures: the tiny model of the golden files, and the outputs of transformers for some texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="package")
def golden():
    """Returns texts, their tokens and all hidden states, written by make_features_golden.py."""
    values = dict(np.load(GOLDEN / "features.npz"))
    values["texts"] = [str(text) for text in values["texts"]]
    return values


@pytest.fixture(scope="package")
def checkpoint(golden, tmp_path_factory):
    """Returns the folder of the model that computed the golden values."""
    folder = tmp_path_factory.mktemp("golden")
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    config = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in golden["vocab"]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
