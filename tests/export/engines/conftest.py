"""Fixtures: exports of small models of every task with the files of all engines."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.engines import PRECISIONS
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.tasks.classification.processor import ClassifierSettings
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.processor import EmbedderSettings
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller, MaskFillerSettings
from keras_bert.tasks.ner.processor import TaggerSettings
from keras_bert.tasks.ner.task import EntityTagger
from keras_bert.tasks.question_answering.data import AnswerSettings
from keras_bert.tasks.question_answering.task import QuestionAnswerer
from keras_bert.text.tokenizer import BertTokenizer
from tests.export.conftest import CONFIG, TAGS, VOCAB

pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")

INSTALLED = [name for name in PRECISIONS if importlib.util.find_spec(name)]
LABELS = ("no", "maybe", "yes")

TASKS: dict[str, Callable[[], Any]] = {
    "pair": lambda: TextClassifier(
        BertClassifier(CONFIG, 3),
        BertTokenizer(VOCAB),
        ClassifierSettings(LABELS, "single_label", 16, True),
    ),
    "multi_label": lambda: TextClassifier(
        BertClassifier(CONFIG, 3),
        BertTokenizer(VOCAB),
        ClassifierSettings(LABELS, "multi_label", 16),
    ),
    "regression": lambda: TextClassifier(
        BertClassifier(CONFIG, 1), BertTokenizer(VOCAB), ClassifierSettings((), "regression", 16)
    ),
    "question_answering": lambda: QuestionAnswerer(
        BertSpanLabeler(CONFIG),
        BertTokenizer(VOCAB),
        AnswerSettings(24, 8, 8, 3, 5, version_2_with_negative=True),
    ),
    "ner": lambda: EntityTagger(
        BertTokenClassifier(CONFIG, len(TAGS)), BertTokenizer(VOCAB), TaggerSettings(TAGS, 16)
    ),
    "fill_mask": lambda: MaskFiller(
        BertPretrainer(CONFIG),
        BertTokenizer(VOCAB, keep_special_tokens=True),
        MaskFillerSettings(16, 3),
    ),
    "embedding": lambda: TextEmbedder(
        BertEncoder(CONFIG), BertTokenizer(VOCAB), EmbedderSettings(16, normalize=True)
    ),
}


def make_task(name: str) -> Any:
    """Creates a task object with random weights that are large enough to decide clearly."""
    keras.utils.set_random_seed(0)
    return TASKS[name]()


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
