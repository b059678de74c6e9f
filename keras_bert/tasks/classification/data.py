"""Reads the examples of a run from GLUE, TensorFlow Datasets or files, and converts their labels.

The labels of n examples as numbers, for each problem type:

single_label   one of C classes          int32 [n]
multi_label    any number of C classes   float32 [n, C] of 0 and 1
regression     a number                  float32 [n]
reranking      a number from 0 to 1      float32 [n, 1], for n pairs (query, passage)
               none                      float32 [n, k], for n groups (query, positive, k - 1
                                         negatives): 1 for the positive, the first passage
"""

import ast
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from keras_bert.errors import InputError, shorten
from keras_bert.options import check, option
from keras_bert.tasks.checks import check_list, in_order_of
from keras_bert.tasks.classification.glue import find_glue_folder, find_task, read_glue, read_tfds
from keras_bert.tasks.settings import ClassificationSettings
from keras_bert.tasks.tables import Splits, Texts, read_splits, read_texts
from keras_bert.tasks.text_processor import TRUNCATED, LongText

DEFAULT_METRICS = {
    "single_label": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("pearson", "spearman"),
    "reranking": ("accuracy", "spearman"),
}
# The problem types of a head with one logit and without labels -> the model in messages.
ONE_LOGIT = {"regression": "a regression", "reranking": "a reranker"}


# The settings that only the task `custom` accepts, because a GLUE task determines their values.
_CUSTOM_SETTINGS = ("train_file", "eval_file", "predict_file", "columns", "problem_type")
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
        pair: whether the model was trained on pairs, and its exports take two texts; None if that
            is not known.
        long_text: the settings for single texts with more tokens.
        thresholds: for multi_label, the probability above which a text has each label; empty for
            0.5.
        activation: for reranking, the function from a logit to a score, `sigmoid` or `linear`.
        metrics: the names of the metrics to report; empty for those of the problem type.
        score_range: the (lowest, highest) value to which regression values are clipped in
            prediction files; None for no clipping.

    Raises:
        InputError: a value is invalid, the problem type has no labels but there are some, pairs are
            not truncated at the end, or a reranker takes single texts.
    """

    labels: tuple[str, ...]
    problem_type: str = option("single_label", choices=PROBLEM_TYPES)
    max_seq_length: int = 128
    pair: bool | None = None
    long_text: LongText = TRUNCATED
    thresholds: tuple[float, ...] = ()
    activation: str = "sigmoid"
    # Of a run of the program; not properties of the model, so they are not compared or saved.
    metrics: tuple[str, ...] = field(default=(), compare=False)
    score_range: tuple[float, float] | None = field(default=None, compare=False)

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


def read_data(
    settings: ClassificationSettings, saved_labels: Sequence[str] | None, **do: bool
) -> tuple[ClassifierSettings, Splits]:
    """Reads the examples of a run, dicts of `Texts`; `do` has do_train, do_eval and do_predict.

    The settings of the result have what follows from the task and its examples, such as labels.

    `saved_labels` are the labels of the checkpoint, in the order of its logits, or None. If the
    task has the same labels, the result has them in this order. The task `custom` has these labels
    if there are no training examples.
    """
    is_custom = settings.task_name.lower() == "custom"
    return (_custom if is_custom else _glue)(settings, saved_labels, **do)


def _glue(
    settings: ClassificationSettings, saved_labels: Sequence[str] | None, **do: bool
) -> tuple[ClassifierSettings, Splits]:
    for name in _CUSTOM_SETTINGS:
        value = getattr(settings, name)
        if value and value != getattr(ClassificationSettings, name):
            raise InputError(
                f"--{name}: got --task_name={settings.task_name}; expected --task_name=custom with "
                f"--{name}"
            )
    task = find_task(settings.task_name)
    if do["do_train"] and not task.train:
        raise InputError(
            f"--task_name={task.name}: the task has no training examples; expected "
            "--do_train=false and a model fine-tuned on MNLI as --init_checkpoint"
        )
    if settings.tfds:
        splits = read_tfds(task, settings.data_dir, **do)
    else:
        splits = read_glue(task, find_glue_folder(task, settings.data_dir), **do)
    problem = ClassifierSettings(
        tuple(in_order_of(saved_labels, task.labels) or task.labels),
        "single_label" if task.labels else "regression",
        metrics=task.metrics,
        score_range=task.score_range,
    )
    return problem, splits


def _custom(
    settings: ClassificationSettings, saved_labels: Sequence[str] | None, **do: bool
) -> tuple[ClassifierSettings, Splits]:
    if settings.tfds or settings.data_dir:
        raise InputError(
            "--task_name=custom cannot be combined with --tfds or --data_dir; expected "
            "--train_file, --eval_file and --predict_file"
        )
    problem_type = settings.problem_type
    columns, label_column = settings.column_names
    if problem_type == "reranking" and len(columns) == 1:
        raise InputError(
            "--columns: text_pair is missing; expected text_pair=NAME, the column of the passages, "
            "for --problem_type=reranking"
        )
    files = (settings.train_file, settings.eval_file, settings.predict_file)
    train, dev, test = (Path(file) if file else None for file in files)
    has_labels = len(columns) < 3
    splits = read_splits(
        lambda file, labelled: read_texts(file, columns, label_column * (labelled and has_labels)),
        train,
        {"": dev},
        {"predictions": test},
        "--train_file with a file of examples",
        **do,
    )
    labels: Sequence[str] = ()
    if splits.train is not None:
        labels = find_labels(splits.train, problem_type)
        labels = in_order_of(saved_labels, labels) or labels
    elif problem_type not in ONE_LOGIT:
        if not saved_labels:
            raise InputError(
                "--do_train=false: the checkpoint has no label names; expected --label_names"
            )
        if len(saved_labels) == 1 and problem_type == "single_label":
            raise InputError(
                "--problem_type=single_label: the checkpoint has a head of one logit; expected "
                "--problem_type=reranking or regression"
            )
        labels = saved_labels
    problem = ClassifierSettings(tuple(labels), problem_type, pair=problem_type == "reranking")
    return problem, splits


# --- labels ---

# Problem type -> the description of a valid label in error messages.
_EXPECTED_LABEL = {
    "single_label": "a class name",
    "multi_label": "a list of class names, or of a 0 or 1 for each class",
    "regression": "a number",
    "reranking": "a number from 0 to 1",
}


# The names of a 0 and a 1, of which a row has one for each label.
_BITS = {"0", "1", "0.0", "1.0", "false", "true", "False", "True"}
_MISSING = ("nan", "NaN", "<NA>", "NaT")  # as pandas and NumPy write a missing value
_CLOSING = {"[": "]", "(": ")", "{": "}"}
# What a list in a cell has that a name in brackets does not, such as NumPy's [1 2] and [nan].
_SEVERAL = re.compile(r"""['",]|^\[\s*nan|^\[\S*\s""")
_INTEGER = re.compile(r"-?\d+(\.0)?")
_LARGEST = float(np.finfo(np.float32).max)
_NO_COMMA = re.compile(r"""['"]\s+['"]""")  # NumPy's "['a' 'b']", which Python would join.


def find_labels(texts: Texts, problem_type: str) -> tuple[str, ...]:
    """Returns the classes in the training examples; () for regression and reranking.

    The number of a class is its index in the result. The classes are sorted by value if all are
    integers, otherwise alphabetically. If all are integers, 1.0, as pandas writes the integers of a
    column with missing values, becomes 1.
    """
    if problem_type in ONE_LOGIT:
        return ()
    classes: dict[str, int] = {}  # The index of the first example of each class.
    num_labels = 0
    for index in range(len(texts)):
        names = _label_names(texts, index, problem_type)
        num_labels += len(names)
        for name in names:
            classes.setdefault(name, index)
    if (
        len(classes) == 2 and {*classes} <= _BITS and num_labels == 2 * len(texts)
    ):  # As [0, 1] and [1, 0] are read.
        raise InputError(
            f"{texts.source}: expected the names of the labels, got both {' and '.join(classes)} "
            "in all examples, as if they were a 0 or 1 for each label"
        )
    if "None" in classes:
        raise InputError(
            f"{texts.where(classes['None'])}: expected a label, got 'None', which Python writes "
            "for a missing value; remove these examples, or rename the class"
        )
    if all(map(_INTEGER.fullmatch, classes)):
        classes = {name.removesuffix(".0"): index for name, index in classes.items()}
    minimum = 2 if problem_type == "single_label" else 1
    if len(classes) < minimum:
        raise InputError(
            f"{texts.source}: expected at least {minimum} classes, got "
            f"{', '.join(classes) or 'none'}"
        )
    if all(name.removeprefix("-").isdecimal() for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes))


def label_array(texts: Texts, problem_type: str, labels: Sequence[str]) -> np.ndarray:
    """Converts the labels of examples to numbers, in the format at the top of this file.

    `labels` are the C classes in the order of their numbers. The label 1.0 is the class 1, unless
    there is one 1.0.
    """
    if problem_type == "reranking" and len(texts.columns) > 2:
        return group_labels(texts.columns)
    if problem_type in ONE_LOGIT:
        numbers = [_number(texts, index, problem_type) for index in range(len(texts))]
        shape = [-1, 1] if problem_type == "reranking" else [-1]
        return np.array(numbers, np.float32).reshape(shape)
    number = {label: index for index, label in enumerate(labels)}
    array = np.zeros([len(texts), len(labels)], np.float32)
    for index in range(len(texts)):
        for name in _label_names(texts, index, problem_type):
            name = name if name in number else name.removesuffix(".0")
            if name not in number:
                some = "one" if problem_type == "single_label" else "some"
                raise InputError(
                    f"{texts.where(index)}: unknown label {name!r}; expected {some} of "
                    f"{shorten(', '.join(labels))}"
                )
            array[index, number[name]] = 1
    return array if problem_type == "multi_label" else array.argmax(axis=1).astype(np.int32)


def given_label_array(
    name: str, items: Sequence[Any], problem_type: str, labels: Sequence[str]
) -> np.ndarray:
    """Converts labels given as Python or NumPy objects to numbers, as `label_array` does.

    For single_label, integers are indices of `labels`, unless a class is named by an integer. For
    multi_label, the items may also be n rows of C numbers 0 and 1, in the order of `labels`.
    """
    is_multi_label = problem_type == "multi_label"
    texts = _as_texts(name, items, problem_type)
    if is_multi_label and _is_multi_hot(name, texts.labels, labels):
        return np.array(texts.labels, np.float32)
    if is_multi_label:
        numbers = {value for row in texts.labels for value in row if type(value) in (int, float)}
        unknown = [x for x in numbers if _label_name(x, name).removesuffix(".0") not in labels]
        if unknown:
            raise InputError(
                f"{name}: found the number {unknown[0]}, which is not the name of a label; "
                f"expected some of {shorten(', '.join(labels))}, or rows of {len(labels)} values, "
                "a 0 or 1 for each label"
            )
    if problem_type == "single_label":
        texts.labels = _of_indices(texts.labels, labels)
    return label_array(texts, problem_type, labels)


def given_labels(name: str, items: Sequence[Any], problem_type: str) -> tuple[str, ...]:
    """Returns the sorted classes of labels given as objects; the arguments are as above."""
    for index, item in enumerate(map(_to_python, items)):
        if isinstance(item, float) and math.isfinite(item) and not item.is_integer():
            raise InputError(
                f"{name}[{index}] is {item}; expected the name of a class; to predict numbers, use "
                'from_pretrained(..., problem_type="regression")'
            )
    return find_labels(_as_texts(name, items, problem_type), problem_type)


def _as_texts(name: str, items: Sequence[Any], problem_type: str) -> Texts:
    """Converts labels to Python types; raises InputError for a type that the problem lacks."""
    is_multi_label = problem_type == "multi_label"
    items = [_to_python(item) for item in items]
    for index, item in enumerate(items):
        values = item if is_multi_label and isinstance(item, list) else [item]
        if isinstance(item, list) != is_multi_label or not all(
            value is None or isinstance(value, str | int | float) for value in values
        ):
            expected = _EXPECTED_LABEL[problem_type]
            raise InputError(f"{name}[{index}] is {item!r:.60}; expected {expected}")
    locations = [f"{name}, item {index}" for index in range(len(items))]
    return Texts(name, ([],), items, locations)


def _of_indices(items: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Converts indices of classes to their names, unless classes are named by integers."""
    if any(map(_INTEGER.fullmatch, labels)):
        return [*items]
    names: dict[int, str] = dict(enumerate(labels))
    return [names.get(item, item) if type(item) is int else item for item in items]


def _is_multi_hot(name: str, rows: Sequence[list[Any]], labels: Sequence[str]) -> bool:
    """Returns whether rows have a number 0 or 1 for each label, and not the names of labels."""
    values = [value for row in rows for value in row]
    is_number = all(isinstance(value, int | float) and value in (0, 1) for value in values)
    if not values or not is_number or any(len(row) != len(labels) for row in rows):
        return False
    names = {_label_name(type(value)(bit), name) for value in values for bit in (0, 1)} & {*labels}
    if names:
        raise InputError(
            f"{name}: found a 0 or 1 for each label, but {' and '.join(sorted(names))} also name "
            "labels; expected names as strings, or a bool array with a column for each label"
        )
    return True


def warn_of_absent_labels(texts: Texts, array: np.ndarray, labels: Sequence[str]) -> None:
    """Logs a warning if classes have no examples; `array` is the `label_array` of `texts`."""
    seen = array.any(axis=0) if array.ndim == 2 else np.isin(np.arange(len(labels)), array)
    absent = [label for label, is_seen in zip(labels, seen, strict=True) if not is_seen]
    if absent:
        logging.warning("%s: no example is labelled %s", texts.source, ", ".join(absent))


def weights_of_classes(
    name: str,
    weights: Any,
    problem_type: str,
    labels: Sequence[str],
    array: np.ndarray,
) -> tuple[float, ...]:
    """Returns the weight of each class in the loss; () for equal weights.

    `weights` is `balanced`; C numbers, as "1,2.5", a list or an array; {class or its index:
    number}, 1 for other classes; or empty for equal weights. `array` is the `label_array` of the n
    training examples. For single_label, the balanced weight of a class is n / (C x number of
    examples of the class). For multi_label, it is the number of examples without the label, divided
    by the number of examples with the label; 1 for a label of all examples.
    """
    if weights is not None and not isinstance(weights, str | Mapping):
        weights = check_list(name, weights, "numbers")
    if not weights:
        return ()
    where = f"{name}={weights!s:.60}"
    if model := ONE_LOGIT.get(problem_type):
        raise InputError(f"{where}: {model} has no classes; expected an empty value")
    if isinstance(weights, Mapping):
        keys = _of_indices([_to_python(key) for key in weights], labels)
        keys = [_label_name(key, name) for key in keys]
        by_name = dict(zip(keys, weights.values(), strict=True))
        unknown = [key for key in by_name if key not in labels]
        if unknown:
            expected = f"expected labels: {shorten(', '.join(labels))}"
            raise InputError(f"{name} has the key {unknown[0]!r:.60}; {expected}")
        weights = [by_name.get(label, 1.0) for label in labels]
    if weights != "balanced":
        numbers: Any = []
        with contextlib.suppress(ValueError, TypeError):
            values = weights.split(",") if isinstance(weights, str) else weights
            numbers = [float(number) for number in values]
        if len(numbers) != len(labels) or not all(0 < number < math.inf for number in numbers):
            raise InputError(
                f"{where}: expected balanced, or {len(labels)} numbers above 0 "
                f"separated by commas, one for each of {shorten(', '.join(labels))}"
            )
        return tuple(np.array(numbers, np.float32).tolist())
    if problem_type == "multi_label":
        counts = array.sum(axis=0)
        without = np.where(counts < len(array), len(array) - counts, counts)
        balanced = without / np.maximum(counts, 1)
    else:
        counts = np.bincount(array, minlength=len(labels))
        balanced = len(array) / (len(labels) * np.maximum(counts, 1))
    if not counts.all():
        raise InputError(
            f"{where}: no training example is labelled "
            f"{labels[int(np.argmin(counts))]!r}; expected at least one for each class"
        )
    return tuple(balanced.astype(np.float32).tolist())


def _label_names(texts: Texts, index: int, problem_type: str) -> list[str]:
    """Returns an example's labels; raises InputError if there is none, except for multi_label."""
    label, where = texts.labels[index], texts.where(index)
    items = _listed(label)
    if problem_type == "single_label":
        is_list = items is not None or bool(re.match(r"""\s*\[['"].*['"]\s+['"]""", str(label)))
        hint = "; for lists of labels, the problem type is multi_label" * is_list
        name = "" if is_list else _label_name(label, where)
        if not name:
            raise InputError(f"{where}: expected a label, got {json.dumps(label)}{hint}")
        return [name]
    if items is None:
        text = _label_name(label, where)
        # Not "[a],[b]", which has two labels in brackets.
        is_list = _CLOSING.get(text[:1]) == text[-1:] and text[0] not in text[1:]
        is_list |= text.startswith("[[")
        is_list |= bool(re.fullmatch(r"\w+\([^()]*\)", text))  # array(['a', 'b'], dtype=object)
        if is_list and _SEVERAL.search(text):
            raise InputError(
                f"{where}: expected labels separated by ',', or a list such as "
                f'["a", "b"], got {text!r:.80}'
            )
        items = text.split(",")
    names = [name for item in items if (name := _label_name(item, where))]
    if {*names} <= _BITS and len({*names}) < len(names):
        raise InputError(
            f"{where}: expected the names of the labels, got zeros and ones: {label!r:.80}"
        )
    return names


def _listed(label: object) -> list[Any] | None:
    """Returns the items of a list, or of a list in a cell, as JSON or Python writes it."""
    if not isinstance(label, str):
        return label if isinstance(label, list) else None
    cell = label.strip()
    if cell == "set()":
        return []
    if _NO_COMMA.search(cell) or (cell[:1] != "[" and "'" not in cell):
        return None
    for parse in (json.loads, ast.literal_eval):
        # {['a']} and [b'a'] raise TypeError, thousands of brackets one of the last two.
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            items = parse(cell)
            is_list = isinstance(items, list | tuple | set)
            return json.loads(json.dumps([*items])) if is_list else None
    return None


def _label_name(label: object, where: str) -> str:
    """Converts a label to a string, "" for None; numbers and booleans are written as in JSON."""
    name = (label if isinstance(label, str) else "" if label is None else json.dumps(label)).strip()
    if name in _MISSING or isinstance(label, list | Mapping):
        raise InputError(
            f"{where}: expected a label, got {name:.80}"
            + "; remove examples without a label, or rename the class" * (name in _MISSING)
        )
    return name


def _to_python(label: Any) -> Any:
    """Converts NumPy labels to Python types, bytes to strings, and sequences to lists."""
    if isinstance(label, np.ndarray | np.generic):
        label = label.tolist()
    if isinstance(label, bytes):
        return label.decode("utf-8", "replace")
    return [_to_python(one) for one in label] if isinstance(label, tuple | list) else label


def group_labels(columns: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the labels of n groups (query, positive, negatives...), float32 [n, k]."""
    return np.tile(np.eye(1, len(columns) - 1, dtype=np.float32), [len(columns[0]), 1])


def pair_columns(columns: tuple[list[str], ...]) -> tuple[list[str], ...]:
    """Converts groups (query, positive, negatives...) to pairs (query, passage), group by group."""
    if len(columns) < 3:
        return columns
    query, *passages = columns
    queries = [text for text in query for _ in passages]
    return queries, [text for group in zip(*passages, strict=True) for text in group]


def _number(texts: Texts, index: int, problem_type: str) -> float:
    label = texts.labels[index]
    low, high = -_LARGEST, _LARGEST
    if problem_type == "reranking":
        low, high = 0.0, 1.0
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        expected = _EXPECTED_LABEL[problem_type]
        raise InputError(f"{texts.where(index)}: expected {expected} as label, got {label!r}")
    return number
