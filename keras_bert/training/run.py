"""Defines the objects that describe a training run: settings, devices and directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models.memory import check_batch_fits

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class TrainingSettings:
    """The length of a run and the settings of its steps.

    Attributes:
        num_train_steps: the number of optimizer steps in total.
        train_batch_size: the number of examples in a step, over all devices and micro-batches.
        gradient_accumulation_steps: the number of micro-batches in a step on each device.
        batch_ramp_steps: the number of steps over which the micro-batches of a step increase from
            one to `gradient_accumulation_steps`; 0 for full batches from the start.
        max_grad_norm: the maximum global norm, to which larger gradients are clipped.
        jit_compile: whether to compile the forward and backward pass with XLA.
        gradient_checkpointing: whether to keep only the input of each block and recompute the block
            in the backward pass: less memory, more computation.
        log_steps: the number of steps between two log lines.
        save_checkpoints_steps: the number of steps between two checkpoints.
        evaluate_steps: the number of steps between two evaluations, each followed by a checkpoint;
            0 to evaluate at every checkpoint.
        keep_checkpoint_max: the number of checkpoints to keep.
        steps_per_loop: maximum number of steps that run without a return to Python.
    """

    num_train_steps: int
    train_batch_size: int
    gradient_accumulation_steps: int = 1
    batch_ramp_steps: int = 0
    max_grad_norm: float = 1.0
    jit_compile: bool = True
    gradient_checkpointing: bool = False
    log_steps: int = 100
    save_checkpoints_steps: int = 1000
    evaluate_steps: int = 0
    keep_checkpoint_max: int = 3
    steps_per_loop: int = 10


@dataclass(frozen=True)
class TrainingRun:
    """The settings, devices and directory of a training run.

    The files in `output_dir` are described in docs/reference/outputs.md. `record` contains the
    settings to save in run.json, which must be the same when the run is resumed. `is_part` is
    whether this is one phase of a larger run.
    """

    training: TrainingSettings
    strategy: "tf.distribute.Strategy"
    output_dir: Path
    record: Mapping[str, object] = field(default_factory=dict)
    is_part: bool = False


def check_train_batch_fits(
    settings: TrainingSettings,
    workers: int,
    config: BertConfig,
    length: int,
    rows_per_example: int = 1,
) -> None:
    """Raises an InputError if a worker's micro-batch cannot fit in the memory of its machine.

    `workers` is the number of workers, and `length` the number of tokens in a row.
    """
    size = settings.train_batch_size
    rows = size * rows_per_example // settings.gradient_accumulation_steps // workers
    check_batch_fits(config, rows, length, f"--train_batch_size={size}")


def check_batch_sizes(
    strategy: "tf.distribute.Strategy", settings: TrainingSettings, eval_batch_size: int
) -> None:
    """Checks that batches can be divided equally among devices and micro-batches.

    Raises:
        InputError: the training batch size is not a multiple of (number of devices) x (number of
            micro-batches), the evaluation batch size is not a multiple of the number of devices, or
            there is a batch ramp with only one micro-batch.
    """
    if settings.batch_ramp_steps and settings.gradient_accumulation_steps == 1:
        raise InputError(
            f"--batch_ramp_steps={settings.batch_ramp_steps} needs --gradient_accumulation_steps "
            "above 1: the batch grows by micro-batches"
        )
    devices = strategy.num_replicas_in_sync
    parts = devices * settings.gradient_accumulation_steps
    if settings.train_batch_size % parts:
        raise InputError(
            f"--train_batch_size={settings.train_batch_size} is not divisible by {devices} devices "
            f"x {settings.gradient_accumulation_steps} micro-batches"
        )
    if eval_batch_size % devices:
        raise InputError(
            f"--eval_batch_size={eval_batch_size} is not divisible by {devices} devices"
        )
