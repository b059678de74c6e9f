"""Fixture of the build tests: a corpus in several files."""

import pytest


@pytest.fixture
def folder(files, tmp_path, corpus):
    """Creates a folder with the corpus in several files, one of which has an invalid byte."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(corpus(8, seed=number))
    (folder / "odd.txt").write_bytes(b"ba \xff da\n" + corpus(1, seed=9).encode())
    return files | {"input_file": str(folder)}
