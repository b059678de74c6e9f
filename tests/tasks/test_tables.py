"""Rows and texts of TSV, CSV, JSON, Parquet and Arrow files."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.tables import read_texts


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        # Quotes have no special meaning.
        ('text\tlabel\n"an open quote\t1\n""\t0\n', ['"an open quote', '""']),
        # The byte order mark and Windows line ends are removed.
        ("\ufefftext\tlabel\r\none\t1\r\ntwo\t0\r\n\r\n", ["one", "two"]),
        # Lines end only at newlines.
        ("text\tlabel\na\u2028b\x85c\x0bd\re\t1\ntwo\t0\n", ["a\u2028b\x85c\x0bd\re", "two"]),
    ],
)
def test_tsv_has_plain_lines_and_cells(write, rows, first):
    texts = read_texts(write("a.tsv", rows), ["text"], "label")
    assert (texts.first, texts.labels) == (first, ["1", "0"])


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
        ("a.csv", "text,label\none, two,1\n", r"a.csv, line 2: expected 2 columns, got 3"),
        ("a.csv", 'text,label\n"one,1\n', r"a.csv, line 2: is not CSV"),
        ("a.tsv", "text\tlabel\n\nok\t1\n", r"a.tsv, line 2: is empty"),
        ("a.tsv", "text\tlabel\n \t1\n", r"a.tsv, line 2: the text in 'text' is empty"),
        ("a.tsv", "txt\tlabel\none\t1\n", r"a.tsv, line 1: has no column 'text'; .*txt.*label"),
        ("a.tsv", "text\tlabel\n", r"a.tsv: has no rows"),
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
        ({"text": ["a"], "label": [b"x"]}, r"row 1: 'label' has a value of the type binary; exp"),
    ],
)
def test_invalid_parquet_is_rejected_with_file_and_row(tmp_path, columns, message):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        read_texts(tmp_path / "a.parquet", ["text"], "label")


def test_file_that_is_not_parquet_is_rejected(tmp_path):
    (tmp_path / "a.parquet").write_text("text\tlabel\n")
    with pytest.raises(InputError, match=r"a\.parquet: the Parquet file cannot be read: "):
        read_texts(tmp_path / "a.parquet", ["text"], "label")


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
