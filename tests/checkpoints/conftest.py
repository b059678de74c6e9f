"""Fixtures: a tiny BERT with nontrivial weights, and scripts in .peers with other libraries."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.models.encoder import BertEncoder

MODELS = {
    "encoder": BertEncoder,
    "pretrainer": BertPretrainer,
    "classifier": lambda config: BertClassifier(config, 3),
    "token_classifier": lambda config: BertTokenClassifier(config, 5),
    "span_labeler": BertSpanLabeler,
}


def edit(path: Path, **changes) -> None:
    """Changes keys of a JSON file, which may not exist yet; None removes a key."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content = {key: value for key, value in (content | changes).items() if value is not None}
    path.write_text(json.dumps(content))


def check_rejected(path: Path, model: keras.Model, *messages: str) -> None:
    """Checks that loading fails with one line, which has the messages, and changes no weight."""
    before = model.get_weights()
    with pytest.raises(InputError) as error:
        open_checkpoint(path).load_into(model)
    assert "\n" not in str(error.value)
    for message in messages:
        assert re.search(message, str(error.value))
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """Returns `config`, `vocab` and `make(kind)`, which creates a model with random weights."""
    vocab = "[PAD] [UNK] [CLS] [SEP] [MASK] all work and no play makes jack a dull boy caf ##e"
    vocab = vocab.split()
    config = BertConfig(len(vocab), 8, 2, 2, 12, max_position_embeddings=16)

    def make(kind: str, config: BertConfig = config):
        """Creates a model and moves every weight away from 0 and 1."""
        model = MODELS[kind](config)
        random = np.random.default_rng(0)
        for variable in model.weights:
            variable.assign(random.normal(0.1, 0.3, variable.shape))
        return model

    return SimpleNamespace(config=config, vocab=vocab, make=make)


@pytest.fixture(scope="session")
def run_in_peers(root, peers_python) -> Callable[..., None]:
    """Returns a function that runs a script of tests/golden in .peers; skips if it is missing."""

    def run_script(name: str, *arguments: Path) -> None:
        command = [peers_python, root / "tests" / "golden" / name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr

    return run_script
