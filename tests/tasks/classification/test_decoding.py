"""Prediction files, and exported signatures."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.network import Network
from keras_bert.models import BertClassifier
from keras_bert.tasks.classification.data import Problem
from keras_bert.tasks.classification.decoding import decisions, write_predictions
from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.classification.task import ServedClassifier
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer
from tests.padded_rows import padded_rows
from tests.tasks.classification.conftest import VOCAB


def answers_of(problem, logits):
    """Decodes logits as programs do."""
    settings = ClassifierSettings(problem.labels, problem.problem_type)
    processor = ClassificationProcessor(BertTokenizer(VOCAB), settings)
    inputs = Segments(None, None, tf.fill([len(logits)], False))
    answers = processor.decode({"logits": tf.constant(logits, tf.float32)}, inputs)
    return {name: value.numpy() for name, value in answers.items()}


def write(folder, name, problem, logits):
    indices = [str(index) for index in range(len(logits))]
    write_predictions(folder / name, problem, indices, answers_of(problem, logits))
    tsv, jsonl = ((folder / f"{name}.{suffix}").read_text() for suffix in ("tsv", "jsonl"))
    return tsv, [json.loads(line) for line in jsonl.splitlines()]


def test_submission_contains_the_label_names(tmp_path):
    problem = Problem("single_label", ("entailment", "not_entailment"), ())
    tsv, rows = write(tmp_path, "RTE", problem, [[0.0, np.log(3.0)], [5.0, -5.0]])
    assert tsv == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert rows[0] == {
        "index": "0",
        "prediction": "not_entailment",
        "probabilities": {"entailment": 0.25, "not_entailment": 0.75},
    }


def test_scores_are_clipped_to_the_range_of_the_leaderboard(tmp_path):
    problem = Problem("regression", (), (), score_range=(0.0, 5.0))
    tsv, rows = write(tmp_path, "STS-B", problem, [[2.34567], [5.2], [-0.1]])
    assert tsv == "index\tprediction\n0\t2.346\n1\t5.000\n2\t0.000\n"
    assert [row["prediction"] for row in rows] == pytest.approx([2.34567, 5.0, 0.0])


def test_small_values_of_a_custom_regression_keep_their_digits(tmp_path):
    tsv, rows = write(tmp_path, "x", Problem("regression", (), ()), [[0.00012345], [12345.5]])
    assert tsv == "index\tprediction\n0\t0.00012345\n1\t12345.5\n"
    assert [row["prediction"] for row in rows] == [0.00012345, 12345.5]


def test_multiple_labels_or_none(tmp_path):
    problem = Problem("multi_label", ("a", "b"), ())
    # In the order of the labels, not of their probabilities.
    tsv, rows = write(tmp_path, "x", problem, [[1.0, 2.0], [-1.0, -2.0]])
    assert tsv == "index\tprediction\n0\ta,b\n1\t\n"
    assert [row["prediction"] for row in rows] == [["a", "b"], []]


def test_decisions_of_each_problem_type():
    logits = np.array([[0.2, -0.1, 0.1], [-3.0, 2.0, 1.0]])
    for problem, width, expected in (
        (Problem("single_label", ("a", "b", "c"), ()), 3, [0, 1]),
        (Problem("multi_label", ("a", "b", "c"), ()), 3, [[1, 0, 1], [0, 1, 1]]),
        (Problem("regression", (), ()), 1, np.float32([0.2, -3.0]).tolist()),
    ):
        answers = answers_of(problem, logits[:, :width])
        assert decisions(problem, answers).tolist() == expected
        if problem.problem_type == "multi_label":  # The most probable label comes first.
            assert answers["labels"].tolist() == [[b"a", b"c", b""], [b"b", b"c", b""]]
        # Task.predict returns strings, programs return byte strings.
        texts = {k: v.astype(str) if v.dtype == object else v for k, v in answers.items()}
        assert decisions(problem, texts).tolist() == expected


# --- exported signatures ---

WORDS = ["the", "cat", "sat", "on", "mat", "who", ".", "?", "a", "e", "##a", "##b"]
LABELS = ["no", "maybe", "yes"]
LENGTH = 12
# A pair is truncated on either side, and on both; one text has no token.
TEXTS = [
    "The cat sat on the mat.",
    "Who sat?",
    "the mat " * 20,
    "cat " * 20,
    "",
    "a",
    b"\xffaab",
    "e",
]


PAIRS = ["Who sat?", "The cat sat on the mat.", "on on", "who ? " * 20, "cat", "", "the", "e"]


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def make_model(tokenizer: BertTokenizer):
    """Returns a function that makes a random model with a number of labels."""

    def make(num_labels: int) -> BertClassifier:
        keras.utils.set_random_seed(4)
        config = BertConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            initializer_range=0.5,
        )
        return BertClassifier(config, num_labels)

    return make


def serve(model, tokenizer, labels, problem_type, pair):
    """Returns the signatures of a served model."""
    settings = ClassifierSettings(tuple(labels), problem_type, LENGTH, pair)
    return ServedClassifier(
        Network(model), ClassificationProcessor(tokenizer, settings)
    ).signatures()


def ask(model, tokenizer, labels, problem_type, *texts):
    """Returns the logits of the Keras model and the outputs of both signatures."""
    ids = padded_rows(tokenizer, LENGTH, *texts)
    # No single label is the most probable one of all texts.
    bias = model.classifier.bias
    bias.assign(bias - np.mean(model(ids)["logits"], axis=0))
    signatures = serve(model, tokenizer, labels, problem_type, len(texts) == 2)
    answers = [
        signatures["serving_default"](*map(tf.constant, texts)),
        signatures["token_ids"](**ids),
    ]
    logits = model(ids)["logits"].numpy()
    return logits, [{name: x.numpy() for name, x in answer.items()} for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("texts", [(TEXTS,), (PAIRS, TEXTS)])
def test_texts_and_token_ids_have_the_logits_of_the_model(make_model, tokenizer, texts):
    logits, answers = ask(make_model(3), tokenizer, LABELS, "single_label", *texts)
    most_probable = [LABELS[row].encode() for row in logits.argmax(axis=1)]
    assert len(set(most_probable)) > 1
    for answer in answers:
        assert answer["label"].tolist() == most_probable
        np.testing.assert_allclose(answer["logits"], logits, atol=1e-5)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)


@pytest.fixture(scope="module")
def classify(make_model, tokenizer):
    return serve(make_model(3), tokenizer, LABELS, "single_label", True)


def test_truncated_texts_and_rows_are_marked(classify):
    # Nine tokens fit: [CLS] and two [SEP] are the others.
    texts = tf.constant(["cat " * 7, "cat " * 8, "cat " * 100, ""])
    answer = classify["serving_default"](texts, tf.constant(["who ?"] * 4))
    assert answer["truncated"].numpy().tolist() == [False, True, True, False]
    mask = tf.sequence_mask([16, 17, 3], 20, tf.int32)  # The model has 16 positions.
    answer = classify["token_ids"](mask, mask, mask * 0)
    assert answer["truncated"].numpy().tolist() == [False, True, False]


def test_any_number_of_texts_is_accepted(classify):
    one = classify["serving_default"](tf.constant(["the cat"]), tf.constant(["on"]))
    for count in (0, 1, 20):
        answer = classify["serving_default"](
            tf.constant(["the cat"] * count, tf.string), tf.constant(["on"] * count, tf.string)
        )
        assert answer["label"].numpy().tolist() == one["label"].numpy().tolist() * count
        assert answer["logits"].shape == answer["probabilities"].shape == (count, 3)
    for shape in ((2, 0), (0, 4), (0, 0)):
        assert classify["token_ids"](*[np.zeros(shape, np.int32)] * 3)["label"].shape == shape[:1]
