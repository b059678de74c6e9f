"""Writes a small English corpus from Python's own documentation, one sentence per line.

    keras-bert python-corpus --output_dir=corpus

The sources are the language reference in `pydoc_data.topics` (one document per topic) and the
docstrings of the standard library (one document per module, parsed and not imported). The output is
train.txt and eval.txt in the format of Google's BERT. About one document in twenty, selected by a
hash of its name, is in eval.txt.

With --labelled_packages, the sentences of these packages are also written with the name of their
package as the label, for a classifier: labelled_train.csv, and one in five in labelled_eval.csv.
"""

import ast
import csv
import hashlib
import io
import os
import sysconfig
import warnings
from collections.abc import Iterator, Sequence

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus.docstring_prose import prose_sentences
from keras_bert.common.errors import InputError
from keras_bert.common.files import write_bytes
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments

HELD_OUT_EVERY = 20
HELD_OUT_LABELLED_EVERY = 5

_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled"}


def topic_documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (name, sentences) for each topic of the language reference.

    Raises an `InputError` if this Python installation has no language reference.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError(
            "pydoc_data.topics not found; expected a Python with its complete standard library"
        ) from None
    for name in sorted(topics):
        yield f"topics/{name}", prose_sentences(topics[name])


def docstring_documents(library: str, package: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yields (name, sentences) for each module below the folder `library`; skips test folders.

    With `package`, only the modules of this package.
    """
    for folder, subfolders, names in os.walk(os.path.join(library, package)):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") and name != "topics.py":
                sentences = [
                    sentence
                    for docstring in _docstrings(path)
                    for sentence in prose_sentences(docstring)
                ]
                yield os.path.relpath(path, library).replace(os.sep, "/"), sentences


def _docstrings(path: str) -> Iterator[str]:
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources have invalid escapes
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError):  # lib2to3 contains invalid sources as test data
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring


def is_held_out(name: str, every: int = HELD_OUT_EVERY) -> bool:
    """Returns whether a text is for evaluation: one in `every`, by the hash of its name."""
    return hashlib.sha256(name.encode()).digest()[0] % every == 0


def write_python_corpus(output_dir: str) -> dict[str, int]:
    """Writes train.txt and eval.txt to a directory; returns the number of documents in each.

    Raises an `InputError` if the directory cannot be written, or this Python installation has no
    language reference.
    """
    _make_folder(output_dir)
    library = sysconfig.get_paths()["stdlib"]
    seen: set[str] = set()
    files: dict[str, list[str]] = {"train.txt": [], "eval.txt": []}
    for source in (topic_documents(), docstring_documents(library)):
        for name, sentences in source:
            # Inherited and copied docstrings repeat sentences, and a held-out sentence must not be
            # in the training set. Only the first occurrence of each sentence is kept.
            new = [s for s in dict.fromkeys(sentences) if s not in seen]
            seen.update(new)
            if len(new) >= 2:
                files["eval.txt" if is_held_out(name) else "train.txt"].append("\n".join(new))
    for name, documents in files.items():
        content = ("\n\n".join(documents) + "\n").encode()
        path = os.path.join(output_dir, name)
        write_bytes(path, content)
        lines = sum(document.count("\n") + 1 for document in documents)
        logging.info(
            "%s: %d documents, %d sentences, %.2f MB",
            path,
            len(documents),
            lines,
            len(content) / 1e6,
        )
    return {name: len(documents) for name, documents in files.items()}


def write_labelled_sentences(output_dir: str, packages: Sequence[str]) -> dict[str, int]:
    """Writes labelled_train.csv and labelled_eval.csv; returns the number of sentences in each.

    The files have the columns `text` and `label`, the package. Sentences that occur in several of
    the packages are skipped.

    Raises an `InputError` if the directory cannot be written, or a package has no sentences.
    """
    _make_folder(output_dir)
    library = sysconfig.get_paths()["stdlib"]
    labels: dict[str, set[str]] = {}  # {sentence: the packages that contain it}
    for package in packages:
        documents = docstring_documents(library, package) if package.isidentifier() else ()
        found = [s for _, sentences in documents for s in sentences]
        if not found:
            raise InputError(
                f"--labelled_packages: the package {package!r} of the standard library has no "
                "docstrings; expected names such as asyncio,email"
            )
        for sentence in found:
            labels.setdefault(sentence, set()).add(package)
    files: dict[str, list[tuple[str, str]]] = {"labelled_train.csv": [], "labelled_eval.csv": []}
    for sentence, (label, *others) in ((s, sorted(found)) for s, found in labels.items()):
        if not others:
            held_out = is_held_out(sentence, HELD_OUT_LABELLED_EVERY)
            files["labelled_eval.csv" if held_out else "labelled_train.csv"].append(
                (sentence, label)
            )
    for name, rows in files.items():
        table = io.StringIO()
        csv.writer(table).writerows([("text", "label"), *rows])
        path = os.path.join(output_dir, name)
        write_bytes(path, table.getvalue().encode())
        logging.info("%s: %d sentences of %d packages", path, len(rows), len(packages))
    return {name: len(rows) for name, rows in files.items()}


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir={path}: cannot be written ({error.strerror})") from None


def define_flags(define: Definitions) -> None:
    """Defines the flags of this program."""
    define.string("output_dir", None, "Output folder of train.txt and eval.txt.")
    define.strings(
        "labelled_packages",
        [],
        "Packages of the standard library whose sentences are also written with their package as "
        "the label, to labelled_train.csv and labelled_eval.csv.",
    )
    define.require("output_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Writes the corpus to --output_dir."""
    reject_arguments(arguments)
    write_python_corpus(flags.output_dir)
    if flags.labelled_packages:
        write_labelled_sentences(flags.output_dir, flags.labelled_packages)


PROGRAM = Program("python-corpus", __doc__, define_flags, main)
