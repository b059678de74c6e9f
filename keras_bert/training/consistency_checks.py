"""Checks during training that losses and weights are finite, and that the workers agree."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.training.checkpoint import CheckpointWriter, list_checkpoints
from keras_bert.training.cluster import gather, num_workers
from keras_bert.training.objective import Objective, StepMetrics


def check_same_start(
    strategy: tf.distribute.Strategy,
    step: int,
    evaluations: Sequence[Mapping[str, float]],
    output_dir: Path,
) -> None:
    """Raises an InputError unless all workers found the same checkpoint and evaluations."""
    found = gather(strategy, [step, len(evaluations)])
    if any(each != found[0] for each in found):
        steps, counts = zip(*found, strict=True)
        raise InputError(
            f"{output_dir}: the workers found checkpoints of steps {[*steps]} and {[*counts]} "
            "evaluations; expected --output_dir to be one folder that all workers share"
        )


def stop_if_not_finite(
    metrics: StepMetrics, step: int, objective: Objective, writer: CheckpointWriter
) -> None:
    """Raises an InputError if a loss or gradient of the steps after `step` is not finite."""
    norm_is_finite = np.isfinite(metrics.gradient_norm)
    # With loss scaling, a step whose gradient is not finite is skipped and the scale is halved. At
    # a scale of 1, halving does not help, so the run stops.
    skipped = ~norm_is_finite & (metrics.loss_scale > 1)
    finite = [np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in metrics]
    broken = ~np.all(finite, axis=0) & ~skipped
    if not broken.any():
        return
    first = int(np.argmax(broken))
    loss, norm = metrics.losses(objective)[first], metrics.gradient_norm[first]
    reason, number = f"the loss is {loss} and the gradient norm is {norm}", step + first + 1
    if number == 1:
        raise InputError(
            f"step 1: {reason}, although no weight has been updated yet; expected finite numbers; "
            "possible causes: initial weights that are too large, or numbers too large for the "
            "type of --mixed_precision"
        )
    raise _stopped(number, reason, writer)


def check_weights(
    strategy: tf.distribute.Strategy, model: keras.Model, step: int, writer: CheckpointWriter
) -> None:
    """Raises an InputError if a weight is not finite; warns if weights differ between workers.

    After the warning, the run continues and saves the weights of worker 0, but its results are no
    longer those of a run on a single device.
    """
    several, digest = num_workers(strategy) > 1, 0
    for variable in model.trainable_variables:
        values = keras.ops.convert_to_numpy(variable)
        if not np.isfinite(values).all():
            raise _stopped(step, f"{variable.path} has a weight that is not finite", writer)
        if several:
            digest = zlib.crc32(np.ascontiguousarray(values), digest)
    digests = gather(strategy, digest)
    others = [other for other, found in enumerate(digests) if found != digests[0]]
    if others:
        logging.warning(
            "step %d: the weights of workers %s differ from those of worker 0, which are saved; "
            "possible causes: machines of different kinds, or a hardware or network fault",
            step,
            others,
        )


def _stopped(step: int, reason: str, writer: CheckpointWriter) -> InputError:
    writer.close()  # A checkpoint may still be in progress.
    kept = list_checkpoints(writer.directory)
    return InputError(
        f"step {step}: {reason}; training stopped; last good checkpoint: "
        f"{kept[-1] if kept else 'none'}; a lower --learning_rate or a longer warm-up may help"
    )
