"""Fixtures: small models of every kind with random weights, their exports, batches, requests."""

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
from keras_bert.export.network import Network
from keras_bert.export.saved_model import WARMUP_FILE, write_saved_model
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

MODELS = {
    "encoder": BertEncoder,
    "classifier": lambda config: BertClassifier(config, num_labels=3),
    "token_classifier": lambda config: BertTokenClassifier(config, num_labels=3),
    "span_labeler": BertSpanLabeler,
    "pretrainer": BertPretrainer,
}

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "who"),
    *(*LETTERS, *".,?-@", *(f"##{letter}" for letter in LETTERS)),
]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
    initializer_range=0.5,
)
# A plain text, an empty text, and a long text with bytes that are not UTF-8.
TEXTS = [b"The cat [MASK] on the mat.", b"", b"Wh\xff o? \xe7\x8e\x8b " + b"the m\xc3\xa4t " * 200]
TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


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
        BertClassifier(CONFIG, 1),
        BertTokenizer(VOCAB),
        ClassifierSettings((), "regression", 16, True),
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


class Export(NamedTuple):
    """An exported model.

    Attributes:
        folder: the version's folder.
        functions: {signature: the exported function}.
        requests: {signature: {input: array}}, three rows each.
    """

    folder: Path
    functions: dict[str, Callable[..., dict[str, tf.Tensor]]]
    requests: dict[str, dict[str, np.ndarray]]

    def call(self, signature: str, request: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls the exported function in Python."""
        function = self.functions[signature]
        inputs = [tf.constant(request[spec.name]) for spec in function.input_signature]
        return {name: value.numpy() for name, value in function(*inputs).items()}


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest) -> str:
    """Returns each name in `MODELS` in turn."""
    return request.param


@pytest.fixture(scope="session")
def make_model() -> Callable[..., keras.Model]:
    """Returns a function: (name in `MODELS`, activation) -> model of 2 layers and 16 positions."""

    def make(name: str, hidden_act: str = "gelu") -> keras.Model:
        config = BertConfig(
            vocab_size=60,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=16,
            initializer_range=0.2,
            hidden_act=hidden_act,
        )
        keras.utils.set_random_seed(0)  # A fixed seed: int8's loss depends on it.
        model = MODELS[name](config)
        rng = np.random.default_rng(0)
        for weight in model.trainable_variables:  # Nonzero biases and gammas.
            if len(weight.shape) == 1:
                weight.assign(weight + rng.normal(0, 0.3, weight.shape))
        return model

    return make


@pytest.fixture(scope="session")
def make_batch() -> Callable[[keras.Model, int, int], dict[str, np.ndarray]]:
    """Returns a function: (model, rows, length) -> padded inputs; the first row has no padding."""

    def make(model: keras.Model, rows: int, length: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(rows)
        real = rng.integers(1, length + 1, [rows, 1])
        real[0] = length
        batch = {
            "input_ids": rng.integers(0, 60, [rows, length]),
            "input_mask": np.arange(length) < real,
            "segment_ids": rng.integers(0, 2, [rows, length]),
        }
        if isinstance(model, BertPretrainer):
            batch["masked_lm_positions"] = rng.integers(0, length, [rows, 3])
        return {name: value.astype(np.int32) for name, value in batch.items()}

    return make


@pytest.fixture(scope="session")
def export(tmp_path_factory) -> Callable[[str], Export]:
    """Returns a function: name in `TASKS` -> its export, which is created once."""
    exports: dict[str, Export] = {}

    def make(task: str) -> Export:
        if task not in exports:
            created = make_task(task)  # The tagger finds entities in the text of test_page.py.
            compute_type = "bfloat16" if task == "embedding" else "float32"
            served = created.served(Network(created.model, compute_type))
            folder = tmp_path_factory.mktemp(task) / "1"
            names = ("text", "text_pair", "question", "context")
            texts = dict.fromkeys(names, "The cat sat on the mat.")
            functions = served.signatures()
            served.signatures = lambda: functions  # Traced once.
            write_saved_model(served, folder, {"task": task}, lambda info: "", texts)
            requests = {name: request(each) for name, each in functions.items()}
            exports[task] = Export(folder, functions, requests)
        return exports[task]

    return make


@pytest.fixture(scope="session")
def read_warmup() -> Callable[[Path], list[PredictRequest]]:
    """Returns a function: version folder -> its warm-up requests."""

    def read(folder: Path) -> list[PredictRequest]:
        records = tf.data.TFRecordDataset(str(folder / WARMUP_FILE)).as_numpy_iterator()
        return [PredictionLog.FromString(each).predict_log.request for each in records]

    return read


def request(function: tf.types.experimental.PolymorphicFunction) -> dict[str, np.ndarray]:
    """Creates a request of three rows for a signature."""
    values = {
        "input_ids": np.array([[2, 5, 6, 3], [2, 4, 3, 0], [0, 0, 0, 0]], np.int32),
        "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]], np.int32),
        "segment_ids": np.zeros([3, 4], np.int32),
        "words": np.array([[b"The", b"cat", b"U.S."], [b"\xff", b"sat", b""], [b""] * 3], object),
        # The two texts of a row differ.
        "text_pair": np.array(TEXTS[::-1], object),
        "question": np.array([b"Who sat?", b"", b"\xff"], object),
    }
    names = [spec.name for spec in function.input_signature]
    return {name: values.get(name, np.array(TEXTS, object)) for name in names}
