"""Tests of reading folders that the package datasets of Hugging Face has written."""

import subprocess

import pytest

from data_tools.corpus.documents import Reading, find_input_files, read_documents
from data_tools.corpus.odd_input import OddInput

WRITE = """
import sys
from pathlib import Path

import datasets

folder = Path(sys.argv[1])
texts = [f"Sentence {number}. The next one.\\nA paragraph." for number in range(10)]
rows = datasets.Dataset.from_dict({"id": range(12), "text": [*texts, None, ""]})
rows.save_to_disk(folder / "single")
rows.save_to_disk(folder / "shards", num_shards=3)
rows.select([9, 0, 5]).save_to_disk(folder / "selected")
rows.filter(lambda row: row["id"] < 2).save_to_disk(folder / "filtered")
splits = {"train": rows.select(range(6)), "test": rows.select(range(6, 8))}
datasets.DatasetDict(splits).save_to_disk(folder / "splits", num_shards={"train": 2, "test": 1})
"""


@pytest.fixture(scope="module")
def folder(peers_python, tmp_path_factory):
    """Returns a folder with datasets; fails if .peers is older than its list of packages."""
    folder = tmp_path_factory.mktemp("datasets")
    done = subprocess.run(
        [peers_python, "-c", WRITE, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("input_format", ["arrow", "mixed"])
@pytest.mark.parametrize(
    ("name", "num_files", "numbers", "num_empty"),
    [
        ("single", 1, range(10), 2),
        ("shards", 3, range(10), 2),
        ("selected", 1, [9, 0, 5], 0),
        ("filtered", 1, [0, 1], 0),
        ("splits", 3, [6, 7, *range(6)], 0),
        ("splits/train", 2, range(6), 0),
    ],
)
def test_folders_of_save_to_disk(folder, input_format, name, num_files, numbers, num_empty):
    odd, documents = OddInput(), []
    paths = find_input_files(str(folder / name), input_format)
    assert len(paths) == num_files
    for path in paths:
        documents += read_documents(path, Reading(input_format), odd)
    assert documents == [[f"Sentence {n}.", "The next one.", "A paragraph."] for n in numbers]
    assert odd["empty_documents"] == num_empty
