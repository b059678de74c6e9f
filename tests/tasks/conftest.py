"""Fixtures: runs of every task, with small models and random weights."""

import json
from pathlib import Path

import keras
import pytest

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.?"]
VOCAB += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
CONFIG = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 96,
}
MODELS = {
    "classification": lambda config: BertClassifier(config, 2),
    "question_answering": BertSpanLabeler,
    "ner": lambda config: BertTokenClassifier(config, 3),
    "fill_mask": BertPretrainer,
    "embedding": BertEncoder,
}
LABELS = {"classification": ["no", "yes"], "ner": ["O", "B-PER", "I-PER"]}
SETTINGS = {
    "classification": {"task_name": "mrpc", "max_seq_length": 40, "learning_rate": 1e-4},
    "question_answering": {"version_2_with_negative": True, "max_seq_length": 80},
}
RESULTS = {
    "question_answering": {"best_f1_thresh": 0.0, "null_score_diff_threshold": -1.5, "f1": 50.0}
}


@pytest.fixture(scope="session")
def vocab() -> list[str]:
    return VOCAB


@pytest.fixture(scope="session")
def make_run():
    """Returns a function that writes a run's folder, from its task, sizes and settings."""

    def make(folder: Path, task: str, settings: dict | None = None, **sizes) -> Path:
        keras.utils.set_random_seed(0)
        config = BertConfig.from_dict(CONFIG | sizes)
        model = MODELS[task](config)
        save_model_directory(folder / "model", model, VOCAB, labels=LABELS.get(task))
        run_settings = {"do_train": True, **SETTINGS.get(task, {}), **(settings or {})}
        (folder / "run.json").write_text(json.dumps({"settings": run_settings}))
        (folder / "results.json").write_text(json.dumps(RESULTS.get(task, {"loss": 0.5})))
        return folder

    return make


@pytest.fixture(scope="session")
def runs(make_run, tmp_path_factory) -> dict[str, Path]:
    """Returns the folder of a run for each task."""
    root = tmp_path_factory.mktemp("runs")
    return {task: make_run(root / task, task, initializer_range=0.3) for task in MODELS}


@pytest.fixture(scope="session")
def edit_json():
    """Returns a function that changes keys of a JSON file; the value None removes a key."""

    def edit(path: Path, **values) -> None:
        content = json.loads(path.read_text()) | values
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return edit


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file, from its name and text, and returns its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write
