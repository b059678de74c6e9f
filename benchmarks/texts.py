"""Reads the texts of the benchmarks, without the readers of keras_bert.

The folder of the data is ../shared/data.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from workers import ROOT

DATA = ROOT.parent / "shared/data"
# The columns of the texts and of the label of the tasks of GLUE.
GLUE = {
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "RTE": ("sentence1", "sentence2", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
    "SST-2": ("sentence", "label"),
    "CoLA": ("sentence", "label"),
}


def read_tsv(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Returns columns of a TSV file of GLUE, each as a list of strings."""
    names = ["source", "label", "mark", "sentence"] if path.parent.name == "CoLA" else None
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, names, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [*map(list, zip(*([row[name] for name in columns] for row in rows), strict=True))]


def read_sentences(path: str) -> list[tuple[list[str], list[str]]]:
    """Returns the words and the tags of the sentences of a column file."""
    blocks = Path(path).read_text(encoding="utf-8").split("\n\n")
    rows = [
        [line.split("\t")[:2] for line in block.splitlines() if line.strip()] for block in blocks
    ]
    return [tuple(map(list, zip(*lines, strict=True))) for lines in rows if lines]


def read_questions(path: str | Path) -> list[dict]:
    """Returns the questions of a SQuAD file that have an answer, each with its context."""
    return [
        {**entry, "context": paragraph["context"]}
        for article in json.loads(Path(path).read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
        if entry["answers"]
    ]


def mrpc_pairs() -> list[list[str]]:
    """Returns the first texts, the second texts and the labels of MRPC's development set."""
    return read_tsv(DATA / "glue/MRPC/dev.tsv", GLUE["MRPC"])
