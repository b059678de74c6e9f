"""Declares the settings of devices and training steps, without importing a backend."""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert.options import MAX_BATCH_SIZE, WEEK, advanced, option


@dataclass(frozen=True)
class Devices:
    """The devices of a run: the arguments of `make_strategy`."""

    GROUP: ClassVar[str] = "training"
    distribution_strategy: str = option(
        "default",
        "default: one device; mirrored: several devices of this machine; multi_worker_mirrored: "
        "several machines, described by TF_CONFIG; tpu: a TPU (not tested).",
        choices=("default", "mirrored", "multi_worker_mirrored", "tpu"),
    )
    num_devices: int = option(0, "Number of devices used by `mirrored`; 0: all.", min=0)
    worker_timeout: float = advanced(
        300.0, "Seconds to wait for the other machines.", min=0, max=WEEK, may_change=True
    )
    model_parallel: int = advanced(
        1, "JAX: number of devices that the vocabulary is split over.", min=1
    )


@dataclass(frozen=True)
class Precision:
    """The data types of a run."""

    GROUP: ClassVar[str] = "training"
    mixed_precision: str = option(
        "float32",
        "Data type of the computation. Default: the fastest of the device.",
        choices=("float32", "bfloat16", "float16"),
    )
    optimizer_state_dtype: str = advanced(
        "float32", "Data type of the optimizer's moments.", choices=("float32", "bfloat16")
    )


@dataclass(frozen=True)
class TrainingSettings:
    """The length of a run and the settings of its steps.

    Attributes:
        max_grad_norm: the maximum global norm, to which larger gradients are clipped.
        evaluate_steps: the number of steps between two evaluations, each followed by a checkpoint;
            0 to evaluate at every checkpoint.
        steps_per_loop: maximum number of steps that run without a return to Python.
    """

    GROUP: ClassVar[str] = "training"
    num_train_steps: int = option(100_000, "Number of training steps.", min=1)
    train_batch_size: int = option(
        32,
        "Number of examples per training step, on all devices together.",
        min=1,
        max=MAX_BATCH_SIZE,
        argument="batch_size",
    )
    gradient_accumulation_steps: int = advanced(
        1, "Number of micro-batches per training step.", min=1
    )
    max_grad_norm: float = 1.0
    jit_compile: bool = advanced(True, "Compile with XLA.", argument="jit_compile")
    gradient_checkpointing: bool = advanced(
        False, "Recompute activations in the backward pass, which saves memory and costs time."
    )
    log_steps: int = advanced(
        100, "Number of steps between two log lines of metrics.", min=1, may_change=True
    )
    save_checkpoints_steps: int = advanced(
        1000, "Number of steps between two checkpoints.", min=1, may_change=True
    )
    evaluate_steps: int = 0
    peak_tflops: float = advanced(
        0.0,
        "Peak rate of a device in TFLOP/s, of which MFU is a share; 0: known for common GPUs and "
        "TPUs.",
        min=0,
        may_change=True,
        in_recipe=False,
    )
    keep_checkpoint_max: int = advanced(
        3, "Number of latest checkpoints to keep.", min=1, may_change=True
    )
    steps_per_loop: int = 10
