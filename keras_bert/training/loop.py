"""The one training loop: a model, a task and data by step in; trained weights out.

    restore newest checkpoint -> batches from that step on -> [steps -> figures -> evaluation,
    checkpoint] until num_train_steps, or until evaluations stop getting better

Step N's batch is a function of (seed, N), so a run that was killed at any point goes on to the
same weights, bit for bit on one kind of CPU. Told to stop by SIGTERM, it saves and ends; an
evaluation that it gave up for that comes first when it goes on.

Of several workers all do the same steps and evaluations; worker 0 alone writes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.optimization.loss_scale import LossScale
from keras_bert.training.backend import make_train_steps
from keras_bert.training.best import BestKept
from keras_bert.training.checkpoint import CheckpointWriter, restore_latest
from keras_bert.training.cluster import all_sum, worker_index
from keras_bert.training.distribute import distribute
from keras_bert.training.guards import check_same_start, check_weights, stop_if_not_finite
from keras_bert.training.objective import AfterBatch, Objective
from keras_bert.training.stopping import Stopping
from keras_bert.training.summaries import EVALUATION, Summaries, read_evaluations


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how a run trains.

    Attributes:
        num_train_steps: optimizer steps in all.
        train_batch_size: examples a step, over all devices and micro-batches.
        gradient_accumulation_steps: micro-batches a step on each device.
        batch_ramp_steps: steps over which the micro-batches of a step grow from one to that
            number (training/ramp.py); 0 for all of them from the start.
        max_grad_norm: global norm that gradients are clipped to.
        jit_compile: compile forward and backward with XLA.
        gradient_checkpointing: keep only what goes into each block and run the blocks twice.
        log_steps: steps between two lines of figures.
        save_checkpoints_steps: steps between two checkpoints.
        evaluate_steps: steps between two evaluations, each with a checkpoint; 0 for evaluations
            at the other checkpoints.
        keep_checkpoint_max: checkpoints kept.
        steps_per_loop: steps run without a return to Python, at most (stopping.py).
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


def train(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    task: Objective,
    batches_from: Callable[[int], tf.data.Dataset],
    settings: TrainingSettings,
    output_dir: Path,
    evaluate: Callable[[AfterBatch], Mapping[str, float]] | None = None,
    best: BestKept | None = None,
    loss_scale: LossScale | None = None,
) -> Mapping[str, float] | None:
    """Trains a model from its newest checkpoint, or its present weights, to the last step.

    Args:
        strategy: the strategy that the model and the optimizer were made under.
        model: the model; it has the trained weights afterwards.
        optimizer: an optimizer built on the model's trainable variables.
        task: the sums to descend and to report.
        batches_from: step -> endless dataset of batches, the first for that step: global ones, or
            this worker's rows of them (distribute.py).
        settings: how long and how.
        output_dir: the run's folder; gets checkpoints/, tensorboard/ and metrics.jsonl.
        evaluate: gives the figures of an evaluation, and calls what it is given after each batch;
            called before each checkpoint, or each `evaluate_steps`.
        best: what happens to the best weights, and when evaluations end the run.
        loss_scale: for float16, made of the optimizer; steps that overflow are skipped.

    Returns:
        The figures of the last evaluation; None if there was none.

    Raises:
        InputError: a loss, gradient or weight is not finite (a gradient: at a loss scale of 1);
            the last checkpoint is kept.
        EndedEarly: the run was told to stop, and has saved.
    """
    checkpoints = output_dir / "checkpoints"
    with strategy.scope():
        step = restore_latest(checkpoints, model, optimizer)
    evaluations = read_evaluations(output_dir, step)
    check_same_start(strategy, step, evaluations, output_dir)
    if step:
        logging.info("continuing from step %d (%s)", step, checkpoints)
    evaluates = evaluate is not None and _evaluates_at(step, settings)
    owes_evaluation = evaluates and step not in [each["step"] for each in evaluations]

    def has_ended() -> bool:
        return step >= settings.num_train_steps or bool(best and best.has_stopped(evaluations))

    if has_ended() and not owes_evaluation:
        return None
    train_steps = make_train_steps(
        strategy,
        model,
        optimizer,
        task,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        max_grad_norm=settings.max_grad_norm,
        jit_compile=settings.jit_compile,
        gradient_checkpointing=settings.gradient_checkpointing,
        loss_scale=loss_scale,
    )
    iterator = iter(distribute(strategy, batches_from(step), endless=True))
    is_chief = worker_index(strategy) == 0
    summaries = Summaries(output_dir, step, settings.num_train_steps, silent=not is_chief)
    writer = CheckpointWriter(checkpoints, settings.keep_checkpoint_max)
    stopping = Stopping(strategy, settings.steps_per_loop)
    evaluated = None
    window = _Window(task, has_loss_scale=loss_scale is not None)

    def evaluate_now() -> bool:
        """Returns whether the evaluation was finished: the run may be told to stop."""
        nonlocal evaluated
        figures = stopping.evaluate(evaluate)
        if figures is None:
            return False
        evaluated = figures
        evaluations.append({"step": step, **figures})
        if best and is_chief and best.step_of_best(evaluations) == step:
            best.save()
        summaries.write(step, figures, prefix=EVALUATION)
        if best and best.has_stopped(evaluations):
            logging.info(
                "step %d: %s no better for %d evaluations; training ends here",
                step,
                best.figure,
                best.patience,
            )
        return True

    told_to_stop = False
    try:
        with stopping.on_sigterm():
            if owes_evaluation:
                told_to_stop = not evaluate_now()
            while not (told_to_stop or has_ended()):
                count = min(stopping.steps_a_call, _steps_to_next_event(step, settings))
                start = time.monotonic()
                # An array: TensorFlow would trace a program for each int.
                rows = np.asarray(train_steps(iterator, np.array(count, np.int32)))
                told_to_stop = stopping.agree(count, time.monotonic() - start)
                stop_if_not_finite(rows, step, task, writer)
                step += count
                window.add(rows)
                summaries.advance(count)
                writer.check()
                done = step == settings.num_train_steps
                evaluates = evaluate is not None and _evaluates_at(step, settings)
                if done or evaluates or told_to_stop or step % settings.log_steps == 0:
                    summaries.write(step, window.close())
                saves = done or evaluates or step % settings.save_checkpoints_steps == 0
                if saves or told_to_stop:
                    check_weights(strategy, model, step, writer)
                    # Before the checkpoint, so that a kill in between evaluates again.
                    if evaluates and not told_to_stop:
                        told_to_stop = not evaluate_now()
                    if is_chief:
                        writer.save(step, model, optimizer)
                    window.restart_clock()
            writer.wait()
            all_sum(strategy)(np.zeros([1]))  # What worker 0 wrote is there for all.
    finally:
        writer.close()
        summaries.close()
    if told_to_stop:
        raise EndedEarly(f"told to stop after step {step}, which is saved")
    return evaluated


def check_batch_sizes(
    strategy: tf.distribute.Strategy, settings: TrainingSettings, eval_batch_size: int
) -> None:
    """Checks that every device and micro-batch gets as many examples as every other.

    A ramp needs micro-batches to grow by.

    Args:
        strategy: the devices.
        settings: the batch size and the micro-batches of training.
        eval_batch_size: examples a batch of an evaluation.

    Raises:
        InputError: a batch does not divide, or there is a ramp without micro-batches.
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
            f"--train_batch_size={settings.train_batch_size} does not divide by {devices} devices "
            f"x {settings.gradient_accumulation_steps} micro-batches"
        )
    if eval_batch_size % devices:
        raise InputError(
            f"--eval_batch_size={eval_batch_size} does not divide by {devices} devices"
        )


def _evaluates_at(step: int, settings: TrainingSettings) -> bool:
    every = settings.evaluate_steps or settings.save_checkpoints_steps
    return step > 0 and (step == settings.num_train_steps or step % every == 0)


def _steps_to_next_event(step: int, settings: TrainingSettings) -> int:
    ends = [settings.num_train_steps]
    ends += [
        (step // every + 1) * every
        for every in (settings.log_steps, settings.save_checkpoints_steps, settings.evaluate_steps)
        if every
    ]
    return min(settings.steps_per_loop, min(ends) - step)


class _Window:
    """Sums the rows between two logged steps, and the time that they took."""

    def __init__(self, task: Objective, has_loss_scale: bool = False):
        self._task = task
        self._has_loss_scale = has_loss_scale
        self._rows: list[np.ndarray] = []
        self._timed: list[np.ndarray] = []
        self._seconds = 0.0
        self._has_compiled = False
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leaves out the time since the last `add`: a checkpoint or an evaluation."""
        self._since = time.monotonic()

    def add(self, rows: np.ndarray) -> None:
        self._rows.append(rows)
        if self._has_compiled:  # The first rows come with the compilation: they say no rate.
            self._timed.append(rows)
            self._seconds += time.monotonic() - self._since
        self._has_compiled = True
        self.restart_clock()

    def close(self) -> dict[str, float]:
        rows = np.concatenate(self._rows).astype(np.float64)
        count = len(self._task.figures)
        # Steps that were skipped may have no finite loss, or no finite norm.
        known = rows[np.isfinite(rows[:, :count]).all(axis=1)]
        sums = known.sum(axis=0)
        figures = self._task.divide(sums[:count], sums[count : 2 * count]) if len(known) else {}
        figures["learning_rate"] = rows[-1, -1]
        norms = rows[np.isfinite(rows[:, -2]), -2]
        if len(norms):
            figures["gradient_norm"] = norms[-1]
        if self._has_loss_scale:
            figures["loss_scale"] = rows[-1, -3]
        if self._timed:
            timed = np.concatenate(self._timed)
            figures |= {
                "examples_per_second": timed[:, 2 * count + 1].sum() / self._seconds,
                "tokens_per_second": timed[:, 2 * count].sum() / self._seconds,
            }
        self._rows, self._timed, self._seconds = [], [], 0.0
        return figures
