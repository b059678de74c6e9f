"""Exports a trained model for serving: a SavedModel from raw text to answers, or ONNX.

    keras-bert export --model_dir=out --export_dir=serving/mrpc/1

    keras-bert export --model_dir=out --export_dir=onnx/mrpc/1 --format=onnx

The task, its maximum lengths and the null odds threshold default to those of the run that wrote
--model_dir. A flag that the task or the format does not use is rejected. --export_dir is written
atomically.
"""

from collections.abc import Sequence

from absl.flags import FlagValues

from keras_bert.options import from_values
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments, require_tensorflow
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.settings import ExportOptions


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Exports the model and prints the path of the version folder."""
    reject_arguments(arguments)
    start_tensorflow()
    require_tensorflow()
    from keras_bert.tasks.model_export import export

    values = values_of(flags)
    values["engines"] = tuple(flags.engines or ()) or None
    print(export(from_values(ExportOptions, values)))


PROGRAM = Program("export", __doc__, (ExportOptions,), main)
