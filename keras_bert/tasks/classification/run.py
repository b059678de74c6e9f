"""A classifier from start to end: settings in; scores, predictions and model/ out.

texts and labels -> tokenized examples -> the fine-tuning core (tasks/fine_tuning) with this
task's loss, scores, TensorBoard tables and prediction files
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.models import BertClassifier
from keras_bert.tasks.classification.data import ClassificationSettings, Problem, read_data
from keras_bert.tasks.classification.features import tokenize_texts
from keras_bert.tasks.classification.labels import (
    class_weights,
    label_array,
    warn_of_absent_labels,
)
from keras_bert.tasks.classification.metrics import decide, score
from keras_bert.tasks.classification.objective import classification_objective
from keras_bert.tasks.classification.predictions import named, probabilities, write_predictions
from keras_bert.tasks.classification.texts import Splits, Texts
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.seeds import fine_tune_seeds
from keras_bert.tasks.fine_tuning.settings import FineTuningSettings
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.board import Board
from keras_bert.training.run import TrainingSettings


@dataclass(frozen=True)
class _Scored:
    """A development set: its texts and the same, tokenized."""

    texts: Texts
    examples: Examples

    @property
    def labels(self) -> np.ndarray:
        return self.examples.labels["labels"]


def fine_tune_classifier(
    classification: ClassificationSettings,
    settings: FineTuningSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
    output_dir: Path,
    seeds: Sequence[int],
    record: Mapping[str, object],
) -> dict[str, object]:
    """Fine-tunes a classifier once a seed, or goes on with it.

    Args:
        classification: which texts and labels.
        settings: what the run is made of.
        training: how it trains.
        strategy: the devices.
        output_dir: the run's folder.
        seeds: at least one.
        record: what goes into run.json and must not change between a start and its continuation.

    Returns:
        The figures, as in results.json: those of the task, each with `_matched` and `_mismatched`
        after its name for MNLI, and "score", the mean of the task's metrics, which decides which
        weights are the best.

    Raises:
        InputError: anything about the texts, the labels or the checkpoint that a user has to mend.
    """
    start = open_pretrained(
        settings.init_checkpoint,
        settings.vocab_file,
        settings.do_lower_case,
        settings.max_seq_length,
        settings.num_frozen_layers,
        settings.label_names,
    )
    problem, splits = read_data(
        classification,
        start.checkpoint.labels,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(problem, splits, start, settings.max_seq_length, classification.class_weights)
    return fine_tune_seeds(settings, training, strategy, output_dir, record, start, task, seeds)


def make_task(
    problem: Problem, splits: Splits, start: Pretrained, max_seq_length: int, weighing: str = ""
) -> FineTuningTask:
    """Tokenizes everything, and says how it is learnt, scored and written.

    Args:
        problem: what is to be told of a text.
        splits: the texts.
        start: what the run starts from.
        max_seq_length: pieces of an example at most.
        weighing: what a class weighs, as `labels.class_weights` reads it.

    Returns:
        The task.

    Raises:
        InputError: texts or labels that cannot be used.
    """
    tokenizer = start.tokenizer()

    def tokenized(texts: Texts, labelled: bool = True) -> Examples:
        if texts.second is not None:
            start.checkpoint.check_segments()
        return _tokenized(texts, labelled, problem, tokenizer, max_seq_length)

    train = tokenized(splits.train) if splits.train else None
    weights = None
    if train:
        weights = class_weights(
            weighing, problem.problem_type, problem.labels, train.labels["labels"]
        )
    dev = {suffix: _Scored(texts, tokenized(texts)) for suffix, texts in splits.dev.items()}
    if problem.labels:
        for scored in dev.values():
            warn_of_absent_labels(scored.texts, scored.labels, problem.labels)

    def to_predict(texts: Texts) -> Examples:
        # The same texts are run through the model once.
        scored = next((each for each in dev.values() if each.texts is texts), None)
        return scored.examples if scored else tokenized(texts, labelled=False)

    test = {name: (texts, to_predict(texts)) for name, texts in splits.test.items()}

    def write(predict: Predict, folder: Path) -> None:
        for name, (texts, examples) in test.items():
            write_predictions(
                folder,
                name,
                problem.problem_type,
                problem.labels,
                texts.indices,
                predict(examples)["logits"],
                problem.score_range,
                problem.label_separator,
            )
            logging.info("%s: %d predictions", folder / f"{name}.tsv", len(texts))

    read = {f"dev{suffix}": texts for suffix, texts in splits.dev.items()} | splits.test
    return FineTuningTask(
        make_model=lambda config, dtype: BertClassifier(
            config, num_labels=len(problem.labels) or 1, dtype=dtype
        ),
        sums=classification_objective(problem.problem_type, weights),
        train=train,
        score=(lambda predict: _scores(problem, dev, predict)) if dev else None,
        best="score",
        show=lambda predict, board: _show(problem, dev, predict, board),
        write_predictions=write if test else None,
        labels=problem.labels or None,
        problem_type=problem.problem_type.removesuffix("_label")
        + "_label_classification" * bool(problem.labels),
        data={name: list(texts.rows()) for name, texts in read.items()},
    )


def _tokenized(
    texts: Texts, labelled: bool, problem: Problem, tokenizer: BertTokenizer, max_seq_length: int
) -> Examples:
    labels = None
    if labelled:
        labels = label_array(texts, problem.problem_type, problem.labels, problem.label_separator)
    return tokenize_texts(texts, labels, tokenizer, max_seq_length)


def _scores(problem: Problem, dev: Mapping[str, _Scored], predict: Predict) -> dict[str, float]:
    """Scores every development set, and takes the mean of what counts."""
    figures = {}
    for suffix, scored in dev.items():
        logits, labels = predict(scored.examples)["logits"], scored.labels
        if "f1" in problem.metrics:  # Of "1", even if the checkpoint has that before "0".
            order = np.argsort(problem.labels)
            logits, labels = logits[:, order], np.argsort(order)[labels]
        own = score(problem.problem_type, problem.metrics, logits, labels)
        figures |= {name + suffix: value for name, value in own.items()}
    counted = [figures[name + suffix] for suffix in dev for name in problem.metrics]
    return figures | {"score": float(np.mean(counted))}


def _show(problem: Problem, dev: Mapping[str, _Scored], predict: Predict, board: Board) -> None:
    """Shows the worst predictions, and precision over recall where there are two classes."""
    header = ("where", "text", "text pair", "label", "prediction", "how sure")
    for suffix, scored in dev.items():
        logits = predict(scored.examples)["logits"]
        board.table(f"wrong_predictions{suffix}", header, _worst(problem, scored, logits))
        if problem.problem_type == "single_label" and len(problem.labels) == 2:
            shares = probabilities(problem.problem_type, logits)[:, 1]
            board.pr_curve(f"label_{problem.labels[1]}{suffix}", scored.labels == 1, shares)


def _worst(problem: Problem, scored: _Scored, logits: np.ndarray) -> list[list[object]]:
    """Lists wrong predictions, the surest first; of a regression, the farthest."""
    labels, texts = scored.labels, scored.texts
    decided = decide(problem.problem_type, logits)
    if problem.problem_type == "regression":
        error = np.abs(decided - labels)
        wrong, sure = np.arange(len(labels)), [""] * len(labels)
        shown_labels, shown = ([f"{v:.3f}" for v in values] for values in (labels, decided))
    else:
        shares = probabilities(problem.problem_type, logits)
        if problem.problem_type == "multi_label":
            error = np.abs(shares - labels).max(axis=1)
            wrong = np.flatnonzero((decided != labels).any(axis=1))
        else:
            error = shares.max(axis=1)
            wrong = np.flatnonzero(decided != labels)
        sure = [f"{value:.3f}" for value in error]
        shown_labels, shown = (
            [_joined(named(row, problem.labels)) for row in rows] for rows in (labels, decided)
        )
    order = wrong[np.argsort(-error[wrong], kind="stable")][:SHOWN]
    second = texts.second or [""] * len(texts)
    return [
        [texts.where(i), texts.first[i], second[i], shown_labels[i], shown[i], sure[i]]
        for i in order
    ]


def _joined(names: str | list[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)
