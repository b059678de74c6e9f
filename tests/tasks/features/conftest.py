"""The tiny model of the golden files: its folder, and what transformers makes of some texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="package")
def golden():
    """Texts, their pieces and the hidden states of every layer, by make_features_golden.py."""
    values = dict(np.load(GOLDEN / "features.npz"))
    values["texts"] = [str(text) for text in values["texts"]]
    return values


@pytest.fixture(scope="package")
def checkpoint(golden, tmp_path_factory):
    """The folder of the model that made them."""
    folder = tmp_path_factory.mktemp("golden")
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    config = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in golden["vocab"]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
