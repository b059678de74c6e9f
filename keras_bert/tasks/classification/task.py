"""Defines TextClassifier, the signatures of its exports, and fine-tuning on files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.export.network import Network
from keras_bert.models import BertClassifier
from keras_bert.tasks.checks import (
    check_list,
    check_not_empty,
    check_same_length,
    check_texts,
    check_validation_data,
    first_row,
    is_one_text,
    split_examples,
)
from keras_bert.tasks.classification.data import (
    DEFAULT_METRICS,
    ClassificationSettings,
    Problem,
    class_weights,
    given_label_array,
    label_array,
    read_data,
    warn_of_absent_labels,
)
from keras_bert.tasks.classification.decoding import class_names, decisions, write_predictions
from keras_bert.tasks.classification.metrics import ClassificationObjective, score
from keras_bert.tasks.classification.processor import (
    ClassificationProcessor,
    ClassifierSettings,
    head_settings,
    labeled_examples,
    metric_names,
    short_problem_type,
    takes_pairs,
    transformers_problem_type,
)
from keras_bert.tasks.examples import Predict
from keras_bert.tasks.fine_tuning import (
    SHOWN,
    EvaluationSet,
    FineTuningRun,
    FineTuningTask,
    fine_tune,
    open_pretrained,
)
from keras_bert.tasks.prepared import Prepared, Processor, prepare
from keras_bert.tasks.settings import Distillation
from keras_bert.tasks.tables import Splits, Texts
from keras_bert.tasks.task import EXAMPLE_TEXT, Task
from keras_bert.tasks.texts import TRUNCATED, LongText, ServedTexts
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.training.log import Board


class TextClassifier(Task):
    """Classifies texts or pairs of texts, or predicts a score for them.

    Example:
        classifier = TextClassifier.from_pretrained("bert", labels=["0", "1"])
        classifier.fit((first, second), labels, epochs=3, batch_size=16, seed=0)
        classifier.predict((first, second))["label"]

    Args:
        model: a BertClassifier.
        tokenizer: the tokenizer for the model's vocabulary.
        settings: labels and maximum length.
    """

    task: ClassVar[str] = "classification"
    processor_class: ClassVar[type[Processor]] = ClassificationProcessor
    example: ClassVar[Mapping[str, str]] = {
        "text": EXAMPLE_TEXT,
        "text_pair": "Who had an impact on Europe?",
    }
    input_names: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    export_options: ClassVar[tuple[str, ...]] = ("max_seq_length", "pair")

    settings: ClassifierSettings
    processor: ClassificationProcessor
    _metrics: Sequence[str] = ()  # Of the GLUE task that the loaded model was trained on.

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        problem_type: str | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        dtype: str | None = None,
    ) -> "TextClassifier":
        """Loads a fine-tuned classifier, or adds a new head to a pre-trained model.

        Args:
            path: a model directory, run folder, TF1 checkpoint or KerasHub preset.
            labels: the names of the classes, needed for a new head; by default the labels of the
                model's head.
            max_seq_length: maximum number of tokens of a text or pair; by default the value used in
                training, or 128.
            problem_type: `single_label`, `multi_label` or `regression`; by default that of the
                model's head, or `single_label` for a new head.
            tokenizer: overrides the checkpoint's tokenizer.
            dtype: dtype policy, such as "mixed_bfloat16".

        Raises:
            InputError: the path cannot be opened, the model is of another task, or the labels do
                not match the model's head.
        """
        return cls._open(
            path,
            labels=labels,
            max_seq_length=max_seq_length,
            problem_type=problem_type,
            tokenizer=tokenizer,
            dtype=dtype,
        )

    @classmethod
    def settings_of_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        labels: Sequence[str] | None = None,
        max_seq_length: int | None = None,
        problem_type: str | None = None,
        pair: bool | None = None,
    ) -> ClassifierSettings:
        """Returns the settings: the arguments, or else those of the checkpoint or defaults.

        `pair` is whether the exported model takes two texts; by default, whether the model was
        trained on pairs.
        """
        settings = replace(
            head_settings(checkpoint, labels, problem_type),
            max_seq_length=checkpoint.max_seq_length(max_seq_length),
            pair=checkpoint.setting("pair", bool, pair, takes_pairs(checkpoint)),
            long_text=LongText.saved(checkpoint),
        )
        if settings.pair:
            checkpoint.check_segments()
        return settings

    @classmethod
    def make_model(
        cls, config: BertConfig, settings: ClassifierSettings, dtype: str | None
    ) -> BertClassifier:
        """Creates a newly initialized classifier."""
        return BertClassifier(config, settings.num_logits, dtype=dtype)

    def load_weights(self, checkpoint: Checkpoint) -> None:
        """Loads the weights of a checkpoint, and the names of the metrics of its run."""
        super().load_weights(checkpoint)
        self._metrics = metric_names(checkpoint, self.settings.problem_type)

    @classmethod
    def settings_of_export(cls, info: Mapping[str, Any]) -> ClassifierSettings:
        """Returns the settings recorded in an export's export.json."""
        return ClassifierSettings(
            labels=tuple(info["labels"]),
            problem_type=short_problem_type(info["problem_type"], "export.json"),
            max_seq_length=info["max_seq_length"],
            pair=info["pair"],
            long_text=LongText.of_export(info),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names in the order of the logits; empty for regression."""
        return self.settings.labels

    def fit(
        self,
        texts: Any,
        labels: Any = None,
        *,
        text: str | tuple[str, str] = "text",
        label: str = "label",
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        teacher: "TextClassifier | None" = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model on one device and returns the history, as `keras.Model.fit` does.

        Args:
            texts: n strings: a list, or a column of NumPy, pandas, Arrow or `datasets`. For pairs,
                a tuple of two such columns, or a list of tuples of two strings. Or texts with their
                labels: a DataFrame, a Dataset of `datasets`, a table of Arrow, or a finite
                tf.data.Dataset of (text, label), batched or not; all of it is read into memory.
            labels: n label names; for multi_label, n lists of label names, or a multi-hot array
                [n, C] of 0 and 1 in the order of the model's C labels; for regression, n numbers.
                None if `texts` has them.
            text: the name of the table's column of texts, or for pairs of two columns.
            label: the name of the table's column of labels.
            validation_data: (texts, labels), or a table or dataset as for `texts`, evaluated after
                each epoch; the logs contain the metrics as `val_accuracy` and so on.
            callbacks: Keras callbacks.
            teacher: a trained TextClassifier with the same labels and vocabulary, whose outputs the
                model learns in addition (distillation). The options distillation_weight
                and temperature belong to it.
            **options: epochs, batch_size, learning_rate, seed and so on; see FitSettings.

        Raises:
            InputError: an argument is invalid.
        """
        settings, distillation = self._check_fit(options, teacher)
        texts, labels = split_examples("texts", texts, labels, text, label)
        columns = self._columns(texts)
        array = self._label_array(labels, columns)
        held_out = None
        if validation_data is not None:
            expected = "a tuple (texts, labels)"
            held_out = check_validation_data(validation_data, expected, text, label)
            names = ("validation_data[0]", "validation_data[1]")
            expected = self._label_array(held_out[1], self._columns(held_out[0], names[0]), names)
            check_not_empty("validation_data", expected)
        if columns[0]:
            self._replace_settings(pair=len(columns) == 2)
        prepared = prepare(self.processor.preprocess, columns, tokenizer=self.tokenizer)
        self._report_truncation(prepared.truncated, "training texts")
        examples = labeled_examples(prepared, array)
        objective = ClassificationObjective(self.settings.problem_type, (), distillation)
        evaluate = (lambda: self.evaluate(*held_out)) if held_out else None
        return self._fit(examples, objective, settings, evaluate, callbacks, teacher)

    def evaluate(
        self,
        texts: Any,
        labels: Any = None,
        batch_size: int = 32,
        *,
        text: str | tuple[str, str] = "text",
        label: str = "label",
    ) -> dict[str, float]:
        """Computes the metrics of the model on texts and labels, given as for `fit`.

        Returns:
            "loss", and the metrics of the GLUE task that the loaded model was fine-tuned on. For
                other models: "accuracy" and "f1_macro" for single_label; "f1_micro", "f1_macro" and
                "accuracy" for multi_label; "pearson" and "spearman" for regression.

        Raises:
            InputError: an argument is invalid, or there are no texts.
        """
        texts, labels = split_examples("texts", texts, labels, text, label)
        columns = self._columns(texts)
        array = self._label_array(labels, columns)
        if not len(array):
            raise InputError("evaluate() got no texts; expected at least one")
        answers = self._predict(columns, batch_size)
        self._report_truncation(answers.get("truncated"), "texts")
        metrics = self._metrics or DEFAULT_METRICS[self.settings.problem_type]
        problem = Problem(self.settings.problem_type, self.labels, metrics)
        return score(problem, answers, array)

    def predict(
        self, texts: Any, batch_size: int = 32, *, text: str | tuple[str, str] = "text"
    ) -> dict[str, Any]:
        """Predicts the labels or scores of n texts or pairs.

        Args:
            texts: texts or pairs, given as for `fit`; a tf.data.Dataset has no labels. Or one text,
                or one pair as a tuple of two strings. So two single texts are a list, not a tuple.
            batch_size: number of texts or pairs per batch.
            text: the name of the table's column of texts, or for pairs of two columns.

        Returns:
            The values of one text, or arrays for n texts:
            For single_label, "label" [n], and "probabilities" and "logits" [n, C] for the C
                classes.
            For multi_label, "labels", "probabilities" and "logits", [n, C] each. A row of "labels"
                has the labels with a probability above 0.5, most probable first, then "" as
                padding.
            For regression, "score" [n].
            For all types, "truncated" [n]: whether tokens of the text or pair were removed, because
                it has more than `max_seq_length`.

        Raises:
            InputError: an argument is invalid.
        """
        if is_one_text(texts, allow_pairs=True):
            return first_row(self.predict([texts], batch_size))
        texts, _ = split_examples("texts", texts, None, text, None)
        return self._predict(self._columns(texts), batch_size)

    def served(self, network: Network) -> tf.Module:
        """Creates the tf.Module whose signatures are exported."""
        return ServedClassifier(network, self.processor)

    def description(self) -> dict[str, Any]:
        """Returns the entries of export.json for the labels and the problem type."""
        return {
            "problem_type": self.problem_type_name,
            "labels": list(self.labels),
            "pair": self.settings.pair,
        }

    def example_request(self) -> dict[str, str]:
        """Returns the input strings of a warm-up request for a server."""
        names = self.input_names if self.settings.pair else ("text",)
        return {name: self.example[name] for name in names}

    @property
    def problem_type_name(self) -> str:
        """The problem type as transformers names it, such as `single_label_classification`."""
        return transformers_problem_type(self.settings.problem_type)

    def _saved_settings(self) -> dict[str, Any]:
        names = ("max_seq_length", "problem_type", "pair")
        saved = {name: getattr(self.settings, name) for name in names}
        return saved | self.settings.long_text.to_dict()

    def _columns(self, texts: Any, name: str = "texts") -> tuple[list[str], ...]:
        columns = check_texts(name, texts, allow_pairs=True)
        if len(columns) == 2 and self.settings.long_text != TRUNCATED:
            raise InputError(
                f"{name} is a tuple of pairs, but long_text is "
                f"{self.settings.long_text.strategy!r}; expected single texts, or 'truncate'"
            )
        if len(columns) == 2 and self._model is not None:
            count = self.model.config.type_vocab_size
            if count < 2:
                raise InputError(
                    f"{name} is a tuple of pairs, but the model has type_vocab_size {count}; "
                    "expected single texts, or a model with 2 segments"
                )
        return columns

    def _label_array(
        self,
        labels: Any,
        columns: Sequence[Sequence[str]],
        names: tuple[str, str] = ("texts", "labels"),
    ) -> np.ndarray:
        """Checks labels and converts them to numbers, as `label_array` does.

        `names` are the names of the arguments for texts and labels in error messages.
        """
        items = check_list(names[1], labels, "labels")
        check_same_length(**{names[0]: columns[0], names[1]: items})
        return given_label_array(names[1], items, self.settings.problem_type, self.labels)


class ServedClassifier(ServedTexts):
    """The SavedModel signatures of a classifier or a regression model."""

    def __init__(self, network: Network, processor: ClassificationProcessor):
        super().__init__(network, processor)
        self.input_names = ("text", "text_pair") if processor.settings.pair else ("text",)


# --- fine-tuning ---


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
        start.labels,
        do_train=settings.do_train,
        do_eval=settings.do_eval,
        do_predict=settings.do_predict,
    )
    task = ClassifierFineTuning(
        problem, splits, start, settings.max_seq_length, classification, run.distillation
    )
    return fine_tune(run, start, task)


class ClassifierFineTuning(FineTuningTask):
    """The texts of a run: their model inputs, scores and predictions.

    `start` is the checkpoint to start from. `classification` has the class weights and the settings
    of long texts. Keys of `dev` are the suffixes of the metrics; keys of `test` are file names.
    """

    task_class = TextClassifier
    best = "score"

    def __init__(
        self,
        problem: Problem,
        splits: Splits,
        start: Checkpoint,
        max_seq_length: int,
        classification: ClassificationSettings,
        distillation: Distillation | None = None,
    ):
        self.problem, self._start = problem, start
        self.labels = problem.labels or None
        self.problem_type = transformers_problem_type(problem.problem_type)
        first = splits.train or next(iter({**splits.dev, **splits.test}.values()))
        settings = ClassifierSettings(
            problem.labels,
            problem.problem_type,
            max_seq_length,
            first.second is not None,
            LongText.saved(start, classification.long_text, max_seq_length),
        )
        self.processor = ClassificationProcessor(start.tokenizer(), settings)
        prepared: dict[str, Prepared] = {}
        weights = None
        if splits.train:
            split = self._labeled(splits.train)
            prepared["train"] = split.prepared
            self.train = labeled_examples(split.prepared, split.labels)
            weights = class_weights(
                classification.class_weights,
                problem.problem_type,
                problem.labels,
                self.train.labels["labels"],
            )
        self.objective = ClassificationObjective(
            problem.problem_type,
            () if weights is None else tuple(weights.tolist()),
            distillation,
        )
        self.dev = {suffix: self._labeled(texts) for suffix, texts in splits.dev.items()}
        if problem.labels:
            for split in self.dev.values():
                warn_of_absent_labels(split.items, split.labels, problem.labels)
        # Reuse the development split, so that the model runs over the same texts only once.
        dev_of = {id(split.items): split for split in self.dev.values()}
        self.test = {
            name: dev_of.get(id(texts)) or self._set(texts) for name, texts in splits.test.items()
        }
        prepared |= {f"dev{suffix}": split.prepared for suffix, split in self.dev.items()}
        prepared |= {name: split.prepared for name, split in self.test.items()}
        self.report_truncation(prepared, "examples")
        texts_of = {f"dev{suffix}": texts for suffix, texts in splits.dev.items()} | splits.test
        self.data = {name: list(texts.rows()) for name, texts in texts_of.items()}

    def score(self, predict: Predict) -> dict[str, float]:
        """Returns the scores of all development sets, and "score", the mean of their metrics.

        The mean does not include the losses.
        """
        scores = {}
        for suffix, split in self.dev.items():
            split_scores = score(self.problem, split.answers(predict), split.labels)
            scores |= {name + suffix: value for name, value in split_scores.items()}
        averaged = [scores[name + suffix] for suffix in self.dev for name in self.problem.metrics]
        return scores | {"score": float(np.mean(averaged))}

    def show(self, predict: Predict, board: Board) -> None:
        """Writes the wrong predictions on each development set to TensorBoard.

        For single_label with two classes, it also writes the precision-recall curve of the second
        one.
        """
        header = ("where", "text", "text pair", "label", "prediction", "confidence")
        problem = self.problem
        for suffix, split in self.dev.items():
            answers = split.answers(predict)
            board.table(f"wrong_predictions{suffix}", header, _worst(problem, split, answers))
            if problem.problem_type == "single_label" and len(problem.labels) == 2:
                name = f"label_{problem.labels[1]}{suffix}"
                board.pr_curve(name, split.labels == 1, answers["probabilities"][:, 1])

    def write_predictions(self, predict: Predict, folder: Path) -> None:
        """Writes the predictions for each test set."""
        for name, split in self.test.items():
            answers = split.answers(predict)
            write_predictions(folder / name, self.problem, split.items.indices, answers)
            logging.info("Wrote %d predictions to %s", len(split.items), folder / f"{name}.tsv")

    def _labeled(self, texts: Texts) -> EvaluationSet:
        problem = self.problem
        return self._set(texts, label_array(texts, problem.problem_type, problem.labels))

    def _set(self, texts: Texts, labels: np.ndarray | None = None) -> EvaluationSet:
        if texts.second is not None:
            self._start.check_segments()
        columns = [texts.first] if texts.second is None else [texts.first, texts.second]
        tokenizer = self.processor.tokenizer
        prepared = prepare(self.processor.preprocess, columns, tokenizer=tokenizer)
        return EvaluationSet(texts, self.processor, prepared, labels)


def _worst(
    problem: Problem, scored: EvaluationSet, answers: Mapping[str, np.ndarray]
) -> list[list[object]]:
    """Returns table rows of at most SHOWN wrong predictions, the most confident one first.

    For regression, every prediction counts as wrong, and the one with the largest error is first.
    """
    labels, texts, where = scored.labels, scored.items, scored.items.where
    decided = decisions(problem, answers)
    is_regression, wrong = problem.problem_type == "regression", decided != labels
    if is_regression:
        wrong, error = np.ones([len(labels)], bool), np.abs(decided - labels)
    elif problem.problem_type == "multi_label":
        wrong, error = wrong.any(axis=1), np.abs(answers["probabilities"] - labels).max(axis=1)
    else:
        error = answers["probabilities"].max(axis=1)

    def shown(value: Any) -> str:
        if is_regression:
            return f"{value:.3f}"
        names = class_names(value, problem.labels)
        return names if isinstance(names, str) else ", ".join(names)

    order = np.flatnonzero(wrong)
    order = order[np.argsort(-error[order], kind="stable")][:SHOWN]
    second = texts.second or [""] * len(texts)
    confidence = [""] * len(texts) if is_regression else [f"{value:.3f}" for value in error]
    return [
        [where(i), texts.first[i], second[i], shown(labels[i]), shown(decided[i]), confidence[i]]
        for i in order
    ]
