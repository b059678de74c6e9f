"""Reads GLUE tasks prepared by TensorFlow Datasets."""

from typing import Any

from keras_bert.tasks.classification.glue import GlueTask
from keras_bert.tasks.classification.texts import Splits, Texts
from keras_bert.tasks.prepared_tfds import open_prepared, read_split

_SPLITS = {"dev": "validation", "test": "test"}


def read_tfds(task: GlueTask, data_dir: str, *, train: bool, dev: bool, test: bool) -> Splits:
    """Reads a GLUE task that TensorFlow Datasets has prepared.

    `train`, `dev` and `test` select the splits to read. An empty `data_dir` means TFDS_DATA_DIR or
    ~/tensorflow_datasets. Raises the errors of `open_prepared`.
    """
    builder = open_prepared(f"glue/{task.tfds}", data_dir)

    def read(split: str, labelled: bool) -> Texts:
        return _read(task, builder, split, labelled)

    return Splits(
        read("train", True) if train else None,
        {suffix: read(_SPLITS["dev"] + suffix, True) for suffix in task.dev} if dev else {},
        {
            # MNLI's two test splits are named after its two development splits.
            name: read(_SPLITS["test"] + suffix, False)
            for name, suffix in zip(task.test_files, task.dev or [""], strict=True)
        }
        if test
        else {},
    )


def _read(task: GlueTask, builder: Any, split: str, labelled: bool) -> Texts:
    columns = task.tfds_columns or task.text_columns
    rows = read_split(builder, split)
    rows.sort(key=lambda row: int(row["idx"]))  # TFDS shuffles; submissions need this order.
    texts = [[row[column].decode() for row in rows] for column in columns]
    labels = None
    if labelled:
        # TFDS numbers the classes in the order of `GlueTask.labels`.
        labels = [task.labels[row["label"]] if task.labels else float(row["label"]) for row in rows]
    return Texts(
        source=f"{builder.data_path}, split {split}",
        first=texts[0],
        second=texts[1] if len(texts) == 2 else None,
        labels=labels,
        places=[int(row["idx"]) for row in rows],
        indices=[str(int(row["idx"])) for row in rows],
    )
