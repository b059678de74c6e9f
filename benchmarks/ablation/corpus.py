"""Prepares the data of the study: corpus, vocabulary, records and the split of the SQuAD file.

WORK_DIR/data/vocab.txt            learned from the training books
WORK_DIR/data/dynamic-LENGTH/      records; masks are drawn in training, other pairs each pass
WORK_DIR/data/whole_word-LENGTH/   as dynamic, with whole words masked
WORK_DIR/data/held_out-LENGTH/     records of the held-out books, with fixed masks
WORK_DIR/data/squad-{train,eval}.json
"""

import fcntl
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablation.plan import Plan
from ablation.programs import run_program
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json

HELD_OUT = "held_out"
# Flags of each kind of records.
KINDS: Mapping[str, Mapping[str, object]] = {
    HELD_OUT: {"dupe_factor": 1},
    "dynamic": {"dynamic": True},
    "whole_word": {"dynamic": True, "do_whole_word_mask": True},
}
_DEV_ARTICLES = 4  # Every fourth article of the SQuAD file, by title, is for evaluation.
_WNUT = {
    "train_file": "wnut17train.conll",
    "eval_file": "emerging.dev.conll",
    "test_file": "emerging.test.annotated",
}


@dataclass(frozen=True)
class Folders:
    """The folders of the study.

    Attributes:
        data: the input, ../shared/data.
        work: records, models and runs; everything in it can be computed again.
    """

    data: Path
    work: Path

    @property
    def prepared(self) -> Path:
        """The folder of vocabulary, records and SQuAD files."""
        return self.work / "data"

    @property
    def log(self) -> Path:
        """The file with the output of all programs that this process runs."""
        return self.work / f"programs-{os.getpid()}.log"

    def books(self, study: Plan) -> tuple[list[Path], list[Path]]:
        """Returns the files of the training books and of the held-out books.

        Raises:
            InputError: a held-out book does not exist, or there are no other books.
        """
        folder = self.data / "corpus" / "gutenberg-85"
        books = sorted(folder.glob("*.txt*"))
        held_out = [folder / name for name in study.held_out]
        train = [path for path in books if path not in held_out]
        missing = [path.name for path in held_out if path not in books]
        if missing or not train:
            raise InputError(
                f"{folder}: found {len(books)} books, without {', '.join(missing)}; expected the "
                "books of the study"
            )
        return train, held_out


def prepare_records(kind: str, study: Plan, folders: Folders) -> str:
    """Creates the vocabulary, and one kind of records for each phase, unless they exist.

    `kind` is a key of KINDS. Returns the path of the folders with {max_seq_length} for the length.
    """
    folders.prepared.mkdir(parents=True, exist_ok=True)
    with (folders.prepared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another process may prepare the same records.
        return _prepare_records(kind, study, folders)


def _prepare_records(kind: str, study: Plan, folders: Folders) -> str:
    train, held_out = folders.books(study)
    vocab = folders.prepared / "vocab.txt"
    if not vocab.exists():
        flags = {"vocab_file": vocab, "vocab_size": study.vocab_size}
        _run_tool("keras_bert build-vocab", train, flags, folders)
    for length in study.lengths():
        output = folders.prepared / f"{kind}-{length}"
        if (output / "manifest.json").exists():
            continue
        flags = {
            "vocab_file": vocab,
            "output_dir": output,
            "max_seq_length": length,
            "max_predictions_per_seq": math.ceil(length * 0.15),
            "dupe_factor": study.passes,
            **KINDS[kind],
        }
        books = held_out if kind == HELD_OUT else train
        _run_tool("keras_bert create-pretraining-data", books, flags, folders)
    return str(folders.prepared / f"{kind}-{{max_seq_length}}")


def task_files(task: str, folders: Folders) -> dict[str, Path]:
    """Returns the flags that name the files of a task."""
    if task == "WNUT-17":
        return {flag: folders.data / "ner" / "wnut17" / name for flag, name in _WNUT.items()}
    if task == "SQuAD":
        return {f"{split}_file": path for split, path in split_squad(folders).items()}
    return {"data_dir": folders.data / "glue" / task}


def split_squad(folders: Folders) -> dict[str, Path]:
    """Writes the answerable questions of the SQuAD file to two files; returns {"train", "eval"}.

    Articles are either for training or for evaluation, so that no context is in both.
    """
    paths = {split: folders.prepared / f"squad-{split}.json" for split in ("train", "eval")}
    if not all(path.exists() for path in paths.values()):
        content = read_json(folders.data / "squad" / "squad2_cs224n_dev.json")
        articles = sorted(content["data"], key=lambda article: article["title"])
        parts = {
            "eval": articles[::_DEV_ARTICLES],
            "train": [article for place, article in enumerate(articles) if place % _DEV_ARTICLES],
        }
        for split, some in parts.items():
            write_json(paths[split], {"version": "v1.1", "data": [*map(_answerable, some)]})
    return paths


def _answerable(article: Mapping) -> dict:
    """Returns an article with the questions that have an answer, and the paragraphs of these."""
    paragraphs = [
        {
            "context": paragraph["context"],
            "qas": [question for question in paragraph["qas"] if question["answers"]],
        }
        for paragraph in article["paragraphs"]
    ]
    return {"title": article["title"], "paragraphs": [p for p in paragraphs if p["qas"]]}


def _run_tool(
    tool: str, books: Sequence[Path], flags: Mapping[str, object], folders: Folders
) -> None:
    reading = {"input_file": [*map(str, books)], "input_format": "gutenberg"}
    run_program(tool, {**reading, **flags}, folders.log)
