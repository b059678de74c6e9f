"""Fixtures: small models of every kind with random weights, their exports, batches, requests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

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
from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.classification.task import ServedClassifier
from keras_bert.tasks.embedding.processor import EmbedderSettings, EmbeddingProcessor
from keras_bert.tasks.embedding.task import ServedEmbedding
from keras_bert.tasks.fill_mask import MaskFillerSettings, MaskFillingProcessor, ServedFillMask
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.tasks.ner.task import ServedTagger
from keras_bert.tasks.question_answering.data import AnswerSettings
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.task import ServedQuestionAnswering
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


def classifier(problem_type: str, num_labels: int, pair: bool) -> ServedClassifier:
    """Creates a classifier of texts of up to 16 tokens."""
    labels = tuple(f"label {number}" for number in range(num_labels))
    settings = ClassifierSettings(labels, problem_type, 16, pair)
    network = Network(BertClassifier(CONFIG, settings.num_logits))
    return ServedClassifier(network, ClassificationProcessor(BertTokenizer(VOCAB), settings))


TASKS: Mapping[str, Callable[[], tf.Module]] = {
    "pair": lambda: classifier("single_label", 3, True),
    "multi_label": lambda: classifier("multi_label", 3, False),
    "regression": lambda: classifier("regression", 0, True),
    # Long contexts need several windows, and a question may have no answer.
    "question_answering": lambda: ServedQuestionAnswering(
        Network(BertSpanLabeler(CONFIG)),
        SpanProcessor(
            BertTokenizer(VOCAB), AnswerSettings(24, 8, 8, 3, 5, version_2_with_negative=True)
        ),
    ),
    "ner": lambda: ServedTagger(
        Network(BertTokenClassifier(CONFIG, len(TAGS))),
        TaggingProcessor(BertTokenizer(VOCAB), TaggerSettings(tuple(TAGS), 16)),
    ),
    "fill_mask": lambda: ServedFillMask(
        Network(BertPretrainer(CONFIG)),
        MaskFillingProcessor(
            BertTokenizer(VOCAB, keep_special_tokens=True), MaskFillerSettings(16, 3)
        ),
    ),
    "embedding": lambda: ServedEmbedding(
        Network(BertEncoder(CONFIG), "bfloat16"),
        EmbeddingProcessor(BertTokenizer(VOCAB), EmbedderSettings(16, normalize=True)),
    ),
}


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
            keras.utils.set_random_seed(0)  # The tagger finds entities in the text of test_page.py.
            served = TASKS[task]()
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
