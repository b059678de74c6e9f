"""Trains a model, resuming from its newest checkpoint.

The loop trains, logs, evaluates and saves checkpoints until `num_train_steps`, or until evaluations
stop improving. All workers run the same steps, but only worker 0 writes.

The batch of step N is a function of (seed, N), so a run that was killed at any point resumes and
ends with the same weights, bit for bit on the same kind of CPU. On SIGTERM or Ctrl-C the run
saves a checkpoint and ends (stopping.py); when it resumes, it repeats an interrupted evaluation.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import EndedEarly
from keras_bert.training.backend import make_train_steps
from keras_bert.training.best import BestWeights
from keras_bert.training.checkpoint import CheckpointWriter, restore_latest
from keras_bert.training.cluster import all_sum, worker_index
from keras_bert.training.consistency_checks import (
    check_same_start,
    check_weights,
    stop_if_not_finite,
)
from keras_bert.training.metrics import BOARD
from keras_bert.training.objective import AfterBatch, StepWindow, TrainState
from keras_bert.training.run import TrainingRun, TrainingSettings
from keras_bert.training.stopping import Stopping
from keras_bert.training.strategy import distribute
from keras_bert.training.summaries import EVALUATION, Summaries, read_evaluations


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a run, and the selection of the run's best weights.

    `evaluate` returns {metric: value}, and calls its argument after each batch. `best` saves the
    best weights and stops the run early; None for neither.
    """

    evaluate: Callable[[AfterBatch], Mapping[str, float]]
    best: BestWeights | None = None


def train(
    run: TrainingRun,
    state: TrainState,
    batches_from: Callable[[int], tf.data.Dataset],
    evaluation: Evaluation | None = None,
) -> Mapping[str, float] | None:
    """Trains a model to the last step, from its newest checkpoint or else from its current weights.

    Args:
        run: the settings, devices and run directory.
        state: the model, which has the trained weights afterwards, and its optimizer.
        batches_from: a function of the number of completed steps that returns the infinite dataset
            of the batches to train on next. Batches contain this worker's rows of the global
            batches.
        evaluation: the evaluation to run every `evaluate_steps` steps (if 0, before each
            checkpoint) and after the last step; None to never evaluate.

    Returns:
        {metric: value} of the evaluation after the last step; None if there is none.

    Raises:
        InputError: a loss, gradient or weight is not finite. With loss scaling, a gradient that is
            not finite is an error only at a scale of 1. The last checkpoint is kept.
        EndedEarly: the run received SIGTERM; its state is saved.
        KeyboardInterrupt: Ctrl-C stopped the run; its state is saved; the message has the step.
    """
    loop = _Loop(run, state, evaluation)
    if loop.is_complete and not loop.evaluation_is_due:
        return loop.metrics
    if loop.train(batches_from):
        part = f" of {run.output_dir.name}" if run.is_part else ""
        state = f"after step {loop.step}{part}; the checkpoint is saved"
        if loop.interrupted:
            raise KeyboardInterrupt(f"stopped {state}")
        raise EndedEarly(f"stopped by SIGTERM {state}")
    return loop.metrics


class _Loop:
    """One call of `train`; `step` is the number of completed steps."""

    def __init__(self, run: TrainingRun, state: TrainState, evaluation: Evaluation | None):
        self._training, self._strategy, self._output_dir = (
            run.training,
            run.strategy,
            run.output_dir,
        )
        self._state, self._evaluation = state, evaluation
        self._best = evaluation.best if evaluation else None
        self._checkpoints = run.output_dir / "checkpoints"
        with run.strategy.scope():
            self.step = restore_latest(self._checkpoints, state.model, state.optimizer)
        self._evaluations = read_evaluations(run.output_dir, self.step)
        check_same_start(run.strategy, self.step, self._evaluations, run.output_dir)
        if self.step:
            logging.info("Training resumed at step %d (%s)", self.step, self._checkpoints)
        elif (run.output_dir / BOARD).is_dir():
            logging.info("The interrupted run saved no checkpoint; training starts at step 0")
        self.metrics: Mapping[str, float] | None = None  # of the last evaluation
        if self._evaluations:
            self.metrics = {n: v for n, v in self._evaluations[-1].items() if n != "step"}
        self._is_chief = worker_index(run.strategy) == 0
        self._stopping = Stopping(run.strategy, run.training.steps_per_loop)

    @property
    def is_complete(self) -> bool:
        """True if all steps are done or the evaluations stopped improving."""
        if self.step >= self._training.num_train_steps:
            return True
        return bool(self._best and self._best.has_stopped(self._evaluations))

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C stopped the run."""
        return self._stopping.interrupted

    @property
    def evaluation_is_due(self) -> bool:
        """True if the evaluation at the current step was interrupted and must be repeated."""
        evaluated = [each["step"] for each in self._evaluations]
        return self._evaluates_now() and self.step not in evaluated

    def train(self, batches_from: Callable[[int], tf.data.Dataset]) -> bool:
        """Trains to the end; returns whether a signal stopped the run."""
        train_steps = make_train_steps(self._strategy, self._state, self._training)
        batches = distribute(self._strategy, batches_from(self.step), endless=True)
        last = self._training.num_train_steps
        self._summaries = Summaries(self._output_dir, self.step, last, silent=not self._is_chief)
        self._writer = CheckpointWriter(self._checkpoints, self._training.keep_checkpoint_max)
        has_loss_scale = self._state.loss_scale is not None
        self._window = StepWindow(self._state.objective, has_loss_scale)
        iterator, stop_requested = iter(batches), False
        try:
            with self._stopping.on_signals():
                if self.evaluation_is_due:
                    stop_requested = not self._evaluate()
                while not (stop_requested or self.is_complete):
                    stop_requested = self._take_steps(train_steps, iterator)
                    stop_requested = self._report_and_save(stop_requested)
                self._writer.wait()
                all_sum(self._strategy)(np.zeros([1]))  # Waits for the files of worker 0.
        finally:
            self._writer.close()
            self._summaries.close()
        return stop_requested or self._stopping.unanswered

    def _take_steps(self, train_steps: Callable, iterator: object) -> bool:
        """Runs steps, at most up to the next log line, evaluation or checkpoint.

        Returns whether the run must stop because of a signal.
        """
        count = _steps_to_next_event(self.step, self._training)
        count = min(self._stopping.steps_per_call, count)
        start = time.monotonic()
        # An array, because TensorFlow would trace the function again for each Python int.
        with self._summaries.during_steps():
            metrics = train_steps(iterator, np.array(count, np.int32)).numpy()
        stop_requested = self._stopping.agree(count, time.monotonic() - start)
        stop_if_not_finite(metrics, self.step, self._state.objective, self._writer)
        self.step += count
        self._window.add(metrics)
        self._summaries.advance(count)
        self._writer.check()
        return stop_requested

    def _report_and_save(self, stop_requested: bool) -> bool:
        """Logs, evaluates and saves a checkpoint, each if it is due at the current step.

        Returns whether the run must stop because of a signal.
        """
        training, step = self._training, self.step
        done, evaluates = step == training.num_train_steps, self._evaluates_now()
        if done or evaluates or stop_requested or step % training.log_steps == 0:
            self._summaries.write(step, self._window.close())
        if not (done or evaluates or stop_requested or step % training.save_checkpoints_steps == 0):
            return False
        check_weights(self._strategy, self._state.model, step, self._writer)
        # The checkpoint is saved afterwards, so a run killed during the evaluation repeats it.
        if evaluates and not stop_requested:
            stop_requested = not self._evaluate()
        if self._is_chief:
            self._writer.save(step, self._state.model, self._state.optimizer)
        self._window.restart_clock()
        return stop_requested

    def _evaluates_now(self) -> bool:
        if self._evaluation is None or not self.step:
            return False
        every = self._training.evaluate_steps or self._training.save_checkpoints_steps
        return self.step == self._training.num_train_steps or self.step % every == 0

    def _evaluate(self) -> bool:
        """Evaluates; returns False if a signal interrupted the evaluation."""
        metrics = self._stopping.evaluate(self._evaluation.evaluate)
        if metrics is None:
            return False
        self.metrics, step, best = metrics, self.step, self._best
        self._evaluations.append({"step": step, **metrics})
        if best and self._is_chief:
            best.save_if_better(self._evaluations)
        self._summaries.write(step, metrics, prefix=EVALUATION)
        if best and best.has_stopped(self._evaluations):
            logging.info(
                "step %d: %s has not improved for %d evaluations; training stops",
                step,
                best.metric,
                best.patience,
            )
        return True


def _steps_to_next_event(step: int, settings: TrainingSettings) -> int:
    ends = [settings.num_train_steps]
    ends += [
        (step // every + 1) * every
        for every in (settings.log_steps, settings.save_checkpoints_steps, settings.evaluate_steps)
        if every
    ]
    return min(settings.steps_per_loop, min(ends) - step)
