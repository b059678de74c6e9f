"""Defines the command `keras-bert`, and starts programs as processes of their own.

This module imports nothing that takes time, so that Ctrl-C ends the process with one line even
while a program is imported.
"""

import importlib
import os
import sys
from collections.abc import Sequence

import keras_bert
from keras_bert.startup import exit_at_interrupt, quiet_end_without_reader

TYPE_CHECKING = False  # As in `typing`, which takes milliseconds to import.
if TYPE_CHECKING:
    from typing import NoReturn

# {program: (its module, its purpose)}
PROGRAMS = {
    "build-vocab": ("data_tools.build_vocab", "learn a WordPiece vocabulary from text"),
    "create-pretraining-data": (
        "data_tools.create_pretraining_data",
        "make TFRecords for pre-training from text",
    ),
    "inspect-tfrecords": (
        "data_tools.inspect_tfrecords",
        "verify TFRecords, print statistics and examples",
    ),
    "pretrain": ("keras_bert.programs.pretrain", "pre-train on TFRecords"),
    "adapt": ("keras_bert.programs.adapt", "continue pre-training on your own documents"),
    "classify": (
        "keras_bert.programs.classify",
        "fine-tune a classifier on GLUE or your own files",
    ),
    "squad": ("keras_bert.programs.squad", "fine-tune for question answering"),
    "ner": ("keras_bert.programs.ner", "fine-tune for named-entity recognition"),
    "embed": ("keras_bert.programs.embed", "train sentence embeddings on pairs of texts"),
    "fill-mask": ("keras_bert.programs.fill_mask", "predict the masked words of sentences"),
    "extract-features": (
        "keras_bert.programs.extract_features",
        "write the hidden states for texts",
    ),
    "export": ("keras_bert.programs.export", "export a SavedModel or ONNX"),
    "serve": ("keras_bert.programs.serve", "serve an exported model over HTTP"),
    "convert": ("keras_bert.programs.convert", "convert a checkpoint to a Hugging Face directory"),
    "plot": ("keras_bert.programs.plot", "plot the learning curves of runs"),
    "python-corpus": (
        "data_tools.python_corpus",
        "write a text corpus from Python's documentation",
    ),
    "demo": ("keras_bert.programs.demo", "run the pipeline: pre-train a small BERT in minutes"),
}


def start(module: str, argv: Sequence[str] | None = None) -> "NoReturn":
    """Imports the module of a program, runs its `PROGRAM` and exits with the exit code."""
    with exit_at_interrupt(os.path.basename((argv or sys.argv)[0])):
        from keras_bert.programs.program import run

        run(importlib.import_module(module).PROGRAM, argv)


def main() -> "NoReturn":
    """Runs the program that the command line names."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in PROGRAMS:
        start(PROGRAMS[name][0], [f"keras-bert {name}", *arguments])
    if name in ("--help", "-h", "help", "--version"):
        with quiet_end_without_reader():
            print(f"keras_bert {keras_bert.__version__}" if name == "--version" else _usage())
        sys.exit()
    import difflib

    (nearest,) = difflib.get_close_matches(name, PROGRAMS, n=1) or [""]
    expected = f"did you mean {nearest}?" if nearest else "see keras-bert --help"
    print(f"keras-bert: error: {name!r} is not a program; {expected}", file=sys.stderr)
    sys.exit(1)


def _usage() -> str:
    width = max(map(len, PROGRAMS))
    lines = [f"  {name:{width}}  {purpose}" for name, (_, purpose) in PROGRAMS.items()]
    return "\n".join(
        [
            "BERT from raw text to a served model.",
            "",
            "    keras-bert PROGRAM --flag=value ...",
            "    keras-bert PROGRAM --help",
            "    keras-bert --version",
            "",
            *lines,
        ]
    )
