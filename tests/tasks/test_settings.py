"""Tests the export settings that each task and format accepts, and the program's flags."""

import re
from dataclasses import fields

import pytest

from keras_bert.errors import InputError
from keras_bert.export.task_export import FORMATS
from keras_bert.tasks import CLASSES
from keras_bert.tasks.export import check_unused
from keras_bert.tasks.settings import ExportOptions, NerSettings


@pytest.mark.parametrize(
    ("task", "kind", "name", "value", "expected"),
    [
        ("ner", "saved_model", "pair", False, "--compute_type, --max_seq_length"),
        ("embedding", "saved_model", "top_k", 5, "--compute_type, --max_seq_length"),
        ("fill_mask", "saved_model", "doc_stride", 9, "--compute_type, --max_seq_length, --top_k"),
        ("classification", "onnx", "compute_type", "bfloat16", "--int8"),
        ("embedding", "onnx", "top_k", 5, "--int8"),
        ("question_answering", "onnx", "max_seq_length", 9, "--int8"),
    ],
)
def test_unused_settings_are_rejected(task: str, kind: str, name: str, value, expected: str):
    message = f"--{name} has no effect with --task={task} --format={kind}; expected only {expected}"
    with pytest.raises(InputError, match=re.escape(message)):
        check_unused(ExportOptions("model", "1", format=kind, **{name: value}), task)


def test_program_has_only_these_tasks_formats_and_flags(run_program):
    offered = run_program("export_model.py", "--help").stdout
    assert f"(one of {', '.join(CLASSES)})" in offered
    assert f"(one of {', '.join(FORMATS)})" in offered
    names = re.findall(r"^  --(?:\[no\])?(\w+):", offered, re.MULTILINE)
    assert sorted(names) == sorted(field.name for field in fields(ExportOptions))


def test_columns_have_one_name_for_each_role():
    assert NerSettings(columns=["tag=1"]).column_indices == {"token": 0, "tag": 1}
    for columns in (["token=1", "token=2"], ["word=1"], ["token"]):
        with pytest.raises(InputError, match=r"expected ROLE=NAME.*token, tag, each at most once"):
            _ = NerSettings(columns=columns).column_indices
