"""Prediction files: GLUE's submission format and probabilities."""

import json

import numpy as np
import pytest

from keras_bert.tasks.classification.predictions import probabilities, write_predictions


def write(folder, name, *arguments, **options):
    write_predictions(folder, name, *arguments, **options)
    tsv, jsonl = ((folder / f"{name}.{suffix}").read_text() for suffix in ("tsv", "jsonl"))
    return tsv, [json.loads(line) for line in jsonl.splitlines()]


def test_a_submission_names_the_labels(tmp_path):
    logits = np.array([[0.0, np.log(3.0)], [5.0, -5.0]])
    labels = ("entailment", "not_entailment")
    tsv, rows = write(tmp_path, "RTE", "single_label", labels, ["0", "1"], logits)
    assert tsv == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert rows[0] == {
        "index": "0",
        "prediction": "not_entailment",
        "probabilities": {"entailment": 0.25, "not_entailment": 0.75},
    }


def test_scores_are_brought_into_the_leaderboards_range(tmp_path):
    logits = np.array([[2.34567], [5.2], [-0.1]], np.float32)
    tsv, rows = write(
        tmp_path, "STS-B", "regression", (), ["0", "1", "2"], logits, score_range=(0.0, 5.0)
    )
    assert tsv == "index\tprediction\n0\t2.346\n1\t5.000\n2\t0.000\n"
    assert [row["prediction"] for row in rows] == pytest.approx([2.34567, 5.0, 0.0])


def test_small_numbers_of_a_regression_of_ones_own_keep_their_digits(tmp_path):
    logits = np.array([[0.00012345], [12345.5]], np.float32)
    tsv, rows = write(tmp_path, "x", "regression", (), ["0", "1"], logits)
    assert tsv == "index\tprediction\n0\t0.00012345\n1\t12345.5\n"
    assert [row["prediction"] for row in rows] == [0.00012345, 12345.5]


def test_several_labels_or_none(tmp_path):
    logits = np.array([[1.0, 2.0], [-1.0, -2.0]])
    tsv, rows = write(tmp_path, "x", "multi_label", ("a", "b"), ["0", "1"], logits, separator="|")
    assert tsv == "index\tprediction\n0\ta|b\n1\t\n"
    assert [row["prediction"] for row in rows] == [["a", "b"], []]


def test_probabilities_of_large_logits_are_finite():
    assert probabilities("single_label", np.array([[1e4, 0.0]])).tolist() == [[1.0, 0.0]]
    assert probabilities("multi_label", np.array([[1e4, -1e4]])).tolist() == [[1.0, 0.0]]
