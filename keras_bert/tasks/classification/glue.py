"""Describes the GLUE tasks (Wang et al. 2019, https://gluebenchmark.com) in one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keras_bert.common.errors import InputError

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class GlueTask:
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
    dev: Mapping[str, str] = field(default_factory=lambda: {"": "dev.tsv"})
    test: Mapping[str, str] | None = None
    no_header: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)
    tfds_columns: tuple[str, ...] = ()
    damaged_rows: bool = False
    score_range: tuple[float, float] | None = None

    @property
    def test_files(self) -> Mapping[str, str]:
        """{name of the submission: name of the test file}."""
        return {self.name: "test.tsv"} if self.test is None else self.test

    def path(self, folder: Path, name: str) -> Path:
        """Returns the path of the task's file `name` in a folder.

        If the folder has a file with the alternative name, the result is the path of that file.
        """
        other = folder / self.other_names.get(name, name)
        return other if other.is_file() else folder / name


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
