"""Fine-tunes a classifier on text files, and writes metrics, predictions and the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.models import BertClassifier
from keras_bert.tasks.classification.data import ClassificationSettings, Problem, read_data
from keras_bert.tasks.classification.head_settings import transformers_problem_type
from keras_bert.tasks.classification.labeled_examples import labeled_examples
from keras_bert.tasks.classification.labels import (
    class_weights,
    label_array,
    warn_of_absent_labels,
)
from keras_bert.tasks.classification.objective import classification_objective
from keras_bert.tasks.classification.predictions import class_names, decisions, write_predictions
from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.classification.scoring import score
from keras_bert.tasks.classification.text_classifier import TextClassifier
from keras_bert.tasks.classification.texts import Splits, Texts
from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.predict import Predict
from keras_bert.tasks.fine_tuning.pretrained import Pretrained, open_pretrained
from keras_bert.tasks.fine_tuning.run import fine_tune
from keras_bert.tasks.fine_tuning.settings import FineTuningRun
from keras_bert.tasks.fine_tuning.task import SHOWN, FineTuningTask
from keras_bert.tasks.prepared import Prepared, decoded, gathered, prepare
from keras_bert.tasks.truncation import report_splits
from keras_bert.training.log import Board


@dataclass(frozen=True)
class _Split:
    """The n texts of a file, their model inputs and their labels.

    `labels` is the result of `label_array`; None for texts that are predicted, but not scored.
    """

    texts: Texts
    processor: ClassificationProcessor
    prepared: Prepared
    labels: np.ndarray | None = None

    def answers(self, predict: Predict) -> dict[str, np.ndarray]:
        """Runs the model; returns its raw outputs and the decoded answers, {name: [n, ...]}."""
        outputs = predict(self.prepared.examples)
        return outputs | gathered(list(decoded(self.processor, self.prepared, outputs)))


def fine_tune_classifier(
    classification: ClassificationSettings, run: FineTuningRun
) -> dict[str, object]:
    """Fine-tunes a classifier once for each seed, or resumes an unfinished run.

    Returns:
        The scores of results.json: "loss", the task's metrics (for MNLI with the suffixes
        `_matched` and `_mismatched`), and "score", the mean of these metrics. The best weights are
        those with the highest "score".
    """
    settings = run.settings
    start = open_pretrained(settings)
    problem, splits = read_data(
        classification,
        start.checkpoint.labels,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = make_task(
        problem,
        splits,
        start,
        settings.max_seq_length,
        classification,
        run.distillation,
    )
    return fine_tune(run, start, task)


def make_task(
    problem: Problem,
    splits: Splits,
    start: Pretrained,
    max_seq_length: int,
    classification: ClassificationSettings | None = None,
    distillation: Distillation | None = None,
) -> FineTuningTask:
    """Creates the task that trains on, scores and predicts the texts of a run.

    `start` is the checkpoint to start from. `classification` has the class weights and the settings
    of long texts. `distillation` adds the losses of a teacher.
    """
    first = splits.train or next(iter({**splits.dev, **splits.test}.values()))
    classification = classification or ClassificationSettings("custom")
    settings = ClassifierSettings(
        problem.labels,
        problem.problem_type,
        max_seq_length,
        first.second is not None,
        classification.long_text_settings,
    )
    processor = ClassificationProcessor(start.tokenizer(), settings)

    def prepared(texts: Texts) -> Prepared:
        if texts.second is not None:
            start.checkpoint.check_segments()
        columns = [texts.first] if texts.second is None else [texts.first, texts.second]
        return prepare(processor.preprocess, columns, tokenizer=processor.tokenizer)

    def labelled(texts: Texts) -> _Split:
        labels = label_array(texts, problem.problem_type, problem.labels, problem.label_separator)
        return _Split(texts, processor, prepared(texts), labels)

    train = weights = None
    all_prepared: dict[str, Prepared] = {}
    if splits.train:
        split = labelled(splits.train)
        all_prepared["train"] = split.prepared
        train = labeled_examples(split.prepared, split.labels)
        weights = class_weights(
            classification.class_weights,
            problem.problem_type,
            problem.labels,
            train.labels["labels"],
        )
    dev = {suffix: labelled(texts) for suffix, texts in splits.dev.items()}
    if problem.labels:
        for scored in dev.values():
            warn_of_absent_labels(scored.texts, scored.labels, problem.labels)

    def to_predict(texts: Texts) -> _Split:
        # Reuse the development split, so that the model runs over the same texts only once.
        scored = next((each for each in dev.values() if each.texts is texts), None)
        return scored or _Split(texts, processor, prepared(texts))

    test = {name: to_predict(texts) for name, texts in splits.test.items()}
    all_prepared |= {f"dev{suffix}": split.prepared for suffix, split in dev.items()}
    all_prepared |= {name: split.prepared for name, split in test.items()}

    def write(predict: Predict, folder: Path) -> None:
        for name, split in test.items():
            write_predictions(folder / name, problem, split.texts.indices, split.answers(predict))
            logging.info("Wrote %d predictions to %s", len(split.texts), folder / f"{name}.tsv")

    read = {f"dev{suffix}": texts for suffix, texts in splits.dev.items()} | splits.test
    return FineTuningTask(
        make=lambda config, dtype: TextClassifier(
            BertClassifier(config, settings.num_logits, dtype=dtype),
            processor.tokenizer,
            settings,
        ),
        objective=classification_objective(problem.problem_type, weights, distillation),
        train=train,
        score=(lambda predict: _scores(problem, dev, predict)) if dev else None,
        best="score",
        show=lambda predict, board: _show(problem, dev, predict, board),
        write_predictions=write if test else None,
        labels=problem.labels or None,
        problem_type=transformers_problem_type(problem.problem_type),
        data={name: list(texts.rows()) for name, texts in read.items()},
        truncated=report_splits(all_prepared, "examples", f"max_seq_length={max_seq_length}"),
    )


def _scores(problem: Problem, dev: Mapping[str, _Split], predict: Predict) -> dict[str, float]:
    """Returns the scores of all development sets, and "score", the mean of their metrics.

    The keys of `dev` are the suffixes of the metric names. The mean does not include the losses.
    """
    scores = {}
    for suffix, split in dev.items():
        split_scores = score(problem, split.answers(predict), split.labels)
        scores |= {name + suffix: value for name, value in split_scores.items()}
    averaged = [scores[name + suffix] for suffix in dev for name in problem.metrics]
    return scores | {"score": float(np.mean(averaged))}


def _show(problem: Problem, dev: Mapping[str, _Split], predict: Predict, board: Board) -> None:
    """Writes the wrong predictions on each development set to TensorBoard.

    For single_label with two classes, it also writes the precision-recall curve of the second one.
    """
    header = ("where", "text", "text pair", "label", "prediction", "confidence")
    for suffix, scored in dev.items():
        answers = scored.answers(predict)
        board.table(f"wrong_predictions{suffix}", header, _worst(problem, scored, answers))
        if problem.problem_type == "single_label" and len(problem.labels) == 2:
            probabilities = answers["probabilities"][:, 1]
            board.pr_curve(f"label_{problem.labels[1]}{suffix}", scored.labels == 1, probabilities)


def _worst(
    problem: Problem, scored: _Split, answers: Mapping[str, np.ndarray]
) -> list[list[object]]:
    """Returns table rows of at most SHOWN wrong predictions, the most confident one first.

    For regression, every prediction counts as wrong, and the one with the largest error is first.
    """
    labels, texts = scored.labels, scored.texts
    decided = decisions(problem, answers)
    if problem.problem_type == "regression":
        error = np.abs(decided - labels)
        wrong, confidence = np.arange(len(labels)), [""] * len(labels)
        shown_labels, shown = ([f"{v:.3f}" for v in values] for values in (labels, decided))
    else:
        probabilities = answers["probabilities"]
        if problem.problem_type == "multi_label":
            error = np.abs(probabilities - labels).max(axis=1)
            wrong = np.flatnonzero((decided != labels).any(axis=1))
        else:
            error = probabilities.max(axis=1)
            wrong = np.flatnonzero(decided != labels)
        confidence = [f"{value:.3f}" for value in error]
        shown_labels, shown = (
            [_joined(class_names(row, problem.labels)) for row in rows]
            for rows in (labels, decided)
        )
    order = wrong[np.argsort(-error[wrong], kind="stable")][:SHOWN]
    second = texts.second or [""] * len(texts)
    return [
        [texts.where(i), texts.first[i], second[i], shown_labels[i], shown[i], confidence[i]]
        for i in order
    ]


def _joined(names: str | list[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)
