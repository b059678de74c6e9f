"""Defines the flags that pre-training and fine-tuning share: devices, compute types, export."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.programs.flags import Definitions

if TYPE_CHECKING:
    import tensorflow as tf

_WEEK = 7 * 24 * 3600


def define_computing(define: Definitions) -> None:
    """Defines the flags for devices, compute types and micro-batches."""
    define.enum(
        "distribution_strategy",
        "default",
        ["default", "mirrored", "multi_worker_mirrored", "tpu"],
        "default: one device; mirrored: several devices of this machine; multi_worker_mirrored: "
        "several machines, described by TF_CONFIG; tpu: a TPU (not tested).",
    )
    define.integer("num_devices", 0, "Number of devices used by `mirrored`; 0: all.", lower_bound=0)
    define.integer(
        "model_parallel",
        1,
        "JAX: number of devices that the vocabulary is split over.",
        lower_bound=1,
    )
    define_seconds(define, "worker_timeout", 300.0, "Seconds to wait for the other machines.")
    define_steps(define)


def define_steps(define: Definitions) -> None:
    """Defines the flags for the compute types and the memory of a training step on one device."""
    define.enum(
        "mixed_precision",
        None,
        ["float32", "bfloat16", "float16"],
        "Data type of the computation. Default: the fastest of the device.",
    )
    define.boolean("jit_compile", True, "Compile with XLA.")
    define.boolean(
        "gradient_checkpointing",
        False,
        "Recompute activations in the backward pass, which saves memory and costs time.",
    )
    define.enum(
        "optimizer_state_dtype",
        "float32",
        ["float32", "bfloat16"],
        "Data type of the optimizer's moments.",
    )
    define.integer(
        "gradient_accumulation_steps",
        1,
        "Number of micro-batches per training step.",
        lower_bound=1,
    )


def define_seconds(define: Definitions, name: str, default: float, description: str) -> None:
    """Defines a flag for a duration of at most a week."""
    define.number(name, default, description)
    define.check_value(
        name,
        lambda seconds: 0 <= seconds <= _WEEK,
        f"expected seconds from 0 to {_WEEK} (one week)",
    )


def define_export(define: Definitions) -> None:
    """Defines --export, which exports the trained model and requires --do_train."""
    define.boolean(
        "export", False, "Whether to export the trained model for serving, to OUTPUT_DIR/export/1."
    )
    define.check(
        ["export", "do_train"],
        lambda values: values["do_train"] or not values["export"],
        "--export requires --do_train",
    )
    define.check_value(
        "export",
        lambda export: not export or os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow",
        "requires the TensorFlow backend; to export a JAX run, use export_model.py without "
        "KERAS_BACKEND",
    )


def strategy_of(flags: FlagValues) -> "tf.distribute.Strategy":
    """Creates the distribution strategy that the flags select."""
    from keras_bert.training.backend import make_strategy

    return make_strategy(
        flags.distribution_strategy, flags.num_devices, flags.worker_timeout, flags.model_parallel
    )


def check_output_dir(output_dir: str, init_checkpoint: str) -> None:
    """Rejects an output directory whose files would replace the initial checkpoint."""
    if not init_checkpoint:
        return
    start, place = Path(init_checkpoint), Path(output_dir)
    read = {path.resolve() for path in (start, start / "model")}
    if read & {path.resolve() for path in (place, place / "model", place / "best")}:
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
    place = Path(output_dir).resolve()
    for name in filter(None, inputs):
        path = Path(name)
        if place == (path if path.is_dir() else path.parent).resolve():
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
