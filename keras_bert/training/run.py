"""The objects that describe a training run: its settings, devices, directory and record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keras_bert.common.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class TrainingSettings:
    """The length of a run and the settings of its steps.

    Attributes:
        num_train_steps: the number of optimizer steps in total.
        train_batch_size: examples per step, over all devices and micro-batches.
        gradient_accumulation_steps: micro-batches per step on each device.
        batch_ramp_steps: steps over which the number of micro-batches grows from one to
            `gradient_accumulation_steps` (training/ramp.py); 0 for full batches from the start.
        max_grad_norm: the global norm to which gradients are clipped.
        jit_compile: whether to compile the forward and backward pass with XLA.
        gradient_checkpointing: whether to keep only the input of each block and recompute the block
            in the backward pass (recomputation.py): less memory, more computation.
        log_steps: steps between two log lines.
        save_checkpoints_steps: steps between two checkpoints.
        evaluate_steps: steps between two evaluations, each followed by a checkpoint; 0 to evaluate
            at every checkpoint.
        keep_checkpoint_max: the number of checkpoints to keep.
        steps_per_loop: maximum number of steps that run without a return to Python (stopping.py).
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

    Attributes:
        training: the length of the run and the settings of its steps.
        strategy: the devices.
        output_dir: the run directory (docs/reference/outputs.md).
        record: the settings saved in run.json, which must not change when the run is resumed.
    """

    training: TrainingSettings
    strategy: "tf.distribute.Strategy"
    output_dir: Path
    record: Mapping[str, object] = field(default_factory=dict)


def check_batch_sizes(
    strategy: "tf.distribute.Strategy", settings: TrainingSettings, eval_batch_size: int
) -> None:
    """Checks that the batch sizes are divisible by the number of devices and micro-batches.

    Raises:
        InputError: if a batch size is not divisible, or a batch ramp has only one micro-batch.
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
