"""Starts and ends the runs of pre-training and fine-tuning programs."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import option

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class RunOptions:
    """The files of a run."""

    output_dir: str = option("", "Folder for all files of the run.", required=True, may_change=True)
    export: bool = option(
        False,
        "Whether to export the trained model for serving, to OUTPUT_DIR/export/1.",
        needs="do_train",
        may_change=True,
    )


def make_strategy(flags: FlagValues) -> "tf.distribute.Strategy":
    """Creates the distribution strategy that the flags of `Devices` select."""
    from keras_bert.training.backend import make_strategy

    return make_strategy(
        flags.distribution_strategy, flags.num_devices, flags.worker_timeout, flags.model_parallel
    )


def check_export(flags: FlagValues) -> None:
    """Rejects --export with another backend than TensorFlow."""
    if flags.export and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise InputError(
            "--export: requires the TensorFlow backend; to export a JAX run, use export_model.py "
            "without KERAS_BACKEND"
        )


def check_output_dir(output_dir: str, init_checkpoint: str) -> None:
    """Rejects an output directory whose files would replace the initial checkpoint."""
    if not init_checkpoint:
        return
    start, output = Path(init_checkpoint), Path(output_dir)
    read = {path.resolve() for path in (start, start / "model")}
    if read & {path.resolve() for path in (output, output / "model", output / "best")}:
        raise InputError(
            f"--output_dir={output_dir}: overlaps with --init_checkpoint={init_checkpoint}; "
            "expected another folder, because the files of the run would replace the checkpoint"
        )


def check_not_input_folder(output_dir: str, inputs: Iterable[str]) -> None:
    """Rejects an output directory that also contains the input.

    The output files would be mixed with the input, and read as input the next time.

    Args:
        output_dir: the value of --output_dir.
        inputs: files, folders or globs; empty strings are ignored.
    """
    output = Path(output_dir).resolve()
    for name in filter(None, inputs):
        path = Path(name)
        if output == (path if path.is_dir() else path.parent).resolve():
            raise InputError(
                f"--output_dir={output_dir}: is the folder of the input {name}; expected another "
                "folder, so that output and input stay apart"
            )


def finish(results: Mapping[str, object], output_dir: Path, export: bool) -> None:
    """Prints a run's results, one per line, exports its model if requested and lists its files."""
    for name, value in results.items():
        print(f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}")
    if export:
        from keras_bert.tasks.export import export_run  # Imported here: it imports TensorFlow.

        print(f"export = {export_run(output_dir)}")
    files = sorted(path.name + "/" * path.is_dir() for path in output_dir.iterdir())
    logging.info("Files in %s: %s", output_dir, ", ".join(name for name in files if name[0] != "."))
