"""Tests prediction files: GLUE's submission format, probabilities, and decisions as numbers."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.classification.data import Problem
from keras_bert.tasks.classification.predictions import decisions, write_predictions
from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer
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
    problem = Problem("multi_label", ("a", "b"), (), label_separator="|")
    # In the order of the labels, not of their probabilities.
    tsv, rows = write(tmp_path, "x", problem, [[1.0, 2.0], [-1.0, -2.0]])
    assert tsv == "index\tprediction\n0\ta|b\n1\t\n"
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
        # Task.predict returns strings, programs return byte strings.
        texts = {k: v.astype(str) if v.dtype == object else v for k, v in answers.items()}
        assert decisions(problem, texts).tolist() == expected
