"""Decodes a classifier's logits, and writes prediction files.

NAME.tsv     the columns `index` and `prediction` (a label or a number), with a header
NAME.jsonl   {"index": "0", "prediction": "1", "probabilities": {"0": 0.02, "1": 0.98}}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.files import write_bytes
from keras_bert.tasks.classification.data import ONE_LOGIT, Problem


def decode_logits(
    logits: tf.Tensor,
    labels: Sequence[str],
    problem_type: str,
    thresholds: Sequence[float] = (),
) -> dict[str, tf.Tensor]:
    """Decodes the logits [B, C] of texts into the outputs of `TextClassifier.predict`.

    `thresholds` are the probabilities above which a text has each of several labels; () for 0.5.
    """
    if problem_type == "regression":
        return {"score": logits[:, 0]}
    if problem_type == "multi_label":
        on = tf.sigmoid(logits) > tf.constant(thresholds) if thresholds else logits > 0
        # With thresholds, a label may be more probable than others and yet not predicted.
        ranks = tf.where(on, logits, logits.dtype.min)
        order = tf.argsort(ranks, direction="DESCENDING", stable=True)
        on = tf.gather(on, order, batch_dims=1)
        return {
            "labels": tf.where(on, tf.gather(list(labels), order), ""),
            "probabilities": tf.sigmoid(logits),
            "logits": logits,
        }
    return {
        "label": tf.gather(list(labels), tf.argmax(logits, axis=-1)),
        "probabilities": tf.nn.softmax(logits),
        "logits": logits,
    }


# --- prediction files ---


def decisions(problem: Problem, answers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Converts decoded outputs to predictions in the format of the labels.

    `answers` is the result of `ClassificationProcessor.decode` for n examples, as arrays; its
    labels may be strings or byte strings.

    Returns:
        For single_label, class numbers, int [n]. For multi_label, int [n, C] with 1 for each class
        that the text has. For regression, float [n].
    """
    if problem.problem_type == "regression":
        return answers["score"]
    number = {label.encode(): index for index, label in enumerate(problem.labels)}
    number |= {label: index for index, label in enumerate(problem.labels)}
    if problem.problem_type == "single_label":
        return np.array([number[label] for label in answers["label"]], np.int32)
    decided = np.zeros([len(answers["labels"]), len(problem.labels)], np.int32)
    for row, names in zip(decided, answers["labels"], strict=True):
        row[[number[name] for name in names if name]] = 1
    return decided


def write_predictions(
    path: Path, problem: Problem, indices: Sequence[str], answers: Mapping[str, np.ndarray]
) -> None:
    """Writes the predictions for one file of n examples to `path`.tsv and `path`.jsonl.

    `indices` are the n values of the column `index`, and `answers` is as for `decisions`. A group
    of a query and k passages has k rows. In the TSV file, regression values are clipped to the
    problem's `score_range`.
    """
    records = prediction_records(problem, answers)
    indices = np.repeat(indices, len(records) // max(1, len(indices))).tolist()
    if problem.problem_type in ONE_LOGIT:
        # GLUE submissions have three decimals.
        number_format = ".7g" if problem.score_range is None else ".3f"
        cells = [f"{value:{number_format}}" for value in _scores(problem, answers)]
    else:
        names = [record["prediction"] for record in records]
        cells = [name if isinstance(name, str) else ",".join(name) for name in names]
    rows = ["index\tprediction", *map("\t".join, zip(indices, cells, strict=True))]
    lines = [
        json.dumps({"index": index} | record, ensure_ascii=False)
        for index, record in zip(indices, records, strict=True)
    ]
    for suffix, content in (("tsv", rows), ("jsonl", lines)):
        write_bytes(
            path.with_name(f"{path.name}.{suffix}"),
            "".join(f"{line}\n" for line in content).encode(),
        )


def prediction_records(problem: Problem, answers: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns the object of each of n examples in NAME.jsonl, without its index."""
    if problem.problem_type in ONE_LOGIT:
        # Values may be tiny, so they have 7 significant digits.
        return [{"prediction": float(f"{value:.7g}")} for value in _scores(problem, answers)]
    return [
        {
            "prediction": class_names(row, problem.labels),
            "probabilities": {
                label: round(float(p), 6)
                for label, p in zip(problem.labels, probabilities, strict=True)
            },
        }
        for row, probabilities in zip(
            decisions(problem, answers), answers["probabilities"], strict=True
        )
    ]


def _scores(problem: Problem, answers: Mapping[str, np.ndarray]) -> np.ndarray:
    scores = answers["score"].astype(float)
    return scores if problem.score_range is None else np.clip(scores, *problem.score_range)


def class_names(decided: np.ndarray, labels: Sequence[str]) -> str | list[str]:
    """Converts a class number to the class name, or a row [C] to the names of its 1s."""
    if np.ndim(decided):
        return [label for label, on in zip(labels, decided, strict=True) if on]
    return labels[int(decided)]
