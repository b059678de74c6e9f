"""Writes a small English corpus from Python's own documentation, one sentence per line.

    keras-bert python-corpus --output_dir=corpus

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
import os
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from absl import logging
from absl.flags import FlagValues

from data_tools.sentences import split_sentences
from keras_bert.errors import InputError
from keras_bert.files import write_bytes
from keras_bert.options import option
from keras_bert.programs.program import Program, reject_arguments

# --- English sentences of docstrings ---

_HEADING = re.compile(r"([=\-~^\"'*+#.`_])\1{2,}$")
_BULLET = re.compile(r"(?:[*\-+o•]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(?:\s*(?:->|=|:).*)?:?$")
_EXAMPLE = re.compile(r">>>|\.\.\. |\$ |%|\.\. |@|#|\||\+-")
_MARKUP = (
    (re.compile(r":[a-z:+-]+:`[~!]?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`~a.b`
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`<]+?)(?:\s*<[^>]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"`+([^`']+)'+"), r"\1"),  # old-style quotes: `text'
    (re.compile(r"`"), ""),  # unbalanced backquotes
    (re.compile(r"\s?\[\d+\]_?"), ""),  # footnotes
    (
        re.compile(
            r"^(?:Note|Warning|Tip|Caution|See also|Deprecated|(?:New|Added|Changed|Deprecated "
            r"since|Removed) (?:in )?(?:version )?[\d.]+)\s*(?::\s*(?=\S)|\.?$)"
        ),
        "",
    ),
    (re.compile(r"\s*::$"), ":"),
    (re.compile(r"(?<=[a-z])\s--\s(?=[a-z])"), " - "),
    (re.compile(r"\s+"), " "),
)
# A sentence may also start with a lower-case identifier: "filename is the name of ...".
_START = re.compile(
    r"[\"'(“]?[A-Z]"
    r"|[\"']?[a-z]\w*[\"']? (?:is|are|was|can|must|should|will|may|has|returns|specifies) "
)
_END = re.compile(r"[.!?][\"')”]*$")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_FUNCTION_WORDS = """
    a an the is are was were be been being has have had do does did will would can could may might
    must shall should not no of to in on at by for from with as into and or but if when while this
    that these those it its they their which who what how than then so all any each return returns
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def prose_sentences(text: str) -> list[str]:
    """Returns the English sentences of a docstring or reference page, without their markup.

    Docstrings mix prose with signatures, lists, examples and markup. Only sentences that read as
    English are kept (`reads_as_english`).
    """
    sentences = []
    for number, paragraph in enumerate(_paragraphs(text)):
        paragraph = _strip_markup(paragraph)
        # The summary line of a docstring often lacks a full stop.
        if number == 0 and paragraph[-1:].isalnum() and paragraph[0].isupper():
            paragraph += "."
        sentences += filter(reads_as_english, split_sentences(paragraph))
    return sentences


def _paragraphs(text: str) -> list[str]:
    """Splits a page into paragraphs by its layout; skips headings, examples and signatures.

    A paragraph consists of lines with equal indentation, not counting the bullet of a list item.
    """
    lines = textwrap.dedent(text.expandtabs()).split("\n")
    paragraphs: list[str] = []
    current: list[str] = []
    indentation = 0
    literal_below: int | None = None  # "::" seen at this indentation: deeper lines are code

    def close() -> None:
        if current:
            paragraphs.append(" ".join(current))
            current.clear()

    in_example = False
    for number, line in enumerate(lines):
        content = line.strip()
        here = len(line) - len(line.lstrip())
        next_line = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if not content:
            close()
            in_example = False
            continue
        if literal_below is not None and here > literal_below:
            continue
        literal_below = None
        in_example |= _EXAMPLE.match(content) is not None
        is_heading = _HEADING.match(content) or (_HEADING.match(next_line) and not current)
        if in_example or is_heading or _SIGNATURE.match(content):
            close()
            continue
        bullet = _BULLET.match(content)
        if bullet:
            close()
            here += bullet.end()
            content = content[bullet.end() :]
        elif here != indentation:
            close()
        indentation = here
        current.append(content)
        if content.endswith("::"):
            literal_below = here - (bullet.end() if bullet else 0)
            close()
    close()
    return paragraphs


def _strip_markup(paragraph: str) -> str:
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph.strip()


def reads_as_english(sentence: str) -> bool:
    """Returns whether a text is an English sentence, not a heading, a fragment or code.

    It starts with a capital letter, and ends with a full stop, question mark or exclamation mark.
    At least 70% of its tokens must be words, and 10% function words such as "the" or "is".
    """
    if not (_START.match(sentence) and _END.search(sentence)):
        return False
    tokens = sentence.split()
    if not 3 <= len(tokens) <= 120 or max(map(len, tokens)) > 40:
        return False
    words = [token for token in tokens if _WORD.fullmatch(token.strip(".,;:!?()\"'“”"))]
    function_words = [word for word in words if word.lower().strip(",.;:()") in _FUNCTION_WORDS]
    symbols = sum(not (c.isalnum() or c in " .,;:!?()\"'’“”-_/") for c in sentence)
    return (
        len(words) >= 0.7 * len(tokens)
        and len(function_words) >= max(1, 0.1 * len(tokens))
        and symbols <= 0.03 * len(sentence)
        and sentence.count('"') % 2 == 0
        and sentence.count("(") == sentence.count(")")
    )


# --- the corpus ---

HELD_OUT_EVERY = 20
HELD_OUT_LABELLED_EVERY = 5
PACKAGES = ("asyncio", "email", "importlib", "unittest", "xml")  # those with labelled sentences

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


def write_labelled_sentences(output_dir: str) -> dict[str, int]:
    """Writes labelled_train.csv and labelled_eval.csv; returns the number of sentences in each.

    The files have the columns `text` and `label`, the package. Sentences that occur in several of
    the packages are skipped.

    Raises an `InputError` if the directory cannot be written.
    """
    _make_folder(output_dir)
    library = sysconfig.get_paths()["stdlib"]
    labels: dict[str, set[str]] = {}  # {sentence: the packages that contain it}
    for package in PACKAGES:
        for _, sentences in docstring_documents(library, package):
            for sentence in sentences:
                labels.setdefault(sentence, set()).add(package)
    files: dict[str, list[tuple[str, str]]] = {"labelled_train.csv": [], "labelled_eval.csv": []}
    for sentence, packages in labels.items():
        if len(packages) == 1:
            held_out = is_held_out(sentence, HELD_OUT_LABELLED_EVERY)
            files["labelled_eval.csv" if held_out else "labelled_train.csv"].append(
                (sentence, *packages)
            )
    for name, rows in files.items():
        table = io.StringIO()
        csv.writer(table).writerows([("text", "label"), *rows])
        path = os.path.join(output_dir, name)
        write_bytes(path, table.getvalue().encode())
        logging.info("%s: %d sentences of %d packages", path, len(rows), len(PACKAGES))
    return {name: len(rows) for name, rows in files.items()}


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir={path}: cannot be written ({error.strerror})") from None


@dataclass(frozen=True)
class CorpusOptions:
    """The options of the program."""

    output_dir: str = option(
        "",
        "Output folder of train.txt, eval.txt, labelled_train.csv and labelled_eval.csv.",
        required=True,
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Writes the corpus to --output_dir."""
    reject_arguments(arguments)
    write_python_corpus(flags.output_dir)
    write_labelled_sentences(flags.output_dir)


PROGRAM = Program("python-corpus", __doc__, (CorpusOptions,), main)
