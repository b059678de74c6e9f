"""Defines the base class of the tasks of fine-tuning runs."""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from keras_bert.config import BertConfig
from keras_bert.tasks.examples import Examples, Predict
from keras_bert.tasks.task import Task
from keras_bert.training.log import Board
from keras_bert.training.objective import Objective

# Maximum number of rows in a TensorBoard table of wrong predictions.
SHOWN = 100


class FineTuningTask:
    """The data of a fine-tuning run: training examples, scores and prediction files.

    A task overrides `make`, `score`, `show` and `write_predictions`, and sets the attributes that
    differ from those here. The argument `predict` of its methods is a function that runs the model
    over Examples and caches the result. For n examples of T tokens in total, it returns
    {output: [n, ...]}, or for models with one output per token (`per_token`) {output: [T, ...]},
    aligned with `input_ids`.

    Attributes:
        objective: the losses to minimize and the metrics to report during training.
        train: the training examples with the labels for `objective`; None without training.
        has_dev: whether there is a development set, so that `score` can be called.
        has_test: whether there is a test set, so that `write_predictions` can be called.
        best: the metric of `score` whose highest value determines the best weights.
        labels: names of the model's labels in the order of its logits; None if it has no labels.
        problem_type: the `problem_type` of a classifier in transformers; None for other tasks.
        data: {split: items} of the development and test sets, for the checksums in run.json; the
            `repr` of an item must contain all its data.
        counts: {name in results.json: number} of examples with problems, beyond truncation.
        truncated: {split: number of truncated examples}; empty for tasks that never truncate.
    """

    objective: Objective
    train: Examples | None = None
    has_dev: bool = False
    has_test: bool = False
    best: str = "accuracy"
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    data: Mapping[str, Iterable[object]] = {}
    counts: Mapping[str, int] = {}
    truncated: Mapping[str, int] = {}

    def make(self, config: BertConfig, dtype: str) -> Task:
        """Creates the task object with a newly initialized model of a dtype policy."""
        raise NotImplementedError

    def score(self, predict: Predict) -> Mapping[str, float]:
        """Returns {metric: value} on the development set, after each epoch and at the end."""
        raise NotImplementedError

    def show(self, predict: Predict, board: Board) -> None:
        """Writes tables and curves to TensorBoard after the last `score`."""

    def write_predictions(self, predict: Predict, folder: Path) -> None:
        """Writes the prediction files of the test set."""
        raise NotImplementedError

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
