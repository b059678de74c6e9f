"""The command `keras-bert`, which runs one of the programs.

It imports only the program to run, so that `keras-bert --help` is fast.
"""

import difflib
import importlib
import sys
from typing import NoReturn

import keras_bert

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
    "classify": ("keras_bert.programs.classify", "fine-tune a classifier: GLUE or own files"),
    "squad": ("keras_bert.programs.squad", "fine-tune for question answering"),
    "ner": ("keras_bert.programs.ner", "fine-tune for named entities"),
    "fill-mask": ("keras_bert.programs.fill_mask", "fill the masks of sentences"),
    "extract-features": ("keras_bert.programs.extract_features", "write hidden states of texts"),
    "export": ("keras_bert.programs.export", "export a SavedModel, ONNX or LiteRT"),
    "serve": ("keras_bert.programs.serve", "serve an exported model over HTTP"),
    "convert": ("keras_bert.programs.convert", "convert a checkpoint into another format"),
    "supervise": ("keras_bert.programs.supervise", "restart a training when machines end it"),
    "plot": ("keras_bert.programs.plot", "draw the learning curves of runs"),
    "python-corpus": ("data_tools.python_corpus", "write the documentation of Python as a corpus"),
    "demo": ("keras_bert.programs.demo", "pre-train a small BERT on that corpus, in minutes"),
}


def main() -> NoReturn:
    """Runs the program named on the command line."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_usage())
        sys.exit()
    if name == "--version":
        print(f"keras_bert {keras_bert.__version__}")
        sys.exit()
    if name not in PROGRAMS:
        (nearest,) = difflib.get_close_matches(name, PROGRAMS, n=1) or [""]
        expected = f"expected {nearest}?" if nearest else "see keras-bert --help"
        print(f"keras-bert: error: {name!r} is not a program; {expected}", file=sys.stderr)
        sys.exit(1)
    from keras_bert.programs.program import run

    module, _ = PROGRAMS[name]
    run(importlib.import_module(module).PROGRAM, [f"keras-bert {name}", *arguments])


def _usage() -> str:
    wide = max(map(len, PROGRAMS))
    lines = [f"  {name:{wide}}  {purpose}" for name, (_, purpose) in PROGRAMS.items()]
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
