"""Tests reading GLUE from a folder that TensorFlow Datasets has prepared."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.glue import TASKS, find_task
from keras_bert.tasks.classification.tfds import read_tfds
from keras_bert.tasks.prepared_tfds import find_prepared

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares MRPC and STS-B as TFDS does, from synthetic rows stored in another order."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("tfds")
    for name, label in (("mrpc", tfds.features.ClassLabel(names=["no", "yes"])), ("stsb", None)):
        label = label or np.float32
        rows = {
            "sentence1": ["b", "a"],
            "sentence2": ["y", "x"],
            "label": np.array([1, 0], np.int64 if name == "mrpc" else np.float32),
            "idx": np.array([1, 0], np.int32),
        }
        text = tfds.features.Text()
        tfds.dataset_builders.store_as_tfds_dataset(
            name="glue",
            config=name,
            version="2.0.0",
            data_dir=folder,
            features=tfds.features.FeaturesDict(
                {"sentence1": text, "sentence2": text, "label": label, "idx": np.int32}
            ),
            split_datasets={
                split: tf.data.Dataset.from_tensor_slices(rows)
                for split in ("train", "validation", "test")
            },
            disable_shuffling=True,
        )
    return str(folder)


def test_examples_are_in_index_order_with_the_labels_of_the_files(prepared):
    splits = read_tfds(find_task("mrpc"), prepared, train=True, dev=True, test=True)
    assert splits.train.first == ["a", "b"]
    assert splits.train.second == ["x", "y"]
    assert splits.train.labels == ["0", "1"]
    assert splits.test["MRPC"].labels is None
    assert splits.test["MRPC"].indices == ["0", "1"]
    assert list(splits.dev) == [""]
    splits = read_tfds(find_task("stsb"), prepared, train=True, dev=False, test=False)
    assert list(splits.train.rows()) == [("a", "x", 0.0), ("b", "y", 1.0)]
    assert {type(label) for label in splits.train.labels} == {float}  # Otherwise run.json differs.


def test_unprepared_data_is_rejected_with_the_command_to_prepare_it(prepared, tmp_path):
    assert find_prepared("glue/rte", prepared) is None
    message = (
        r"no prepared dataset glue/rte was found, and nothing is downloaded.*tfds build glue/rte"
    )
    with pytest.raises(InputError, match=message):
        read_tfds(find_task("rte"), str(tmp_path), train=True, dev=True, test=False)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_table_has_the_columns_and_classes_of_tfds(task):
    from tensorflow_datasets.text.glue import Glue

    config = next(config for config in Glue.BUILDER_CONFIGS if config.name == task.tfds)
    assert set(task.tfds_columns or task.text_columns) == set(config.text_features)
    classes = config.label_classes or []
    assert len(classes) == len(task.labels)
    if task.labels != ("0", "1"):
        assert classes == list(task.labels)
