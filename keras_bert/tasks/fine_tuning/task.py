"""Defines the parts of a fine-tuning run that are specific to a task."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_bert.config import BertConfig
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.task import Task
from keras_bert.training.log import Board
from keras_bert.training.objective import Objective

# Maximum number of rows in a TensorBoard table of wrong predictions.
SHOWN = 100


@dataclass(frozen=True)
class FineTuningTask:
    """The model, data, loss, metrics and prediction files of a task.

    Several attributes are functions with an argument `predict`, a function that runs the model over
    Examples and caches the result. For n examples of T tokens in total, it returns
    {output: [n, ...]}, or for models with one output per token (`per_token`) {output: [T, ...]},
    aligned with `input_ids`.

    Attributes:
        make: (config, dtype policy) -> the task object with a newly initialized model.
        objective: the losses to minimize and the metrics to report during training.
        train: the training examples with the labels for `objective`; None without training.
        score: predict -> {metric: value} on the development set, called after each epoch and for
            the final result; None without a development set.
        best: the metric of `score` whose highest value determines the best weights.
        show: (predict, board) -> None, writes tables and curves to TensorBoard after the last
            `score`; None to write nothing.
        write_predictions: (predict, folder) -> None, writes the task's prediction files; None
            without a test set.
        labels: names of the model's labels in the order of its logits; None if it has no labels.
        problem_type: the `problem_type` of a classifier in transformers; None for other tasks.
        data: {split: items} of the development and test sets, for the checksums in run.json; the
            `repr` of an item must contain all its data.
        counts: {name in results.json: number} of examples with problems, beyond truncation.
        truncated: {split: number of truncated examples}; empty for tasks that never truncate.
    """

    make: Callable[[BertConfig, str], Task]
    objective: Objective
    train: Examples | None = None
    score: Callable[[Predict], Mapping[str, float]] | None = None
    best: str = "accuracy"
    show: Callable[[Predict, Board], None] | None = None
    write_predictions: Callable[[Predict, Path], None] | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    data: Mapping[str, Iterable[object]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    truncated: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property
    def record(self) -> dict[str, object]:
        """The entries of run.json that detect changed labels and data."""
        record: dict[str, object] = {} if self.labels is None else {"labels": [*self.labels]}
        if self.train is not None:
            record["train_sha256"] = self.train.sha256
        return record | {f"{split}_sha256": _checksum(items) for split, items in self.data.items()}


def _checksum(items: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item!r}\n".encode())
    return digest.hexdigest()
