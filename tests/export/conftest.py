"""Fixtures: task objects of small models with random weights, their exports, and requests."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from keras_bert.config import BertConfig
from keras_bert.export.engines import PRECISIONS, Engine
from keras_bert.export.saved_model import WARMUP_FILE
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

INSTALLED = [name for name in PRECISIONS if importlib.util.find_spec(name)]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "who"),
    *(*LETTERS, *".,?-@", *(f"##{letter}" for letter in LETTERS)),
]
CONFIG = BertConfig(len(VOCAB), 16, 1, 2, 16, max_position_embeddings=32, initializer_range=0.5)
TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


LABELS = ("no", "maybe", "yes")


def classifier(problem_type: str, labels: tuple[str, ...] = (), pair: bool = True):
    """Returns a function that creates a TextClassifier."""
    settings = ClassifierSettings(labels, problem_type, 16, pair)
    return lambda: TextClassifier(
        BertClassifier(CONFIG, len(labels) or 1), BertTokenizer(VOCAB), settings
    )


TASKS: dict[str, Callable[[], Any]] = {
    "pair": classifier("single_label", LABELS),
    "multi_label": classifier("multi_label", LABELS, pair=False),
    "regression": classifier("regression"),
    "reranking": classifier("reranking"),
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


class Export(NamedTuple):
    """An exported model.

    Attributes:
        folder: the version's folder.
        loaded: the loaded SavedModel.
        info: the content of export.json.
        requests: {signature: {input: array}}, several rows each.
    """

    folder: Path
    loaded: Any
    info: dict[str, Any]
    requests: dict[str, dict[str, np.ndarray]]

    def call(self, signature: str, request: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature in Python."""
        inputs = {name: tf.constant(value) for name, value in request.items()}
        outputs = self.loaded.signatures[signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}

    def open(self, engine: str, precision: str = "") -> Engine:
        """Opens an engine for the export."""
        return Engine(self.folder, self.loaded, self.info, engine, precision)


@pytest.fixture(scope="session")
def export(tmp_path_factory) -> Callable[[str], Export]:
    """Returns a function: name in `TASKS` -> its export, which is created once.

    It has all engines, unless `for_engines` is False.
    """
    exports: dict[tuple[str, bool], Export] = {}

    def make(task: str, for_engines: bool = True) -> Export:
        if (task, for_engines) not in exports:
            folder = tmp_path_factory.mktemp(task) / "1"
            compute_type = "bfloat16" if task == "multi_label" else "float32"
            engines = tuple(INSTALLED) if for_engines else ()
            int8 = "onnxruntime" in engines
            make_task(task).export(folder, compute_type=compute_type, engines=engines, int8=int8)
            info = json.loads((folder / "export.json").read_text())
            requests = {
                name: {key: request_values(key) for key in signature["inputs"]}
                for name, signature in info["signatures"].items()
            }
            loaded = tf.saved_model.load(str(folder))
            exports[task, for_engines] = Export(folder, loaded, info, requests)
        return exports[task, for_engines]

    return make


@pytest.fixture(scope="session")
def read_warmup() -> Callable[[Path], list[PredictRequest]]:
    """Returns a function: version folder -> its warm-up requests."""

    def read(folder: Path) -> list[PredictRequest]:
        records = tf.data.TFRecordDataset(str(folder / WARMUP_FILE)).as_numpy_iterator()
        return [PredictionLog.FromString(each).predict_log.request for each in records]

    return read


def request_values(name: str) -> np.ndarray:
    """Returns several rows for an input: plain, empty and long texts, and bytes, not UTF-8."""
    rng = np.random.default_rng(0)
    # A periodic text would have equal answers in several windows.
    words = " ".join(rng.choice(["the", "m\xe4t", "cat", "sat", "on"], 80)).encode()
    texts = [b"The cat [MASK] on the mat. [MASK]", b"", b"Wh\xff o? \xe7\x8e\x8b " + words]
    texts += [b"on the mat", b"who sat on [MASK]"]
    lengths = np.array([[7], [12], [1], [0], [20]])
    values = {
        "words": np.array([[b"The", b"cat", b"U.S."], [b"\xff", b"sat", b""], [b""] * 3], object),
        "text_pair": np.array(texts[::-1], object),  # The two texts of a row differ.
        "question": np.array([b"Who sat?", b"", b"\xff", b"the mat", b"on"], object),
        "input_ids": rng.integers(4, len(VOCAB), [5, 20]).astype(np.int32),
        "input_mask": (np.arange(20) < lengths).astype(np.int32),
        "segment_ids": rng.integers(0, 2, [5, 20]).astype(np.int32),
    }
    return values.get(name, np.array(texts, object))
