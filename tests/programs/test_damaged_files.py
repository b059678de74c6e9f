"""Damaged files of formats with a reader of their own: one line, exit code 1 and no output."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools import formats
from tests.damaged_files import write_corrupt_parquet

TEXTS = [f"Sentence {number} is a very good film." for number in range(100)]


def without_text_column(path):
    parquet.write_table(pa.table({"body": TEXTS, "label": ["no"] * 100}), path)


def corrupt_row_group(path):
    write_corrupt_parquet(path, {"label": ["no", "yes"] * 50, "text": TEXTS})


def nested_html(path):
    path.write_text("<p>good film.</p>" + "<div>" * 100_000)


def large_html(path):
    path.write_text("<p>good film.</p>\n" * 100_000)


def docx_that_is_no_zip(path):
    path.write_bytes(b"PK\x03\x04" + b"?" * 1000)


def span_outside_of_the_text(path):
    entities = [{"start": 0, "end": 4, "type": "LOC"}, {"start": 5, "end": 99, "type": "LOC"}]
    path.write_text(json.dumps({"text": "good film", "entities": entities}) + "\n")


BUILD_VOCAB = ("build_vocab.py", "input_file", {"vocab_size": 60})
CREATE = ("create_pretraining_data.py", "input_file", {"num_workers": 1})
CLASSIFY = ("run_classifier.py", "train_file", {"task_name": "custom"})
TAG = ("run_ner.py", "train_file", {})

CORPUS = [
    (without_text_column, "a.parquet", "has no column 'text'; expected one, among the columns: "),
    (corrupt_row_group, "a.parquet", "row group 2 (rows 51 to 100) cannot be read: "),
    (nested_html, "a.html", "cannot be parsed: Excessive depth in document"),
    (large_html, "a.html", "has more than 1 MiB; expected a smaller file"),
    (
        docx_that_is_no_zip,
        "a.docx",
        "expected a file of the format docx, undamaged and without a password",
    ),
]
SPANS = [
    (span_outside_of_the_text, "a.jsonl", "line 1: entities[1] is {'start': 5, 'end': 99"),
]


@pytest.fixture(scope="module")
def bert(make_checkpoint, tmp_path_factory):
    """Returns the folder of a checkpoint."""
    return make_checkpoint(tmp_path_factory.mktemp("models") / "bert", ["good", "film", "very"])


@pytest.mark.parametrize(
    ("program", "write", "name", "message"),
    [
        *((program, *case) for program in (BUILD_VOCAB, CREATE) for case in CORPUS),
        *((CLASSIFY, *case) for case in CORPUS[:2]),
        *((TAG, *case) for case in SPANS),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else getattr(value, "__name__", ""),
)
def test_damaged_file_fails_with_one_line_and_leaves_no_output(
    run_program, bert, tmp_path, monkeypatch, program, write, name, message
):
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    script, input_flag, flags = program
    write(tmp_path / name)
    if program in (BUILD_VOCAB, CREATE):
        outputs = {"output_dir": "out", "vocab_file": bert / "vocab.txt"}
        flags = flags | {"input_format": "mixed"}
        flags |= {"vocab_file": "out"} if program is BUILD_VOCAB else outputs
    else:
        flags = flags | {"init_checkpoint": bert, "output_dir": "out", "max_seq_length": 16}
    done = run_program(script, cwd=tmp_path, **{input_flag: name}, **flags)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    (line,) = [line for line in lines if line.startswith(f"{script}: error: ")]
    assert line == lines[-1]
    assert name in line
    assert message in line
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
