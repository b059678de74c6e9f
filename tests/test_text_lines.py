"""Tests of reading the lines of text files: line ends and rejected lines."""

import io

import pytest

from keras_bert.errors import InputError
from keras_bert.files import read_lines


def test_lines_end_only_at_line_feeds_and_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffa\u2028b\r\n\nc\x85\u00a0".encode())
    assert list(read_lines(path)) == [(1, "a\u2028b"), (2, ""), (3, "c\x85\u00a0")]


def test_carriage_returns_are_removed_only_at_line_ends(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\r\r\nb\rc\r\n\r\nd\r")
    assert list(read_lines(path)) == [(1, "a"), (2, "b\rc"), (3, ""), (4, "d")]


def test_dash_means_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(read_lines("-")) == [(1, "a"), (2, "b")]


def test_line_that_is_not_utf8_is_rejected_with_its_number(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\nna\xefve\n")
    with pytest.raises(InputError, match=r"text\.txt, line 2: .* UTF-8, got the bytes b'\\xefve"):
        list(read_lines(path))
    with pytest.raises(InputError, match=r"none\.txt: cannot be read: No such file"):
        list(read_lines(tmp_path / "none.txt"))
