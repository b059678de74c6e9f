"""Fixtures of the build tests: a corpus in several files, and the environment with Apache Beam."""

import importlib.util
import sys

import pytest


@pytest.fixture(scope="session")
def beam_python(root) -> str:
    """Path of a Python interpreter that has Apache Beam."""
    if importlib.util.find_spec("apache_beam") is not None:
        return sys.executable
    python = root / ".beam" / "bin" / "python"
    if not python.exists():
        pytest.skip("apache_beam is not installed, nor is .beam, its environment (make beam)")
    return str(python)


@pytest.fixture
def folder(files, tmp_path, corpus):
    """Creates a folder with the corpus in several files, one of which has an invalid byte."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(corpus(8, seed=number))
    (folder / "odd.txt").write_bytes(b"ba \xff da\n" + corpus(1, seed=9).encode())
    return files | {"input_file": str(folder)}
