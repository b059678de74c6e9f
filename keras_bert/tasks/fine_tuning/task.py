"""What a task brings to its fine-tuning run: model, loss, data, scores, tables, predictions."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_bert.config import BertConfig
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.task import Task
from keras_bert.training.board import Board
from keras_bert.training.objective import Objective

# Rows of a table of wrong predictions on TensorBoard.
SHOWN = 100


@dataclass(frozen=True)
class FineTuningTask:
    """What a task brings to its run.

    `predict` in what follows runs the model over Examples: for a model of examples (`per_token`
    false) it gives {output: [n, ...]}, for one of pieces {output: [T, ...]}, aligned with
    `input_ids`. The same Examples with the same weights are computed once.

    Attributes:
        make: (config, dtype policy) -> the task object with a newly initialized model.
        objective: the losses to minimize and the figures to report while training.
        train: the training examples, with the labels that `objective` reads; None without training.
        score: predict -> figures of the development set under their official names; called after
            each epoch and for the result. None where there is no such set.
        best: the figure of `score` that decides which weights are kept: the highest.
        show: (predict, board): puts tables and curves on TensorBoard; called with the best
            weights where `score` was.
        write_predictions: (predict, folder): writes the task's prediction files.
        labels: names of the model's labels in the order of its logits.
        problem_type: transformers' word for the loss.
        data: {split: what was read for it} beside what is trained on, items whose `repr` tells
            all that they hold.
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

    @functools.cached_property
    def record(self) -> dict[str, object]:
        """What run.json keeps of the labels and the data, so that a changed file is noticed."""
        record: dict[str, object] = {} if self.labels is None else {"labels": [*self.labels]}
        if self.train is not None:
            record["train_sha256"] = self.train.sha256
        return record | {f"{split}_sha256": _checksum(items) for split, items in self.data.items()}


def _checksum(items: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item!r}\n".encode())
    return digest.hexdigest()
