"""Converts texts to tokens and logits to labels, and writes prediction files.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; or score for one logit        decode

With `long_text="windows"`, a text can have several windows, whose logits are pooled before they are
decoded. B texts, n windows, C classes. The prediction files of a test set are:

NAME.tsv     the columns `index` and `prediction` (a label or a number), with a header
NAME.jsonl   {"index": "0", "prediction": "1", "probabilities": {"0": 0.02, "1": 0.98}}
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.earlier_run import CONFIG
from keras_bert.checkpoints.sentence_transformers import score_activation
from keras_bert.errors import InputError
from keras_bert.files import check_schema, write_bytes
from keras_bert.tasks.checks import head_labels
from keras_bert.tasks.classification.data import ONE_LOGIT, PROBLEM_TYPES, ClassifierSettings
from keras_bert.tasks.classification.glue import GlueTask, find_task
from keras_bert.tasks.prepared import Arrays, Prepared
from keras_bert.tasks.text_processor import TextProcessor, window_counts
from keras_bert.text.offsets import encode_texts


class ClassificationProcessor(TextProcessor):
    """Converts texts to model inputs, and logits to labels."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs of an export."""
        return ("text", "text_pair") if self.settings.pair else ("text",)

    @property
    def truncates_as_transformers(self) -> bool:
        """Whether pairs are truncated as by sentence-transformers, as those of a reranker are."""
        return self.settings.problem_type == "reranking"

    @functools.cached_property
    def _labels(self) -> np.ndarray:
        return encode_texts(self.settings.labels)

    def decode(self, outputs: Mapping[str, Any], inputs: Any, ops: Any = tf) -> dict[str, Any]:
        """Decodes logits, [B, C] or for windows [n, C], into `TextClassifier.predict`'s outputs.

        `ops` is TensorFlow; or NUMPY, for arrays and `inputs` of `ArraySteps`.
        """
        settings, logits = self.settings, self.pooled(outputs["logits"], inputs)
        if settings.problem_type == "regression":
            answers = {"score": logits[:, 0]}
        elif settings.problem_type == "reranking":
            is_linear = settings.activation == "linear"
            score = logits[:, 0] if is_linear else ops.sigmoid(logits[:, 0])
            answers = {"score": score, "logits": logits}
        elif settings.problem_type == "multi_label":
            on = logits > 0
            if settings.thresholds:
                on = ops.sigmoid(logits) > np.float32(settings.thresholds)
            # With thresholds, a label may be more probable than others and yet not predicted.
            ranks = ops.where(on, logits, np.finfo(np.float32).min)
            order = ops.argsort(ranks, direction="DESCENDING", stable=True)
            on = ops.gather(on, order, batch_dims=1)
            answers = {
                "labels": ops.where(on, ops.gather(self._labels, order), b""),
                "probabilities": ops.sigmoid(logits),
                "logits": logits,
            }
        else:
            answers = {
                "label": ops.gather(self._labels, ops.argmax(logits, axis=-1)),
                "probabilities": ops.nn.softmax(logits),
                "logits": logits,
            }
        return answers | {"truncated": inputs.truncated}


def labeled(prepared: Prepared, labels: np.ndarray) -> Prepared:
    """Adds the labels for training, [n, ...] for n texts, to the examples.

    Each window of a text is an example with the label of the text. For n groups of k pairs, labels
    [n, k], each pair is an example with a label, and k examples form a group.
    """
    counts = window_counts(prepared)
    size = len(counts) // max(1, len(labels))
    repeated = np.repeat(labels.reshape(-1, 1) if size > 1 else labels, counts, axis=0)
    examples = replace(prepared.examples, labels={"labels": repeated}, group_size=size)
    return prepared._replace(examples=examples)


# --- prediction files ---


def decisions(problem: ClassifierSettings, answers: Arrays) -> np.ndarray:
    """Converts decoded outputs to predictions in the format of the labels.

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
    path: Path, problem: ClassifierSettings, indices: Sequence[str], answers: Arrays
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


def prediction_records(problem: ClassifierSettings, answers: Arrays) -> list[dict[str, Any]]:
    """Returns the object of each of n examples in NAME.jsonl, without its index."""
    if problem.problem_type in ONE_LOGIT:
        # Values may be tiny, so they have 7 significant digits.
        return [{"prediction": float(f"{value:.7g}")} for value in _scores(problem, answers)]
    labels, records = problem.labels, []
    for decided, row in zip(decisions(problem, answers), answers["probabilities"], strict=True):
        name: Any = labels[decided] if decided.ndim == 0 else None
        if name is None:
            name = [label for label, on in zip(labels, decided, strict=True) if on]
        probabilities = {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)}
        records.append({"prediction": name, "probabilities": probabilities})
    return records


def _scores(problem: ClassifierSettings, answers: Arrays) -> np.ndarray:
    scores = answers["score"].astype(float)
    return scores if problem.score_range is None else np.clip(scores, *problem.score_range)


# --- settings of a checkpoint ---


def transformers_problem_type(problem_type: str) -> str:
    """Converts `single_label` to `single_label_classification`, as transformers names it."""
    return problem_type + "_classification" * (problem_type not in ONE_LOGIT)


def short_problem_type(name: str | None, where: Any) -> str | None:
    """Converts a problem type of transformers, such as `single_label_classification`."""
    if name is None:
        return None
    short = name.removesuffix("_classification")
    if short not in PROBLEM_TYPES:
        names = ", ".join(f"{kind}_classification" for kind in PROBLEM_TYPES[:2])
        raise InputError(f"{where}: problem_type is {name!r}; expected one of {names}, regression")
    return short


def takes_pairs(checkpoint: Checkpoint) -> bool | None:
    """Returns whether the run that trained the classifier used pairs; None without such a run."""
    task = _glue_task(checkpoint)
    if task is not None:
        return len(task.text_columns) == 2
    column = checkpoint.run.setting("text_pair_column", str, None)
    return None if column is None else bool(column)


def metric_names(checkpoint: Checkpoint, problem_type: str) -> tuple[str, ...]:
    """Returns the metrics of the GLUE task that a model was trained on; () for the default ones."""
    task = _glue_task(checkpoint)
    return task.metrics if task and problem_type != "reranking" else ()


def saved_activation(checkpoint: Checkpoint, problem_type: str) -> str:
    """Returns the activation that is saved with a reranker; `sigmoid` for other models."""
    if problem_type != "reranking":
        return ClassifierSettings.activation
    return score_activation(checkpoint.path / CONFIG, checkpoint.settings)


def saved_thresholds(checkpoint: Checkpoint) -> tuple[float, ...]:
    """Returns the thresholds that are saved with a classifier; () without, or without its head."""
    thresholds = checkpoint.saved_settings.get("thresholds", [])
    check_schema(f"{checkpoint.path / CONFIG}: thresholds", thresholds, [float])
    if not thresholds:
        return ()
    with checkpoint.open_weights() as stored:
        return tuple(thresholds) if stored.num_labels == len(thresholds) else ()


def _glue_task(checkpoint: Checkpoint) -> GlueTask | None:
    """Returns the GLUE task of the run that trained the classifier; None without such a run."""
    name = checkpoint.run.setting("task_name", str, "")
    return find_task(name) if name and name.lower() != "custom" else None


def head_settings(
    checkpoint: Checkpoint, labels: Sequence[str] | None, problem_type: str | None
) -> ClassifierSettings:
    """Determines a classifier's labels and problem type; other settings have their defaults.

    If `labels` or `problem_type` is None, the value of the checkpoint's classification head is
    used, and () without a head. If the checkpoint does not record a problem type, it is regression
    for a head with one logit without given labels, and single_label otherwise.
    """
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels
    stored_type = checkpoint.problem_type if num_logits else None
    kind = problem_type or short_problem_type(stored_type, checkpoint.path)
    if kind is None:
        kind = "regression" if num_logits == 1 and not labels else "single_label"
    if kind in ONE_LOGIT and not labels:
        if num_logits not in (None, 0, 1):
            raise InputError(
                f"problem_type={kind!r}: {checkpoint.path} has a head of {num_logits} logits; "
                "expected one; for a new head, run keras-bert convert SRC DST --noheads"
            )
        return ClassifierSettings((), kind, pair=kind == "reranking" or None)
    names, _ = head_labels(checkpoint, labels)
    if len(names) < 2 and kind == "single_label" and labels:
        raise InputError(f"labels={names}: expected at least two different names")
    if len(names) == 1 and kind == "single_label":
        raise InputError(
            f"problem_type={kind!r}: {checkpoint.path} has a head of one logit; expected at least "
            "two, or problem_type='reranking' or 'regression'"
        )
    return ClassifierSettings(tuple(names), kind)
