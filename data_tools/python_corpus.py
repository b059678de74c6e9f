"""Writes a small English corpus from Python's own documentation, one sentence per line.

    keras-bert python-corpus --output_dir=corpus

    keras-bert python-corpus --output_dir=corpus --verbosity=-1

The sources are the language reference in `pydoc_data.topics` (one document per topic) and the
docstrings of the standard library (one document per module, parsed and not imported). The output is
train.txt and eval.txt in the format of Google's BERT. About one document in twenty, selected by a
hash of its name, is in eval.txt.

The sentences of five packages are also written with the name of their package as the label, for a
classifier: labelled_train.csv, and one in five in labelled_eval.csv.
"""

import ast
import csv
import hashlib
import io
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from absl import logging
from absl.flags import FlagValues

from data_tools.sentences import split_sentences
from keras_bert.files import write_bytes
from keras_bert.options import option
from keras_bert.programs.program import Program, reject_arguments

PACKAGES = ("asyncio", "email", "importlib", "unittest", "xml")  # those with labelled sentences

_MARKUP = re.compile(r":[a-z:]+:(?=`)|[`*]")  # :class:`Name`, *argument*
# The rest of a page: signatures, code, headings, tables.
_SENTENCE = re.compile(r"[A-Z][\w.,;:'()/-]*(?: [\w.,;:'\"()/-]+){2,}[.!?]")
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled"}


def sentences_of(text: str) -> list[str]:
    """Returns the sentences of words and usual punctuation in a docstring or reference page."""
    paragraphs = re.split(r"\n\s*\n", _MARKUP.sub("", text))
    lines = [" ".join(paragraph.split()) for paragraph in paragraphs if ">>>" not in paragraph]
    return [s for line in lines for s in split_sentences(line) if _SENTENCE.fullmatch(s)]


def documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (name, sentences) for each topic of the reference and each module of the library."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield f"topics/{name}", sentences_of(topics[name])
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not _SKIPPED & {*name.parts} and name.name != "topics.py":
            docstrings = _docstrings(path.read_bytes())
            yield name.as_posix(), [s for text in docstrings for s in sentences_of(text)]


def _docstrings(source: bytes) -> list[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # old sources have invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # lib2to3 contains invalid sources as test data
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def is_held_out(name: str, every: int) -> bool:
    """Returns whether a text is for evaluation: one in `every`, by the hash of its name."""
    return hashlib.sha256(name.encode()).digest()[0] % every == 0


@dataclass(frozen=True)
class PythonCorpusOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "output"
    output_dir: str = option(
        "",
        "Output folder of train.txt, eval.txt, labelled_train.csv and labelled_eval.csv.",
        required=True,
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Writes the corpus to --output_dir."""
    reject_arguments(arguments)
    texts: dict[str, list[str]] = {"train": [], "eval": []}
    labels: dict[str, set[str]] = {}  # {sentence: the packages that contain it}
    seen: set[str] = set()
    for name, sentences in documents():
        if (package := name.partition("/")[0]) in PACKAGES:
            for sentence in sentences:
                labels.setdefault(sentence, set()).add(package)
        # Inherited docstrings repeat sentences; a held-out sentence must not be in the training.
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in seen]
        seen.update(new)
        if len(new) >= 2:
            texts["eval" if is_held_out(name, 20) else "train"].append("\n".join(new))
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "eval": []}
    for sentence, packages in labels.items():
        if len(packages) == 1:
            rows["eval" if is_held_out(sentence, 5) else "train"].append((sentence, *packages))
    folder = Path(flags.output_dir)
    for split, parts in texts.items():
        _write(folder / f"{split}.txt", "\n\n".join(parts) + "\n", f"{len(parts)} documents")
    for split, part in rows.items():  # The demo looks for the last one, labelled_eval.csv.
        table = io.StringIO()
        csv.writer(table).writerows([("text", "label"), *part])
        _write(folder / f"labelled_{split}.csv", table.getvalue(), f"{len(part)} sentences")


def _write(path: Path, content: str, description: str) -> None:
    write_bytes(path, content.encode())
    logging.info("%s: %s, %.2f MB", path, description, len(content) / 1e6)


PROGRAM = Program("python-corpus", __doc__, (PythonCorpusOptions,), main)
