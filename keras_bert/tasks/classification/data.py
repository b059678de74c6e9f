"""Reads classification data from GLUE's files, TensorFlow Datasets or the user's own files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.glue import GlueTask, find_task
from keras_bert.tasks.classification.labels import find_labels
from keras_bert.tasks.classification.metrics import DEFAULT_METRICS
from keras_bert.tasks.classification.texts import Splits, find_glue_folder, read_glue, read_texts
from keras_bert.tasks.classification.tfds import read_tfds
from keras_bert.tasks.fine_tuning.pretrained import in_order_of
from keras_bert.tasks.long_text import LongText


@dataclass(frozen=True)
class ClassificationSettings:
    """The settings for the data of a classifier.

    The settings from `train_file` to `problem_type` apply only to the task `custom`.

    Attributes:
        task_name: a GLUE task, or `custom` for the user's own files.
        data_dir: the folder of all GLUE tasks or of this one; with `tfds`, the folder of TensorFlow
            Datasets.
        tfds: whether to read the task from TensorFlow Datasets.
        train_file: the file of the training examples, in TSV, CSV, JSONL, Parquet
            or Arrow.
        eval_file: the file of the development examples.
        test_file: the file of the examples to predict, which need no labels; if empty, `eval_file`.
        text_column: the name of the text column.
        text_pair_column: the name of the column with the second texts; empty for single texts.
        label_column: the name of the label column.
        label_separator: the separator between the labels of an example (multi_label).
        problem_type: single_label, multi_label or regression.
        class_weights: the weights of the classes in the loss: `balanced`, one number per class
            separated by commas, or empty for equal weights.
        long_text: the strategy for long texts, as in `LongText`.
        window_stride, window_pooling: as in `LongText`.
    """

    task_name: str
    data_dir: str = ""
    tfds: bool = False
    train_file: str = ""
    eval_file: str = ""
    test_file: str = ""
    text_column: str = "text"
    text_pair_column: str = ""
    label_column: str = "label"
    label_separator: str = ","
    problem_type: str = "single_label"
    class_weights: str = ""
    long_text: str = "truncate"
    window_stride: int = 0
    window_pooling: str = "mean"

    @property
    def long_text_settings(self) -> LongText:
        """The settings of long texts; raises InputError for an invalid setting."""
        return LongText(self.long_text, self.window_stride, self.window_pooling)


# The settings that only the task `custom` accepts, because a GLUE task determines their values.
_CUSTOM_SETTINGS = (
    "train_file",
    "eval_file",
    "test_file",
    "text_column",
    "text_pair_column",
    "label_column",
    "label_separator",
    "problem_type",
)


@dataclass(frozen=True)
class Problem:
    """The labels, problem type and metrics of a classification task.

    Attributes:
        problem_type: single_label, multi_label or regression.
        labels: the C classes in the order of the logits; empty for regression.
        metrics: the names of the metrics to report.
        label_separator: the separator between the labels of an example (multi_label).
        score_range: the (lowest, highest) value to which regression values are clipped in
            prediction files; None for no clipping.
    """

    problem_type: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    label_separator: str = ","
    score_range: tuple[float, float] | None = None


def read_data(
    settings: ClassificationSettings,
    known_labels: Sequence[str] | None,
    *,
    do_train: bool,
    do_eval: bool,
    do_predict: bool,
) -> tuple[Problem, Splits]:
    """Reads the examples of a run; development and test examples may be missing.

    `known_labels` are the labels of the checkpoint, in the order of its logits, or None. If the
    task has the same labels, the result has them in this order. The task `custom` has these labels
    if there are no training examples. `do_train`, `do_eval` and `do_predict` select the examples to
    read.

    Raises:
        InputError: settings conflict, a file is unusable, or there are no examples at all.
    """
    wanted = {"train": do_train, "dev": do_eval, "test": do_predict}
    if settings.task_name.lower() == "custom":
        problem, splits = _custom(settings, known_labels, wanted)
    else:
        problem, splits = _glue(settings, known_labels, wanted)
    if not (splits.train or splits.dev or splits.test):
        kinds = {"dev": "development", "test": "test"}
        missing = " or ".join(kind for name, kind in kinds.items() if wanted[name])
        raise InputError(
            f"nothing to do: found no {missing} examples; expected at least one, or --do_train"
        )
    return problem, splits


def _glue(
    settings: ClassificationSettings, known_labels: Sequence[str] | None, wanted: dict[str, bool]
) -> tuple[Problem, Splits]:
    for name in _CUSTOM_SETTINGS:
        value = getattr(settings, name)
        if value != getattr(ClassificationSettings, name):
            raise InputError(
                f"--{name}={value}: got --task_name={settings.task_name}; expected "
                f"--task_name=custom with --{name}"
            )
    task = find_task(settings.task_name)
    if wanted["train"] and not task.train:
        raise InputError(
            f"--task_name={task.name}: the task has no training examples; expected "
            "--do_train=false and a model fine-tuned on MNLI as --init_checkpoint"
        )
    if settings.tfds:
        splits = read_tfds(task, settings.data_dir, **wanted)
    else:
        folder = _folder(task, settings.data_dir)
        has_test = any(task.path(folder, name).is_file() for name in task.test_files.values())
        splits = read_glue(task, folder, **wanted | {"test": wanted["test"] and has_test})
    return (
        Problem(
            problem_type="single_label" if task.labels else "regression",
            labels=tuple(in_order_of(known_labels, task.labels) or task.labels),
            metrics=task.metrics,
            score_range=task.score_range,
        ),
        splits,
    )


def _folder(task: GlueTask, data_dir: str) -> Path:
    if not data_dir:
        raise InputError(
            f"--data_dir is missing; expected the folder of {task.name}, the folder of all GLUE "
            "tasks, or --tfds"
        )
    folder = find_glue_folder(task, Path(data_dir))
    if folder is None:
        if not Path(data_dir).is_dir():
            raise InputError(f"--data_dir={data_dir}: no such folder; expected the folder of GLUE")
        files = [task.train, *task.dev.values(), *task.test_files.values()]
        raise InputError(
            f"--data_dir={data_dir}: found no files of {task.name}; expected the folder "
            f"{task.name}/ or the files {', '.join(file for file in files if file)}"
        )
    return folder


def _custom(
    settings: ClassificationSettings, known_labels: Sequence[str] | None, wanted: dict[str, bool]
) -> tuple[Problem, Splits]:
    if settings.tfds or settings.data_dir:
        raise InputError(
            "--task_name=custom cannot be combined with --tfds or --data_dir; expected "
            "--train_file, --eval_file and --test_file"
        )
    if settings.problem_type == "multi_label" and not settings.label_separator:
        raise InputError("--label_separator is empty; expected a separator, such as a comma")
    if wanted["train"] and not settings.train_file:
        raise InputError(
            "--train_file is missing; --task_name=custom needs it unless --do_train=false"
        )
    columns = [settings.text_column]
    columns += [settings.text_pair_column] if settings.text_pair_column else []
    label = settings.label_column
    train = dev = test = None
    if wanted["train"]:
        train = read_texts(Path(settings.train_file), columns, label)
    if wanted["dev"] and settings.eval_file:
        dev = read_texts(Path(settings.eval_file), columns, label)
    predicted = settings.test_file or settings.eval_file
    if wanted["test"] and predicted:
        is_dev = dev is not None and Path(predicted) == Path(settings.eval_file)
        test = dev if is_dev else read_texts(Path(predicted), columns)
    splits = Splits(
        train,
        {} if dev is None else {"": dev},
        {} if test is None else {"predictions": test},
    )
    problem_type, separator = settings.problem_type, settings.label_separator
    if splits.train is not None:
        labels = find_labels(splits.train, problem_type, separator)
        labels = tuple(in_order_of(known_labels, labels) or labels)
    elif known_labels or problem_type == "regression":
        labels = () if problem_type == "regression" else tuple(known_labels)
    else:
        raise InputError(
            "--do_train=false: the checkpoint has no label names; expected --label_names"
        )
    return Problem(problem_type, labels, DEFAULT_METRICS[problem_type], separator), splits
