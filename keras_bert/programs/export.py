"""Exports a trained model for serving: a SavedModel from raw text to answers, ONNX or LiteRT.

    keras-bert export --model_dir=out/mrpc --export_dir=serving/mrpc/1

The task, the lengths and the threshold default to those of the run that --model_dir comes from. A
flag that the task or the format does not use is rejected. The version folder is written atomically.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, need_tensorflow, no_arguments


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string("model_dir", "", "A run's folder or its model/, or any other checkpoint.")
    define.string("export_dir", "", "DIR/<version>, such as serving/mrpc/1; must not exist.")
    define.enum(
        "task",
        "",
        ["", "classification", "question_answering", "ner", "fill_mask", "embedding"],
        "The task to serve; by default that of the model's head.",
    )
    define.enum("format", "saved_model", ["saved_model", "onnx", "litert"], "Format of the export.")
    define.boolean("int8", None, "Dynamic int8 weights (onnx and litert).")
    define.enum(
        "compute_type",
        None,
        ["float32", "bfloat16"],
        "Type of a SavedModel's matrix products; without it, float32.",
    )
    define.integer("max_seq_length", None, "Tokens of a text, pair or window.")
    define.boolean("pair", None, "Whether a classifier takes two texts, `text` and `text_pair`.")
    define.boolean(
        "normalize", None, "Normalize embeddings to length 1; without it, as in modules.json."
    )
    define.integer("top_k", None, "Tokens returned for a [MASK]; without it, 5.")
    define.integer("max_query_length", None, "Tokens of a question.")
    define.integer("doc_stride", None, "Tokens between the starts of windows.")
    define.integer("n_best_size", None, "Candidate answers a question.")
    define.integer("max_answer_length", None, "Tokens of an answer.")
    define.boolean("version_2_with_negative", None, "Questions may have no answer (v2.0).")
    define.number(
        "null_score_diff_threshold",
        None,
        "A question whose null odds are above it gets the empty answer; by default as found by the "
        "run.",
    )
    define.require("model_dir", "export_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Exports the model and prints the version folder."""
    no_arguments(arguments)
    start_tensorflow()
    need_tensorflow()
    from keras_bert.tasks.export import ExportSettings, export

    settings = {field.name: flags[field.name].value for field in fields(ExportSettings)}
    print(export(ExportSettings(**settings)))


PROGRAM = Program("export", __doc__, define_flags, main)
