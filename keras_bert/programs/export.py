"""Exports a trained model for serving: a SavedModel from raw text to answers, or ONNX.

    keras-bert export --model_dir=out/mrpc --export_dir=serving/mrpc/1

The task, its maximum lengths and the null odds threshold default to those of the run that wrote
--model_dir. A flag that the task or the format does not use is rejected. --export_dir is written
atomically.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments, require_tensorflow
from keras_bert.startup import start_tensorflow


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "model_dir",
        "",
        "Model to export: a run folder, its model/ folder, or any other checkpoint.",
    )
    define.string(
        "export_dir",
        "",
        "Version folder to write, DIR/<version>, such as serving/mrpc/1; must not exist.",
    )
    define.enum(
        "task",
        "",
        ["", "classification", "question_answering", "ner", "fill_mask", "embedding"],
        "Task to export the model for. Default: the task of the model's head.",
    )
    define.enum("format", "saved_model", ["saved_model", "onnx"], "Format of the export.")
    define.boolean(
        "int8",
        None,
        "Quantize the weights to int8 (dynamic quantization): those of the file for onnx; with "
        "--engines=onnxruntime, those of a second file beside the SavedModel.",
    )
    define.strings(
        "engines",
        None,
        "saved_model: engines besides TensorFlow that can run the network, from onnxruntime and "
        "openvino. Their files are written beside the SavedModel; the server uses the first one.",
    )
    define.enum(
        "compute_type",
        None,
        ["float32", "bfloat16"],
        "saved_model: data type of the matrix products. Default: float32.",
    )
    define.integer(
        "max_seq_length",
        None,
        "Maximum number of tokens in a text, pair or window. Default: as in the run, if there is "
        "one.",
    )
    define.boolean(
        "pair",
        None,
        "classification: whether the input is a pair of texts, `text` and `text_pair`. Default: "
        "as in the run.",
    )
    define.boolean(
        "normalize",
        None,
        "embedding: whether to normalize vectors to length 1. Default: as in modules.json.",
    )
    define.integer(
        "top_k", None, "fill_mask: number of tokens returned for each [MASK]. Default: 5."
    )
    define.integer(
        "max_query_length", None, "question_answering: maximum number of tokens in a question."
    )
    define.integer(
        "doc_stride",
        None,
        "question_answering: number of tokens between the starts of two windows of a context.",
    )
    define.integer(
        "n_best_size", None, "question_answering: number of candidate answers per question."
    )
    define.integer(
        "max_answer_length", None, "question_answering: maximum number of tokens in an answer."
    )
    define.boolean(
        "version_2_with_negative",
        None,
        "question_answering: whether questions may have no answer, as in SQuAD v2.0.",
    )
    define.number(
        "null_score_diff_threshold",
        None,
        "question_answering: a question gets the empty answer if its null odds exceed this "
        "threshold. Default: as found by the run.",
    )
    define.require("model_dir", "export_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Exports the model and prints the path of the version folder."""
    reject_arguments(arguments)
    start_tensorflow()
    require_tensorflow()
    from keras_bert.tasks.export import ExportSettings, export

    settings = {field.name: flags[field.name].value for field in fields(ExportSettings)}
    settings["engines"] = tuple(flags.engines or ()) or None
    print(export(ExportSettings(**settings)))


PROGRAM = Program("export", __doc__, define_flags, main)
