"""Preprocesses texts for a classifier, in TensorFlow graphs, and settings of its checkpoint.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; or score for one logit        decode

With `long_text="windows"`, a text can have several windows, whose logits are pooled before they are
decoded. B texts, n windows, C classes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.earlier_run import CONFIG
from keras_bert.checkpoints.sentence_transformers import score_activation
from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.options import check, option
from keras_bert.tasks.checks import head_labels
from keras_bert.tasks.classification.data import DEFAULT_METRICS, ONE_LOGIT
from keras_bert.tasks.classification.decoding import decode_logits
from keras_bert.tasks.classification.glue import GlueTask, find_task
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.prepared import Prepared
from keras_bert.tasks.texts import TRUNCATED, LongText, TextProcessor, window_counts
from keras_bert.text.padding import Segments
from keras_bert.text.windows import TextWindows

PROBLEM_TYPES = ("single_label", "multi_label", "regression", "reranking")


@dataclass(frozen=True)
class ClassifierSettings:
    """The labels and the text settings of a classifier.

    Attributes:
        labels: the names of the C classes in the order of the logits; empty for regression and
            reranking.
        problem_type: `single_label`, `multi_label`, `regression` or `reranking`.
        max_seq_length: maximum number of tokens, including [CLS] and [SEP]; for longer texts, see
            `long_text`.
        pair: whether the exported model takes two texts.
        long_text: the settings for single texts with more tokens.
        thresholds: for multi_label, the probability above which a text has each label; empty for
            0.5.
        activation: for reranking, the function from a logit to a score, `sigmoid` or `linear`.

    Raises:
        InputError: a value is invalid, the problem type has no labels but there are some, pairs are
            not truncated at the end, or a reranker takes single texts.
    """

    labels: tuple[str, ...]
    problem_type: str = option("single_label", choices=PROBLEM_TYPES)
    max_seq_length: int = 128
    pair: bool = False
    long_text: LongText = TRUNCATED
    thresholds: tuple[float, ...] = ()
    activation: str = "sigmoid"

    def __post_init__(self):
        check(self)
        self.long_text.check_stride(self.max_seq_length)
        if self.pair and self.long_text != TRUNCATED:
            raise InputError(
                f"long_text={self.long_text.strategy!r}: got pairs of texts; expected single "
                "texts, or 'truncate'"
            )
        if self.problem_type in ONE_LOGIT and self.labels:
            raise InputError(
                f"labels={list(self.labels)}: expected none for problem_type={self.problem_type!r}"
            )
        if self.problem_type == "reranking" and not self.pair:
            raise InputError("pair=False: a reranker scores pairs (query, passage); expected True")

    @property
    def num_logits(self) -> int:
        """The number of logits per example: C, or 1 for regression and reranking."""
        return len(self.labels) or 1


class ClassificationProcessor(TextProcessor):
    """Converts texts to model inputs, and logits to labels."""

    @property
    def truncates_as_transformers(self) -> bool:
        """Whether pairs are truncated as by sentence-transformers, as those of a reranker are."""
        return self.settings.problem_type == "reranking"

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: Segments | TextWindows
    ) -> dict[str, tf.Tensor]:
        """Decodes logits, [B, C] or for windows [n, C], into `TextClassifier.predict`'s outputs."""
        logits = self.pooled(outputs["logits"], inputs)
        settings = self.settings
        if settings.problem_type == "reranking":
            is_linear = settings.activation == "linear"
            score = logits[:, 0] if is_linear else tf.sigmoid(logits[:, 0])
            answers = {"score": score, "logits": logits}
        else:
            kind = settings.problem_type
            answers = decode_logits(logits, settings.labels, kind, settings.thresholds)
        return answers | {"truncated": inputs.truncated}


def labeled_examples(prepared: Prepared, labels: np.ndarray) -> Examples:
    """Returns the training examples of texts with labels, [n, ...] for n texts.

    Each window of a text is an example with the label of the text. For n groups of k pairs, labels
    [n, k], each pair is an example with a label, and k examples form a group.
    """
    counts = window_counts(prepared)
    size = len(counts) // max(1, len(labels))
    repeated = np.repeat(labels.reshape(-1, 1) if size > 1 else labels, counts, axis=0)
    return dataclasses.replace(prepared.examples, labels={"labels": repeated}, group_size=size)


# --- settings of a checkpoint ---


def transformers_problem_type(problem_type: str) -> str:
    """Converts `single_label` to `single_label_classification`, as transformers names it."""
    return problem_type + "_classification" * (problem_type not in ONE_LOGIT)


def short_problem_type(name: str | None, where: Any) -> str | None:
    """Converts a problem type of transformers, such as `single_label_classification`.

    Returns one of PROBLEM_TYPES, or None for None. Raises InputError if the type is unknown; the
    message starts with `where`.
    """
    if name is None:
        return None
    short = name.removesuffix("_classification")
    if short not in PROBLEM_TYPES:
        names = ", ".join(f"{kind}_classification" for kind in PROBLEM_TYPES[:2])
        raise InputError(f"{where}: problem_type is {name!r}; expected one of {names}, regression")
    return short


def takes_pairs(checkpoint: Checkpoint) -> bool:
    """Returns whether the run that trained the classifier used pairs; false without such a run."""
    task = _glue_task(checkpoint)
    if task is not None:
        return len(task.text_columns) == 2
    return bool(checkpoint.run.setting("text_pair_column", str, ""))


def metric_names(checkpoint: Checkpoint, problem_type: str) -> Sequence[str]:
    """Returns the metrics of the GLUE task that a model was trained on, or the default ones."""
    task = _glue_task(checkpoint)
    is_of_task = task is not None and problem_type != "reranking"
    return task.metrics if is_of_task else DEFAULT_METRICS[problem_type]


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

    Raises:
        InputError: the labels do not match the head, the head has one logit but the problem type
            needs labels, or the problem type is unknown.
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
        return ClassifierSettings((), kind, pair=kind == "reranking")
    names, _ = head_labels(checkpoint, labels)
    if len(names) < 2 and kind == "single_label" and labels:
        raise InputError(f"labels={names}: expected at least two different names")
    if len(names) == 1 and kind == "single_label":
        raise InputError(
            f"problem_type={kind!r}: {checkpoint.path} has a head of one logit; expected at least "
            "two, or problem_type='reranking' or 'regression'"
        )
    return ClassifierSettings(tuple(names), kind)
