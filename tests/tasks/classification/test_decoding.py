"""Prediction files, and exported signatures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.network import Network
from keras_bert.tasks.classification.data import ClassifierSettings
from keras_bert.tasks.classification.processor import (
    ClassificationProcessor,
    write_predictions,
)
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.text_processor import ServedTexts
from keras_bert.text.padding import NUMPY, Segments
from keras_bert.text.tokenizer import BertTokenizer
from tests.padded_rows import padded_rows
from tests.tasks.classification.conftest import VOCAB


def answers_of(problem, logits, thresholds=()):
    """Decodes logits as programs do, and compares the answers with those of NumPy."""
    settings = replace(problem, thresholds=thresholds)
    processor = ClassificationProcessor(BertTokenizer(VOCAB), settings)
    inputs = Segments(None, None, tf.fill([len(logits)], False))
    answers = processor.decode({"logits": tf.constant(logits, tf.float32)}, inputs)
    answers = {name: value.numpy() for name, value in answers.items()}
    arrays = inputs._replace(truncated=inputs.truncated.numpy())
    in_numpy = processor.decode({"logits": np.float32(logits)}, arrays, ops=NUMPY)
    assert answers.keys() == in_numpy.keys()
    for name, value in answers.items():
        assert in_numpy[name].dtype == value.dtype
        if value.dtype.kind == "f":
            np.testing.assert_allclose(in_numpy[name], value, rtol=1e-6)
        else:
            np.testing.assert_array_equal(in_numpy[name], value)
    return answers


@pytest.mark.parametrize(
    ("problem", "logits", "cells", "predictions"),
    [
        (
            ClassifierSettings(("entailment", "not_entailment"), "single_label"),
            [[0.0, np.log(3.0)], [5.0, -5.0]],
            ["not_entailment", "entailment"],
            ["not_entailment", "entailment"],
        ),
        # In the order of the labels, not of their probabilities.
        (
            ClassifierSettings(("a", "b"), "multi_label"),
            [[1.0, 2.0], [-1.0, -2.0]],
            ["a,b", ""],
            [["a", "b"], []],
        ),
        # Clipped to the range of the leaderboard.
        (
            ClassifierSettings((), "regression", score_range=(0.0, 5.0)),
            [[2.34567], [5.2], [-0.1]],
            ["2.346", "5.000", "0.000"],
            [2.34567, 5.0, 0.0],
        ),
        # Small values of other regressions keep their digits.
        (
            ClassifierSettings((), "regression"),
            [[0.00012345], [12345.5]],
            ["0.00012345", "12345.5"],
            [0.00012345, 12345.5],
        ),
    ],
)
def test_prediction_files(tmp_path, problem, logits, cells, predictions):
    indices = [str(index) for index in range(len(logits))]
    write_predictions(tmp_path / "x", problem, indices, answers_of(problem, logits))
    rows = [f"{index}\t{cell}\n" for index, cell in zip(indices, cells, strict=True)]
    assert (tmp_path / "x.tsv").read_text() == "".join(["index\tprediction\n", *rows])
    records = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [record["index"] for record in records] == indices
    assert [record["prediction"] for record in records] == predictions
    if problem.problem_type == "single_label":
        assert records[0]["probabilities"] == {"entailment": 0.25, "not_entailment": 0.75}


def test_probabilities_of_large_logits_are_finite():
    one, several = (
        answers_of(ClassifierSettings(("a", "b", "c"), kind), [[1e4, logit, 0.0]])["probabilities"]
        for kind, logit in (("single_label", 0.0), ("multi_label", -1e4))
    )
    assert one.tolist() == [[1.0, 0.0, 0.0]]
    assert several.tolist() == [[1.0, 0.0, 0.5]]


def test_predicted_labels_come_first_also_with_thresholds():
    logits = np.log(np.float32([[9.0, 1.5, 0.1], [99.0, 0.5, 2.0]]))  # Of odds.
    problem = ClassifierSettings(("a", "b", "c"), "multi_label")
    decoded = answers_of(problem, logits, (0.95, 0.5, 0.5))
    assert decoded["labels"].tolist() == [[b"b", b"", b""], [b"a", b"c", b""]]


# --- exported signatures ---

LENGTH = 12
# A pair is truncated on either side, and on both; one text has no token.
TEXTS = ["It is a good film.", "a book", "very bad " * 20, "it " * 20, "", "a", b"\xffaab", "it"]
PAIRS = ["Is it bad", "It is a good book.", "is is", "film . " * 20, "book", "", "a", "very"]


@pytest.fixture(scope="module")
def classifier(pretrained):
    labels = ["no", "maybe", "yes"]
    return TextClassifier.from_pretrained(pretrained, labels, max_seq_length=LENGTH)


def signatures_of(classifier, pair):
    settings = replace(classifier.settings, pair=pair)
    processor = ClassificationProcessor(classifier.tokenizer, settings)
    return ServedTexts(Network(classifier.model), processor).signatures()


@pytest.mark.slow
@pytest.mark.parametrize("texts", [(TEXTS,), (PAIRS, TEXTS)])
def test_texts_and_token_ids_have_the_answers_of_predict(classifier, texts):
    ids, model = padded_rows(classifier.tokenizer, LENGTH, *texts), classifier.model
    # No single label is the most probable one of all texts.
    model.classifier.bias.assign(model.classifier.bias - np.mean(model(ids)["logits"], axis=0))
    expected = classifier.predict(texts if len(texts) == 2 else texts[0])
    assert len({*expected["label"]}) > 1
    signatures = signatures_of(classifier, len(texts) == 2)
    for answer in (
        signatures["serving_default"](*map(tf.constant, texts)),
        signatures["token_ids"](**ids),
    ):
        assert answer["label"].numpy().astype(str).tolist() == expected["label"].tolist()
        for name in ("logits", "probabilities"):
            np.testing.assert_allclose(answer[name], expected[name], atol=1e-5)


@pytest.fixture(scope="module")
def classify(classifier):
    return signatures_of(classifier, pair=True)


def test_truncated_texts_and_rows_are_marked(classify):
    # Nine tokens fit: [CLS] and two [SEP] are the others.
    texts = tf.constant(["it " * 7, "it " * 8, "it " * 100, ""])
    answer = classify["serving_default"](texts, tf.constant(["is a"] * 4))
    assert answer["truncated"].numpy().tolist() == [False, True, True, False]
    mask = tf.sequence_mask([32, 33, 3], 40, tf.int32)  # The model has 32 positions.
    answer = classify["token_ids"](mask, mask, mask * 0)
    assert answer["truncated"].numpy().tolist() == [False, True, False]
