"""Exports a trained model for serving: a SavedModel from raw text to answers, ONNX or LiteRT.

    python export_model.py --model_dir=out/mrpc --export_dir=serving/mrpc/1

The task, the lengths and the threshold are those of the run that --model_dir comes from, unless
flags say otherwise; a flag that the task or the format does not read is refused. The version's
folder appears whole or not at all.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl import flags

from keras_bert.programs.program import (
    need_tensorflow,
    no_arguments,
    require,
    run,
    start_tensorflow,
)

FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", "", "A run's folder or its model/, or any other checkpoint.")
flags.DEFINE_string("export_dir", "", "DIR/<version>, such as serving/mrpc/1; must not exist.")
flags.DEFINE_enum(
    "task",
    "",
    ["", "classification", "question_answering", "ner", "fill_mask", "embedding"],
    "What is served; by default what the model's heads are for.",
)
flags.DEFINE_enum("format", "saved_model", ["saved_model", "onnx", "litert"], "What is written.")
flags.DEFINE_bool("int8", None, "Dynamic int8 weights (onnx and litert).")
flags.DEFINE_enum(
    "compute_type",
    None,
    ["float32", "bfloat16"],
    "Of a SavedModel's products; without it, float32.",
)
flags.DEFINE_integer("max_seq_length", None, "Pieces of a text, pair or window.")
flags.DEFINE_bool("pair", None, "Whether a classifier takes two texts, `text` and `text_pair`.")
flags.DEFINE_bool("normalize", None, "Embeddings of length 1; without it, as modules.json says.")
flags.DEFINE_integer("top_k", None, "Pieces that fill a [MASK]; without it, 5.")
flags.DEFINE_integer("max_query_length", None, "Pieces of a question.")
flags.DEFINE_integer("doc_stride", None, "Pieces between the starts of windows.")
flags.DEFINE_integer("n_best_size", None, "Candidates a question.")
flags.DEFINE_integer("max_answer_length", None, "Pieces of an answer.")
flags.DEFINE_bool("version_2_with_negative", None, "Questions may have no answer (v2.0).")
flags.DEFINE_float(
    "null_score_diff_threshold",
    None,
    "Null odds above it give the empty answer; by default run_squad's for other questions.",
)
require("model_dir", "export_dir")


def main(argv: Sequence[str]) -> None:
    """Reads the flags, exports, and prints the folder."""
    no_arguments(argv)
    start_tensorflow()
    need_tensorflow()
    from keras_bert.tasks.export import ExportSettings, export

    settings = {field.name: FLAGS[field.name].value for field in fields(ExportSettings)}
    print(export(ExportSettings(**settings)))


if __name__ == "__main__":
    run(main)
