"""Describes the GLUE tasks (Wang et al. 2019, https://gluebenchmark.com), and reads their data."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_bert.errors import InputError
from keras_bert.tasks.tables import (
    Splits,
    Texts,
    open_prepared,
    read_split,
    read_splits,
    read_texts,
)

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")


class GlueTask(NamedTuple):
    """The files, columns, labels and metrics of a GLUE task.

    Attributes:
        name: the task's name in GLUE's folders and submissions.
        text_columns: the names of the text columns in the files; two for pairs of texts.
        label_column: the name of the label column; empty if no file has labels.
        labels: the classes in the order of their numbers; empty for regression.
        metrics: the leaderboard's metrics, by their names in metrics.py.
        tfds: the name of the task's config in TensorFlow Datasets.
        train: the name of the training file; empty if there is none.
        dev: {suffix of the metric names: name of the development file}.
        test: {name of the submission: name of the test file}; None means {`name`: "test.tsv"}.
        no_header: the names of all columns, if the training and development files have no header.
        folders: alternative names of the task's folder.
        other_names: {file name: alternative file name}.
        tfds_columns: the text columns in TensorFlow Datasets; empty if named like `text_columns`.
        damaged_rows: whether the official files contain empty texts and truncated rows. Truncated
            rows are skipped and counted, as in all published results.
        score_range: the (lowest, highest) regression value that the leaderboard accepts; None for
            classification.
    """

    name: str
    text_columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    tfds: str
    train: str = "train.tsv"
    dev: Mapping[str, str] = MappingProxyType({"": "dev.tsv"})
    test: Mapping[str, str] | None = None
    no_header: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    other_names: Mapping[str, str] = MappingProxyType({})
    tfds_columns: tuple[str, ...] = ()
    damaged_rows: bool = False
    score_range: tuple[float, float] | None = None

    @property
    def test_files(self) -> Mapping[str, str]:
        """{name of the submission: name of the test file}."""
        return {self.name: "test.tsv"} if self.test is None else self.test

    def path(self, folder: Path, name: str) -> Path:
        """Returns the path of the task's file `name` in a folder, which may have its other name."""
        renamed = folder / self.other_names.get(name, name)
        return renamed if renamed.is_file() else folder / name


_PAIR = ("sentence1", "sentence2")
TASKS = (
    GlueTask(
        name="CoLA",
        text_columns=("sentence",),
        label_column="label",
        labels=_BINARY,
        metrics=("matthews_corrcoef",),
        tfds="cola",
        no_header=("source", "label", "star", "sentence"),
    ),
    GlueTask(
        name="SST-2",
        text_columns=("sentence",),
        label_column="label",
        labels=_BINARY,
        metrics=("accuracy",),
        tfds="sst2",
    ),
    GlueTask(
        name="MRPC",
        text_columns=("#1 String", "#2 String"),
        label_column="Quality",
        labels=_BINARY,
        metrics=("accuracy", "f1"),
        tfds="mrpc",
        tfds_columns=_PAIR,
    ),
    GlueTask(
        name="STS-B",
        text_columns=_PAIR,
        label_column="score",
        labels=(),
        metrics=("pearson", "spearman"),
        tfds="stsb",
        score_range=(0.0, 5.0),
    ),
    GlueTask(
        name="QQP",
        text_columns=("question1", "question2"),
        label_column="is_duplicate",
        labels=_BINARY,
        metrics=("accuracy", "f1"),
        tfds="qqp",
        damaged_rows=True,
    ),
    GlueTask(
        name="MNLI",
        text_columns=_PAIR,
        label_column="gold_label",
        labels=_INFERENCE,
        metrics=("accuracy",),
        tfds="mnli",
        dev={"_matched": "dev_matched.tsv", "_mismatched": "dev_mismatched.tsv"},
        test={"MNLI-m": "test_matched.tsv", "MNLI-mm": "test_mismatched.tsv"},
        tfds_columns=("premise", "hypothesis"),
    ),
    GlueTask(
        name="QNLI",
        text_columns=("question", "sentence"),
        label_column="label",
        labels=_ENTAILMENT,
        metrics=("accuracy",),
        tfds="qnli",
    ),
    GlueTask(
        name="RTE",
        text_columns=_PAIR,
        label_column="label",
        labels=_ENTAILMENT,
        metrics=("accuracy",),
        tfds="rte",
    ),
    GlueTask(
        name="WNLI",
        text_columns=_PAIR,
        label_column="label",
        labels=_BINARY,
        metrics=("accuracy",),
        tfds="wnli",
    ),
    # The diagnostic set: an MNLI model predicts it, and only the leaderboard can score it.
    GlueTask(
        name="AX",
        text_columns=_PAIR,
        label_column="",
        labels=_INFERENCE,
        metrics=(),
        tfds="ax",
        train="",
        dev={},
        test={"AX": "diagnostic.tsv"},
        folders=("diagnostic",),
        other_names={"diagnostic.tsv": "AX.tsv"},
        tfds_columns=("premise", "hypothesis"),
    ),
)


def find_task(name: str) -> GlueTask:
    """Finds a GLUE task by name, ignoring case and hyphens; raises InputError if there is none."""

    def plain(word: str) -> str:
        return word.lower().replace("-", "")

    for task in TASKS:
        if plain(name) == plain(task.name):
            return task
    raise InputError(
        f"--task_name={name}: expected {', '.join(task.name for task in TASKS)} or custom"
    )


# --- files ---


def find_glue_folder(task: GlueTask, data_dir: str) -> Path:
    """Returns the folder with a task's files: `data_dir`, or one in it with the task's name."""
    if not data_dir or not Path(data_dir).is_dir():
        problem = f"--data_dir={data_dir}: no such folder" if data_dir else "--data_dir is missing"
        raise InputError(
            f"{problem}; expected the folder of {task.name} or of all GLUE tasks, or --tfds"
        )
    files = [name for name in (task.train, *task.dev.values(), *task.test_files.values()) if name]
    for name in ("", task.name, task.name.lower(), *task.folders):
        folder = Path(data_dir) / name
        if any(task.path(folder, file).is_file() for file in files):
            return folder
    raise InputError(
        f"--data_dir={data_dir}: found no files of {task.name}; expected the folder {task.name}/ "
        f"or the files {', '.join(files)}"
    )


def read_glue(task: GlueTask, folder: Path, **do: bool) -> Splits:
    """Reads a GLUE task from the folder that contains its files; test files may be missing."""

    def read(name: str, labelled: bool) -> Texts:
        return read_texts(
            task.path(folder, name),
            task.text_columns,
            task.label_column if labelled else "",
            no_header=task.no_header if labelled else (),
            long_rows=True,
            # Submissions need every row of the test file.
            skip_short_rows=task.damaged_rows and labelled,
            empty_texts=task.damaged_rows,
        )

    has_test = any(task.path(folder, name).is_file() for name in task.test_files.values())
    return read_splits(read, task.train, task.dev, task.test_files if has_test else {}, **do)


# --- TensorFlow Datasets ---


def read_tfds(task: GlueTask, data_dir: str, **do: bool) -> Splits:
    """Reads a GLUE task that TensorFlow Datasets has prepared.

    An empty `data_dir` means TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    builder = open_prepared(f"glue/{task.tfds}", data_dir)
    return read_splits(
        lambda split, labelled: _read(task, builder, split, labelled),
        "train",
        {suffix: f"validation{suffix}" for suffix in task.dev},
        # MNLI's two test splits are named after its two development splits.
        {
            name: f"test{suffix}"
            for name, suffix in zip(task.test_files, task.dev or [""], strict=True)
        },
        **do,
    )


def _read(task: GlueTask, builder: Any, split: str, labelled: bool) -> Texts:
    rows = read_split(builder, split)
    rows.sort(key=lambda row: row.cells["idx"])  # TFDS shuffles; submissions need this order.
    labels = None
    if labelled:
        # TFDS numbers the classes in the order of `GlueTask.labels`.
        labels = [row.cells["label"] for row in rows]
        labels = [task.labels[label] for label in labels] if task.labels else labels
    return Texts(
        str(rows[0].path),
        tuple([row.cells[name] for row in rows] for name in task.tfds_columns or task.text_columns),
        labels,
        locations=[row.where for row in rows],
        indices=[str(row.cells["idx"]) for row in rows],
    )
