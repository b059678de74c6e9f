"""Rows and texts of tables, and the tasks of GLUE in files and in TensorFlow Datasets."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.classification.glue import (
    TASKS,
    find_glue_folder,
    find_task,
    read_glue,
    read_tfds,
)
from keras_bert.tasks.prepared_tfds import find_prepared
from keras_bert.tasks.tables import read_texts
from tests.damaged_files import write_corrupt_parquet

# FACTS.md, "Fine-tuning": text columns / label column of the official files, counted from 0.
COLUMNS = {
    "CoLA": ([3], 1),
    "SST-2": ([0], 1),
    "MRPC": ([3, 4], 0),
    "STS-B": ([7, 8], 9),
    "RTE": ([1, 2], 3),
    "WNLI": ([1, 2], 3),
}


# shared/data/glue/*/SOURCE
ROWS = {
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67349, 872, 1821),
    "MRPC": (3668, 408, 1725),
    "STS-B": (5749, 1500, 1379),
    "RTE": (2490, 277, 3000),
    "WNLI": (635, 71, 146),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_official_files_are_read_completely_from_the_right_columns(shared_data, name):
    task = find_task(name)
    folder = find_glue_folder(task, shared_data / "glue")
    assert folder == shared_data / "glue" / name
    splits = read_glue(task, folder, train=True, dev=True, test=True)
    dev = splits.dev[""]
    assert (len(splits.train), len(dev), len(splits.test[name])) == ROWS[name]
    lines = (folder / "dev.tsv").read_bytes().decode("utf-8-sig").split("\n")
    cells = [line.removesuffix("\r").split("\t") for line in lines if line]
    cells = cells[0 if name == "CoLA" else 1 :]
    texts, label = COLUMNS[name]
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


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


def test_mnli_has_two_dev_and_two_test_files_with_different_headers(write, tmp_path):
    write("train.tsv", "sentence1\tsentence2\tlabel1\tgold_label\na\tb\tneutral\tentailment\n")
    for half in ("matched", "mismatched"):
        header = "sentence1\tsentence2\tlabel1\tlabel2\tgold_label\n"
        write(f"dev_{half}.tsv", header + f"{half}\tb\tneutral\tneutral\tcontradiction\n")
        write(f"test_{half}.tsv", f"index\tsentence1\tsentence2\n0\t{half}\tb\n")
    task = find_task("mnli")
    splits = read_glue(task, tmp_path, train=True, dev=True, test=True)
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
    folder = find_glue_folder(task, tmp_path)
    splits = read_glue(task, folder, train=False, dev=False, test=True)
    assert list(splits.test) == ["AX"]
    assert find_glue_folder(find_task("rte"), tmp_path) is None


def test_incomplete_rows_of_qqp_are_skipped_and_counted(write, tmp_path, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write("train.tsv", header + "1\t1\t2\thow?\twhy?\t0\n2\t3\t4\tcut\n3\t1\t2\twho?\t\t1\n")
    texts = read_glue(find_task("qqp"), tmp_path, train=True, dev=False, test=False).train
    assert texts.labels == ["0", "1"]
    assert texts.second == ["why?", ""]
    assert "skipped 1 rows with too few columns; the first is line 3" in caplog.text


def test_quotes_in_tsv_have_no_special_meaning(write):
    path = write("a.tsv", 'text\tlabel\n"a quote that never ends\t1\n""\t0\n')
    assert read_texts(path, ["text"]).first == ['"a quote that never ends', '""']


def test_byte_order_mark_and_windows_line_ends_are_removed(write):
    path = write("a.tsv", "\ufefftext\tlabel\r\none\t1\r\ntwo\t0\r\n\r\n")
    texts = read_texts(path, ["text"], "label")
    assert (texts.first, texts.labels) == (["one", "two"], ["1", "0"])


def test_lines_end_only_at_newlines(write):
    path = write("a.tsv", "text\tlabel\na\u2028b\x85c\x0bd\re\t1\n")
    assert read_texts(path, ["text"], "label").first == ["a\u2028b\x85c\x0bd\re"]


def test_csv_keeps_quoted_text(write):
    path = write("a.csv", 'label,text\n1,"a, b\nand ""c"""\n0,plain\n')
    texts = read_texts(path, ["text"], "label")
    assert texts.first == ['a, b\nand "c"', "plain"]
    assert texts.where(1).endswith("a.csv, line 4")


@pytest.mark.parametrize("form", ["lines", "list", "indented", "data"])
def test_json_has_lines_or_a_list_with_labels_of_any_value(write, form):
    rows = [{"text": "a", "label": True}, {"text": "b", "label": ["x", "y"]}]
    contents = {
        "lines": "\n".join(map(json.dumps, rows)),
        "list": json.dumps(rows),
        "indented": json.dumps({"data": rows}, indent=1),
        "data": json.dumps({"version": 1, "data": rows}),
    }
    texts = read_texts(write("a.json", contents[form]), ["text"], "label")
    assert (texts.first, texts.labels) == (["a", "b"], [True, ["x", "y"]])
    assert texts.where(1).endswith(f"a.json, {'line' if form == 'lines' else 'item'} 2")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "text\tlabel\none\t1\ntwo\n", r"a.tsv, line 3: expected 2 columns, got 1: 'two'"),
        ("a.tsv", "text\tlabel\none\t1\t2\n", r"a.tsv, line 2: expected 2 columns, got 3"),
        ("a.csv", "text,label\none, two,1\n", r"a.csv, line 2: expected 2 columns, got 3"),
        ("a.csv", 'text,label\n"one,1\n', r"a.csv, line 2: is not CSV"),
        ("a.tsv", "text\tlabel\n\nok\t1\n", r"a.tsv, line 2: is empty"),
        ("a.tsv", "text\tlabel\n \t1\n", r"a.tsv, line 2: the text in 'text' is empty"),
        ("a.tsv", "txt\tlabel\none\t1\n", r"a.tsv, line 1: has no column 'text'; .*txt.*label"),
        ("a.tsv", "text\tlabel\n", r"a.tsv: has no rows"),
        ("a.tsv", "", r"a.tsv, line 1: has no column"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', r"a.jsonl, line 2: is not JSON"),
        ("a.tsv", "text\tlabel\none\0\t1\n", r"a.tsv, line 2: has a NUL character"),
        ("a.csv", "text,label\none,1\ntw\0o,1\n", r"a.csv, line 3: has a NUL character; expec"),
        ("a.jsonl", "3\n", r"a.jsonl, line 1: expected a JSON object, got 3"),
        ("a.jsonl", '{"text": "a"}\n', r"a.jsonl, line 1: has no 'label'; it has 'text'"),
        ("a.jsonl", '{"text": 3, "label": 1}', r"line 1: expected a text in 'text', got 3"),
    ],
)
def test_invalid_rows_are_rejected_with_file_and_line(write, name, text, message):
    with pytest.raises(InputError, match=message):
        read_texts(write(name, text), ["text"], "label")


def test_parquet_and_arrow_have_rows_and_values(tmp_path):
    columns = {"id": [7, 8, 9], "text": ["a", "b\n", "c"], "label": [[1], [2, 3], []]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    for name in ("a.parquet", "a.arrow"):
        texts = read_texts(tmp_path / name, ["text"], "label")
        assert (texts.first, texts.labels) == (columns["text"], columns["label"])
        assert texts.where(1).endswith(f"{name}, row 2")
    assert read_texts(tmp_path / "a.parquet", ["text", "text"], "id").labels == [7, 8, 9]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": [], "label": []}, r"a\.parquet: has no rows"),
        ({"text": ["a"]}, r"a\.parquet: has no column 'label'; .* the columns: text"),
        ({"text": [3], "label": ["x"]}, r"a\.parquet, row 1: expected a text in 'text', got 3"),
        ({"text": ["a", None], "label": [1, 2]}, r"row 2: expected a text in 'text', got null"),
        ({"text": ["a", " "], "label": [1, 2]}, r"row 2: the text in 'text' is empty"),
        ({"text": ["a"], "label": [b"x"]}, r"row 1: 'label' has a value of the type binary; exp"),
    ],
)
def test_invalid_parquet_is_rejected_with_file_and_row(tmp_path, columns, message):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        read_texts(tmp_path / "a.parquet", ["text"], "label")


def test_file_that_is_not_parquet_is_rejected(tmp_path):
    (tmp_path / "a.parquet").write_text("text\tlabel\n")
    with pytest.raises(InputError, match=r"a\.parquet: starts with the bytes b'text.*a Parquet"):
        read_texts(tmp_path / "a.parquet", ["text"], "label")


def test_corrupt_row_group_of_labeled_texts_is_rejected(tmp_path):
    texts = [f"Sentence {number} of the examples." for number in range(100)]
    labels = ["yes", "no"] * 50
    path = write_corrupt_parquet(tmp_path / "a.parquet", {"label": labels, "text": texts})
    with pytest.raises(InputError, match=r"row group 2 \(rows 51 to 100\) cannot be read: ") as e:
        read_texts(path, ["text"], "label")
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


def test_unreadable_files_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"none.tsv: cannot be read: No such file"):
        read_texts(tmp_path / "none.tsv", ["text"])
    for name in ("latin.tsv", "latin.csv"):
        (tmp_path / name).write_bytes("text\nna\xefve\n".encode("latin-1"))
    with pytest.raises(
        InputError, match=r"latin.tsv, line 2: expected UTF-8, got the bytes b'\\xefve"
    ):
        read_texts(tmp_path / "latin.tsv", ["text"])
    with pytest.raises(InputError, match=r"latin.csv: expected UTF-8, got the bytes b'\\xefve"):
        read_texts(tmp_path / "latin.csv", ["text"])


def test_too_deeply_nested_json_is_rejected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": ' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"a.jsonl, line 2: is nested too deeply"):
        read_texts(path, ["text"])


def test_quotes_of_csv_in_a_tsv_file_are_reported(tmp_path, caplog):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"She wrote ""hi"""\ta\n"Hi" and "ho"\tb\n')
    assert read_texts(path, ["text"], "label").first == ['"She wrote ""hi"""', '"Hi" and "ho"']
    assert "1 rows have texts with the quotes of CSV" in caplog.text
    path.write_text('text\tlabel\nx\t"[""a"", ""b""]"\n')
    with pytest.raises(
        InputError, match=r"line 2: the label .* has quotes; expected cells without"
    ):
        read_texts(path, ["text"], "label")


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
