"""GLUE's tasks, in files and in TensorFlow Datasets."""

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.classification.data import read_data
from keras_bert.tasks.classification.glue import (
    TASKS,
    find_glue_folder,
    find_task,
    read_glue,
    read_tfds,
)
from keras_bert.tasks.settings import ClassificationSettings


# The columns, counted from 0, are those of FACTS.md, "Fine-tuning"; the numbers of rows are those
# of shared/data/glue/*/SOURCE.
@pytest.mark.parametrize(
    ("name", "texts", "label", "rows"),
    [
        ("CoLA", [3], 1, (8551, 1043, 1063)),
        ("SST-2", [0], 1, (67349, 872, 1821)),
        ("MRPC", [3, 4], 0, (3668, 408, 1725)),
        ("STS-B", [7, 8], 9, (5749, 1500, 1379)),
        ("RTE", [1, 2], 3, (2490, 277, 3000)),
        ("WNLI", [1, 2], 3, (635, 71, 146)),
    ],
)
def test_official_files_are_read_completely_from_the_right_columns(
    shared_data, name, texts, label, rows
):
    task = find_task(name)
    folder = find_glue_folder(task, str(shared_data / "glue"))
    assert folder == shared_data / "glue" / name
    splits = read_glue(task, folder, do_train=True, do_eval=True, do_predict=True)
    dev = splits.dev[""]
    assert (len(splits.train), len(dev), len(splits.test[name])) == rows
    lines = (folder / "dev.tsv").read_bytes().decode("utf-8-sig").split("\n")
    cells = [line.removesuffix("\r").split("\t") for line in lines if line]
    cells = cells[0 if name == "CoLA" else 1 :]
    assert dev.first == [row[texts[0]] for row in cells]
    assert dev.second == ([row[texts[1]] for row in cells] if len(texts) == 2 else None)
    assert dev.labels == [row[label] for row in cells]
    assert dev.where(0).endswith(f"dev.tsv, line {1 if name == 'CoLA' else 2}")
    assert splits.test[name].labels is None


def test_table_contains_every_glue_task():
    names = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX"]
    assert [task.name for task in TASKS] == names
    assert find_task("stsb") is find_task("STS-B")
    with pytest.raises(InputError, match=r"--task_name=snli: expected CoLA.*or custom"):
        find_task("snli")


def test_mnli_has_two_dev_and_two_test_files_with_different_headers(write, tmp_path):
    write("train.tsv", "sentence1\tsentence2\tlabel1\tgold_label\na\tb\tneutral\tentailment\n")
    for half in ("matched", "mismatched"):
        header = "sentence1\tsentence2\tlabel1\tlabel2\tgold_label\n"
        write(f"dev_{half}.tsv", header + f"{half}\tb\tneutral\tneutral\tcontradiction\n")
        write(f"test_{half}.tsv", f"index\tsentence1\tsentence2\n0\t{half}\tb\n")
    task = find_task("mnli")
    splits = read_glue(task, tmp_path, do_train=True, do_eval=True, do_predict=True)
    assert splits.train.labels == ["entailment"]
    assert {suffix: texts.first for suffix, texts in splits.dev.items()} == {
        "_matched": ["matched"],
        "_mismatched": ["mismatched"],
    }
    assert [texts.labels for texts in splits.dev.values()] == [["contradiction"]] * 2
    assert list(splits.test) == ["MNLI-m", "MNLI-mm"]


@pytest.mark.parametrize("place", ["diagnostic/diagnostic.tsv", "AX/AX.tsv"])
def test_diagnostic_set_is_in_its_own_folder(tmp_path, place):
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    task = find_task("ax")
    folder = find_glue_folder(task, str(tmp_path))
    splits = read_glue(task, folder, do_train=False, do_eval=False, do_predict=True)
    assert list(splits.test) == ["AX"]
    for data_dir, message in (
        (tmp_path, "found no files of RTE; expected the folder RTE/ or the files train.tsv"),
        (tmp_path / "none", "none: no such folder; expected the folder of RTE"),
        ("", "--data_dir is missing"),
    ):
        with pytest.raises(InputError, match=message):
            find_glue_folder(find_task("rte"), str(data_dir))


def test_incomplete_rows_of_qqp_are_skipped_and_counted(write, tmp_path, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write("train.tsv", header + "1\t1\t2\thow?\twhy?\t0\n2\t3\t4\tcut\n3\t1\t2\twho?\t\t1\n")
    texts = read_glue(
        find_task("qqp"), tmp_path, do_train=True, do_eval=False, do_predict=False
    ).train
    assert texts.labels == ["0", "1"]
    assert texts.second == ["why?", ""]
    assert "skipped 1 rows with too few columns; the first is line 3" in caplog.text


# --- GLUE in TensorFlow Datasets ---

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
    settings = ClassificationSettings(task_name="MRPC", tfds=True, data_dir=prepared)
    _, splits = read_data(settings, None, do_train=True, do_eval=True, do_predict=True)
    assert splits.train.first == ["a", "b"]
    assert splits.train.second == ["x", "y"]
    assert splits.train.labels == ["0", "1"]
    assert splits.test["MRPC"].labels is None
    assert splits.test["MRPC"].indices == ["0", "1"]
    assert list(splits.dev) == [""]
    splits = read_tfds(find_task("stsb"), prepared, do_train=True, do_eval=False, do_predict=False)
    assert list(splits.train) == [("a", "x", 0.0), ("b", "y", 1.0)]
    assert {type(label) for label in splits.train.labels} == {float}  # Otherwise run.json differs.


def test_unprepared_data_is_rejected_with_the_command_to_prepare_it(
    prepared, tmp_path, monkeypatch
):
    monkeypatch.setenv("TFDS_DATA_DIR", prepared)
    assert read_tfds(find_task("mrpc"), "", do_train=True, do_eval=False, do_predict=False).train
    message = (
        r"no prepared dataset glue/rte was found, and nothing is downloaded.*tfds build glue/rte"
    )
    with pytest.raises(InputError, match=message):
        read_tfds(find_task("rte"), str(tmp_path), do_train=True, do_eval=True, do_predict=False)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_table_has_the_columns_and_classes_of_tfds(task):
    from tensorflow_datasets.text.glue import Glue

    config = next(config for config in Glue.BUILDER_CONFIGS if config.name == task.tfds)
    assert set(task.tfds_columns or task.text_columns) == set(config.text_features)
    classes = config.label_classes or []
    assert len(classes) == len(task.labels)
    if task.labels != ("0", "1"):
        assert classes == list(task.labels)
