"""Splits a corpus into documents for training and held-out documents.

    documents -> train.txt, eval.txt: one sentence per line, a blank line between documents

A document is held out if the checksum of its text is among the smallest of the corpus. The choice
is therefore as good as random, but does not depend on the names and the order of the files. Of
several documents with the same text, only the first is written. An over-long document
(`data_tools.corpus.paragraphs`) is read in parts, each of which counts as a document.
"""

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.odd_input import OddInput
from data_tools.progress import Progress
from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path

TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out documents.

    Attributes:
        share: fraction of the documents.
        max_documents: maximum number of documents.
    """

    share: float
    max_documents: int

    def count(self, num_documents: int) -> int:
        """Returns the number of held-out documents: at least one, and not all documents."""
        wanted = min(round(self.share * num_documents), self.max_documents)
        return min(max(1, wanted), num_documents - 1)


def split_documents(
    input_files: Sequence[str], reading: Reading, folder: Path, held_out: HeldOut
) -> None:
    """Writes the documents of a corpus to train.txt and eval.txt in a new folder.

    The folder appears when both files are complete. The files are read twice, so that only the
    checksums of the documents are in memory.

    Raises:
        InputError: a file cannot be read, the corpus has fewer than two different documents, or the
            folder cannot be written.
    """
    odd = OddInput()
    remaining: set[bytes] = set()
    with Progress("reading documents", None, "documents") as progress:
        for path in input_files:
            for text in read_texts(path, reading, odd):
                remaining.add(_checksum(text))
                progress.add(1)
    odd.log()
    if len(remaining) < 2:
        found = "no documents" if not remaining else "a single document"
        more = f" and {len(input_files) - 1} more files" if len(input_files) > 1 else ""
        raise InputError(
            f"{input_files[0]}{more}: {found} with text, read as --input_format="
            f"{reading.input_format}; expected at least 2 different documents, because one is held "
            "out (in running text, two blank lines or a form feed separate documents)"
        )
    evaluated = set(heapq.nsmallest(held_out.count(len(remaining)), remaining))
    logging.info(
        "%d different documents: %d for training, %d held out",
        len(remaining),
        len(remaining) - len(evaluated),
        len(evaluated),
    )
    with (
        atomic_path(folder) as partial,
        Progress("writing documents", len(remaining), "documents") as progress,
    ):
        partial.mkdir()
        with (
            open(partial / f"{TRAIN}.txt", "wb") as train,
            open(partial / f"{EVAL}.txt", "wb") as evaluation,
        ):
            for path in input_files:
                for text in read_texts(path, reading, OddInput()):
                    checksum = _checksum(text)
                    if checksum in remaining:  # Otherwise, it is already written.
                        remaining.remove(checksum)
                        file = evaluation if checksum in evaluated else train
                        file.write(text.encode() + b"\n\n")
                        progress.add(1)


def _checksum(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
