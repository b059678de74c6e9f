"""Trains a model: the loop of the programs and of `fit`.

Loop      takes steps
RunLoop   the programs: files, checkpoints, the best weights, signals, several workers
FitLoop   `fit`: Keras callbacks

A run of a program resumes from its newest checkpoint. It trains, logs, evaluates and saves
checkpoints until `num_train_steps`, or until evaluations stop improving. All workers run the same
steps, but only worker 0 writes. The batch of step N is a function of (seed, N), so a run that was
killed at any point resumes and ends with the same weights, bit for bit on the same kind of CPU. On
SIGTERM or Ctrl-C the run saves a checkpoint and ends (`Stopping`); when it resumes, it repeats an
interrupted evaluation.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import EndedEarly, InputError
from keras_bert.startup import INTERRUPTED, is_python_handler
from keras_bert.training.backend import BACKEND, make_train_steps
from keras_bert.training.checkpoint import CheckpointWriter, list_checkpoints, restore_latest
from keras_bert.training.cluster import all_sum, gather, num_workers, worker_index
from keras_bert.training.log import BOARD, EVALUATION, Summaries, read_evaluations
from keras_bert.training.objective import (
    AfterBatch,
    Objective,
    StepMetrics,
    StepWindow,
    TrainingRun,
    TrainingSettings,
    TrainState,
)
from keras_bert.training.strategy import distribute
from keras_bert.training.throughput import peak_flops, peak_memory

# {"step": ..., metric: value} of each evaluation, in the order of steps.
Evaluations = Sequence[Mapping[str, float]]

# The time between two agreements of the workers; long enough that the cost of returning to Python
# is negligible.
SECONDS_PER_CALL = 2.0
# JAX waits for the device once 32 steps have been started, and two calls are running at a time.
_JAX_STEPS_PER_CALL = 16


# --- evaluation ---


@dataclass(frozen=True)
class BestWeights:
    """Saves the best weights of a run and stops a run that no longer improves.

    An evaluation is better than another if its metric is higher, or if the metrics are equal and
    its loss is lower. Not every task has a loss. Of equal evaluations, the last one has the best
    weights. All decisions depend only on the evaluations in metrics.jsonl and on the step of the
    saved weights, so a resumed run makes the same decisions.

    Attributes:
        metric: the name of the metric to compare.
        save: a function that takes the current step, and saves it with the current weights.
        read_step: a function that returns the step of the saved weights; None if no weights are
            saved, or if an earlier version of this library saved them without a step.
        patience: the number of evaluations that are not better than all earlier ones after which
            training stops; 0 disables early stopping.
    """

    metric: str
    save: Callable[[int], None]
    read_step: Callable[[], int | None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the best evaluation, the last on ties; None if there are none."""
        return int(max(reversed(evaluations), key=self._rank)["step"]) if evaluations else None

    def step_of_saved(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the saved weights, or `step_of_best` if that is unknown.

        The two steps differ if the run was killed after it had saved weights, and the resumed run
        got a lower value at their step than at an earlier one, whose weights are lost.
        """
        step = self.read_step()
        return self.step_of_best(evaluations) if step is None else step

    def save_if_better(self, evaluations: Evaluations) -> None:
        """Saves the current weights, unless the evaluation of the saved ones was better.

        The last of `evaluations` is that of the current weights. Saved weights of the same step
        are always replaced, because they are from an earlier attempt at this step. Saved weights of
        a step without an evaluation are replaced, too.
        """
        *earlier, last = evaluations
        step, saved = int(last["step"]), self.step_of_saved(earlier)
        compared = [each for each in earlier if each["step"] == saved and saved != step]
        if self.step_of_best([*compared, last]) == step:
            self.save(step)

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether the last `patience` evaluations are not better than all earlier ones.

        The result is False if `patience` is 0, or if there are no evaluations.
        """
        if not self.patience or not evaluations:
            return False
        ranks = [self._rank(evaluation) for evaluation in evaluations]
        return len(ranks) - 1 - ranks.index(max(ranks)) >= self.patience

    def _rank(self, evaluation: Mapping[str, float]) -> tuple[float, float]:
        """Returns a pair that is greater for a better evaluation; NaN is worse than all numbers."""
        values = float(evaluation[self.metric]), -float(evaluation.get("loss", math.nan))
        return tuple(-math.inf if math.isnan(value) else value for value in values)


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a run, and the selection of the run's best weights.

    `evaluate` returns {metric: value}, and calls its argument after each batch. `best` saves the
    best weights and stops the run early; None for neither.
    """

    evaluate: Callable[[AfterBatch], Mapping[str, float]]
    best: BestWeights | None = None


# --- loop ---


def train(
    run: TrainingRun,
    state: TrainState,
    batches_from: Callable[[int], tf.data.Dataset],
    evaluation: Evaluation | None = None,
) -> tuple[Mapping[str, float] | None, Mapping[str, float]]:
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
        {metric: value} of the evaluation after the last step, None if there is none; and
        {metric: value} of the throughput and memory, for results.json. The latter is empty if the
        peak rate of the devices is unknown, so that results do not differ between runs on CPUs.

    Raises:
        InputError: a loss, gradient or weight is not finite. With loss scaling, a gradient that is
            not finite is an error only at a scale of 1. The last checkpoint is kept.
        EndedEarly: the run received SIGTERM; its state is saved.
        KeyboardInterrupt: Ctrl-C stopped the run; its state is saved; the message has the step.
    """
    loop = RunLoop(run, state, evaluation)
    if loop.is_complete and not loop.evaluation_is_due:
        return loop.metrics, {}
    if loop.train(batches_from):
        part = f" of {run.output_dir.name}" if run.is_part else ""
        state = f"after step {loop.step}{part}; the checkpoint is saved"
        if loop.interrupted:
            raise KeyboardInterrupt(f"stopped {state}")
        raise EndedEarly(f"stopped by SIGTERM {state}")
    return loop.metrics, loop.performance


class Loop:
    """Takes training steps; subclasses report them, evaluate, save and stop.

    `step` is the number of steps whose metrics are known, and `started` the number of steps that
    the device has run or still has to run.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, state: TrainState, training: TrainingSettings
    ):
        self.strategy, self.state, self.training = strategy, state, training
        self.step = self.started = 0

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.training.num_train_steps

    def take_steps(
        self,
        train_steps: Callable[..., StepMetrics],
        batches_from: Callable[[int], tf.data.Dataset],
    ) -> None:
        """Trains to the end; the arguments are those of `make_train_steps` and `train`."""
        batches = distribute(self.strategy, batches_from(self.step), endless=True)
        iterator = iter(batches)
        self.begin()
        self.started = self.step

        def start() -> StepMetrics:
            count = self.steps_of_call()
            self.started += count
            # An array, because TensorFlow would trace the function again for each Python int.
            return train_steps(iterator, np.array(count, np.int32))

        running = None
        while running or not self.is_complete:
            with self.during_call():
                current = running or start()
                # The device has work while this process reports the metrics of the current steps.
                running = start() if self.starts_next_call() else None
                metrics = current.numpy()
            self.after_call(metrics)

    def begin(self) -> None:
        """Runs before the first step."""

    def steps_of_call(self) -> int:
        """Returns the number of steps to take without a return to Python."""
        return 1

    def starts_next_call(self) -> bool:
        """Returns whether to start more steps before the metrics of those started are known."""
        return False

    def during_call(self) -> contextlib.AbstractContextManager[None]:
        """Returns the context in which steps are taken."""
        return contextlib.nullcontext()

    def after_call(self, metrics: StepMetrics) -> None:
        """Adds the steps to `step` and reports their metrics."""
        raise NotImplementedError


class RunLoop(Loop):
    """One call of `train`."""

    def __init__(self, run: TrainingRun, state: TrainState, evaluation: Evaluation | None):
        super().__init__(run.strategy, state, run.training)
        self._output_dir, self._evaluation = run.output_dir, evaluation
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
        self.performance: Mapping[str, float] = {}
        if self._evaluations:
            self.metrics = {n: v for n, v in self._evaluations[-1].items() if n != "step"}
        self._is_chief = worker_index(run.strategy) == 0
        self._stopping = Stopping(run.strategy, run.training.steps_per_loop)
        self._stop_requested = False

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done, evaluations stopped improving, or a signal came."""
        if self._stop_requested or super().is_complete:
            return True
        return bool(self._best and self._best.has_stopped(self._evaluations))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped the run."""
        return self._stopping.interrupted

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the evaluation at the current step was interrupted and must be repeated."""
        evaluated = [each["step"] for each in self._evaluations]
        return self._evaluates_at(self.step) and self.step not in evaluated

    def train(self, batches_from: Callable[[int], tf.data.Dataset]) -> bool:
        """Trains to the end; returns whether a signal stopped the run."""
        train_steps = make_train_steps(self.strategy, self.state, self.training)
        last = self.training.num_train_steps
        self._summaries = Summaries(self._output_dir, self.step, last, silent=not self._is_chief)
        self._writer = CheckpointWriter(self._checkpoints, self.training.keep_checkpoint_max)
        has_loss_scale = self.state.loss_scale is not None
        devices = getattr(self.strategy, "num_devices", self.strategy.num_replicas_in_sync)
        peak = peak_flops(self.training.peak_tflops, devices)
        self._window = StepWindow(self.state.objective, has_loss_scale, peak)
        try:
            with self._stopping.on_signals():
                self.take_steps(train_steps, batches_from)
                self._writer.wait()
                all_sum(self.strategy)(np.zeros([1]))  # Waits for the files of worker 0.
        finally:
            self._writer.close()
            self._summaries.close()
        self._report_performance(peak)
        return self._stop_requested or self._stopping.unanswered

    def _report_performance(self, peak: float) -> None:
        performance, memory = self._window.throughput.of_run(), peak_memory()
        if memory:
            performance["peak_memory_gb"] = memory / 1e9
        if performance and self._is_chief:
            values = " ".join(f"{name}={value:.4g}" for name, value in performance.items())
            logging.info("Training throughput: %s", values)
        self.performance = performance if peak or memory else {}

    def begin(self) -> None:
        """Repeats an interrupted evaluation."""
        if self.evaluation_is_due:
            self._evaluate()

    def steps_of_call(self) -> int:
        """Returns the number of steps up to the next log line, evaluation or checkpoint at most."""
        count = _steps_to_next_event(self.started, self.training)
        count = min(count, _JAX_STEPS_PER_CALL) if BACKEND == "jax" else count
        return min(count, self._stopping.steps_per_call)

    def starts_next_call(self) -> bool:
        """Returns whether no checkpoint or evaluation needs the weights as they are now.

        Only JAX returns before steps have run.
        """
        if BACKEND != "jax" or self._stop_requested or self._evaluates_at(self.started):
            return False
        training, step = self.training, self.started
        return step < training.num_train_steps and step % training.save_checkpoints_steps != 0

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Shows progress while steps are taken, and measures their time."""
        start = time.monotonic()
        with self._summaries.during_steps():
            yield
        self._seconds = time.monotonic() - start

    def after_call(self, metrics: StepMetrics) -> None:
        """Logs, evaluates and saves a checkpoint, each if it is due."""
        count = len(metrics.examples)
        self._stop_requested = self._stopping.agree(count, self._seconds)
        stop_if_not_finite(metrics, self.step, self.state.objective, self._writer)
        self.step += count
        self._window.add(metrics)
        self._summaries.advance(count)
        self._writer.check()
        training, step = self.training, self.step
        evaluates = self._evaluates_at(step)
        must_stop = self._stop_requested and step == self.started
        must_save = step == training.num_train_steps or evaluates or must_stop
        if must_save or step % training.log_steps == 0:
            self._summaries.write(step, self._window.close())
        if not (must_save or step % training.save_checkpoints_steps == 0):
            return
        check_weights(self.strategy, self.state.model, step, self._writer)
        # The checkpoint is saved afterwards, so a run killed during the evaluation repeats it.
        if evaluates and not self._stop_requested:
            self._evaluate()
        if self._is_chief:
            self._writer.save(step, self.state.model, self.state.optimizer)
        self._window.throughput.restart_clock()

    def _evaluates_at(self, step: int) -> bool:
        if self._evaluation is None or not step:
            return False
        every = self.training.evaluate_steps or self.training.save_checkpoints_steps
        return step == self.training.num_train_steps or step % every == 0

    def _evaluate(self) -> None:
        """Evaluates; the evaluation does not count if a signal interrupts it."""
        metrics = self._stopping.evaluate(self._evaluation.evaluate)
        if metrics is None:
            self._stop_requested = True
            return
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


def _steps_to_next_event(step: int, settings: TrainingSettings) -> int:
    ends = [settings.num_train_steps]
    ends += [
        (step // every + 1) * every
        for every in (settings.log_steps, settings.save_checkpoints_steps, settings.evaluate_steps)
        if every
    ]
    return min(settings.steps_per_loop, min(ends) - step)


# --- Keras callbacks ---


class FitLoop(Loop):
    """Calls Keras callbacks before and after each step and epoch, as `keras.Model.fit` does.

    Args:
        strategy: the strategy of one device.
        state: the model, its new optimizer and the objective.
        training: the number of steps, and their settings.
        epoch_steps: the number of steps in an epoch.
        evaluate: returns {metric: value} after each epoch, which the callbacks get as `val_METRIC`;
            None to never evaluate.
        callbacks: the callbacks with their model, whose `stop_training` ends the training.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        training: TrainingSettings,
        epoch_steps: int,
        evaluate: Callable[[], Mapping[str, float]] | None,
        callbacks: keras.callbacks.CallbackList,
    ):
        super().__init__(strategy, state, training)
        self._epoch_steps, self._evaluate, self._callbacks = epoch_steps, evaluate, callbacks
        self._logs: dict[str, float] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done, or a callback has stopped the training."""
        return super().is_complete or self._callbacks.model.stop_training

    def train(
        self,
        train_steps: Callable[..., StepMetrics],
        batches_from: Callable[[int], tf.data.Dataset],
    ) -> None:
        """Trains to the end; the arguments are those of `take_steps`."""
        self._callbacks.model.stop_training = False
        self._callbacks.on_train_begin()
        self.take_steps(train_steps, batches_from)
        self._callbacks.on_train_end(self._logs)

    def during_call(self) -> contextlib.AbstractContextManager[None]:
        """Begins the step, and at its first step the epoch."""
        epoch, index = divmod(self.step, self._epoch_steps)
        if not index:
            self._totals = np.zeros([2, len(self.state.objective.metrics)])
            self._callbacks.on_epoch_begin(epoch)
        self._callbacks.on_train_batch_begin(index)
        return contextlib.nullcontext()

    def after_call(self, metrics: StepMetrics) -> None:
        """Ends the step, and after its last step the epoch; the metrics are those of the epoch."""
        epoch, index = divmod(self.step, self._epoch_steps)
        objective, model = self.state.objective, self._callbacks.model
        is_skipped = metrics.loss_scale[0] > 1 and not np.isfinite(metrics.gradient_norm[0])
        if not is_skipped:
            self._totals += [metrics.sums[0], metrics.weights[0]]
        self._logs = objective.divide(*self._totals)
        self._callbacks.on_train_batch_end(index, dict(self._logs))
        if not model.stop_training:
            stop_if_not_finite(metrics, self.step, objective)
        self.step += 1
        if index + 1 == self._epoch_steps or model.stop_training:
            if self._evaluate:
                values = self._evaluate()
                self._logs |= {f"val_{name}": float(value) for name, value in values.items()}
            self._callbacks.on_epoch_end(epoch, self._logs)


# --- stopping ---


class Stopping:
    """Stops all workers after the same step or evaluation batch when one of them gets SIGTERM.

    A machine that is about to be preempted sends SIGTERM to one or all workers. Approximately every
    SECONDS_PER_CALL seconds, the workers agree on whether to stop: between two calls of the
    function that runs training steps, or between two batches of an evaluation. Ctrl-C stops a
    single worker in the same way; with several workers, it ends the worker at once.

    `max_steps` is the maximum number of training steps in one call; the workers decide after each
    call.
    """

    def __init__(self, strategy: tf.distribute.Strategy, max_steps: int):
        self._sum = all_sum(strategy)
        self._workers = num_workers(strategy)
        self._received: set[int] = set()
        self._steps = _Pace(max_steps)
        self._batches = _Pace()
        self._batches_done = 0
        self._last_agreement = 0.0

    @property
    def steps_per_call(self) -> int:
        """The maximum number of training steps in the next call."""
        return self._steps.count

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C requested the stop."""
        return signal.SIGINT in self._received

    @property
    def unanswered(self) -> bool:
        """Whether a signal asks the only worker to stop, although `agree` may not know it yet."""
        return self._workers == 1 and bool(self._received)

    def agree(self, steps: int, seconds: float) -> bool:
        """Returns whether any worker must stop, and updates `steps_per_call`.

        `steps` is the number of steps in the last call, and `seconds` the time that it took.
        """
        return self._agree(self._steps, steps, seconds)

    def evaluate(
        self, evaluation: Callable[[AfterBatch], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """Runs an evaluation; returns None if it was interrupted because a worker must stop.

        `evaluation` must call its argument after each batch, equally often on all workers.
        """
        self._batches_done, self._last_agreement = 0, time.monotonic()
        try:
            return evaluation(self._after_batch)
        except _StopRequested:
            return None

    def _after_batch(self) -> None:
        self._batches_done += 1
        if self._batches_done < self._batches.count and self._workers > 1:
            return
        seconds = time.monotonic() - self._last_agreement
        stop_requested = self._agree(self._batches, self._batches_done, seconds)
        self._batches_done, self._last_agreement = 0, time.monotonic()
        if stop_requested:
            raise _StopRequested

    def _agree(self, pace: "_Pace", units: int, seconds: float) -> bool:
        requests, total_seconds = self._sum(
            np.array([bool(self._received), seconds / units], np.float32)
        )
        pace.learn(float(total_seconds) / self._workers)
        return bool(requests > 0)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handles SIGTERM and Ctrl-C during the block as requests to stop.

        A second Ctrl-C ends the process at once. With several workers, or if SIGINT has a handler
        that is neither Python's nor of this package, Ctrl-C is not handled.
        """
        if threading.current_thread() is not threading.main_thread():  # Required by signal.
            yield
            return
        handled = {signal.SIGTERM}
        if self._workers == 1 and is_python_handler(signal.getsignal(signal.SIGINT)):
            handled.add(signal.SIGINT)
        # Python runs handlers only between two operations of the main thread, and compilation is
        # one operation. The thread sees a signal immediately.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(reader, handled), daemon=True)
        thread.start()
        before = {
            number: signal.signal(number, lambda number, frame: self._received.add(number))
            for number in handled
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.write(writer, b"\0")  # Ends the thread, after all signals before.
            thread.join()
            os.close(writer)
            os.close(reader)

    def _watch(self, reader: int, handled: set[int]) -> None:
        interrupts = 0
        while number := os.read(reader, 1)[0]:
            if number not in handled:
                continue
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                line = f"{os.path.basename(sys.argv[0])}: interrupted: unsaved work is lost\n"
                with contextlib.suppress(OSError):
                    os.write(2, os.fsencode(line))
                os._exit(INTERRUPTED)
            self._received.add(number)
            again = "; press Ctrl-C again to stop without it"
            logging.info(
                "%s: saving a checkpoint after the current step or evaluation batch%s",
                *(("Ctrl-C", again) if number == signal.SIGINT else ("SIGTERM", "")),
            )


class _Pace:
    """Chooses a number of steps or batches between agreements that takes SECONDS_PER_CALL."""

    def __init__(self, max_count: int = 1_000_000):
        self.count = 1  # The duration of a step or batch is not known yet.
        self._max_count = max_count
        self._has_compiled = False

    def learn(self, seconds_per_unit: float) -> None:
        """Updates `count` from the time per step or batch; ignores the first call (compilation)."""
        if self._has_compiled:
            units_per_call = int(SECONDS_PER_CALL / max(seconds_per_unit, 1e-9))
            self.count = max(1, min(self._max_count, units_per_call))
        self._has_compiled = True


class _StopRequested(Exception):
    """Raised within an evaluation to interrupt it."""


# --- checks ---


def check_same_start(
    strategy: tf.distribute.Strategy,
    step: int,
    evaluations: Sequence[Mapping[str, float]],
    output_dir: Path,
) -> None:
    """Raises an InputError unless all workers found the same checkpoint and evaluations."""
    starts = gather(strategy, [step, len(evaluations)])
    if any(start != starts[0] for start in starts):
        steps, counts = zip(*starts, strict=True)
        raise InputError(
            f"{output_dir}: the workers found checkpoints of steps {[*steps]} and {[*counts]} "
            "evaluations; expected --output_dir to be one folder that all workers share"
        )


def stop_if_not_finite(
    metrics: StepMetrics, step: int, objective: Objective, writer: CheckpointWriter | None = None
) -> None:
    """Raises an InputError if a loss or gradient of the steps after `step` is not finite.

    `writer` writes the checkpoints of a run; None for `fit`, which has none.
    """
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
        dtype = "the type of --mixed_precision" if writer else "the dtype of the model"
        raise InputError(
            f"step 1: {reason}, although no weight has been updated yet; expected finite numbers; "
            "possible causes: initial weights that are too large, or numbers too large for "
            f"{dtype}"
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
    different = [worker for worker, value in enumerate(digests) if value != digests[0]]
    if different:
        logging.warning(
            "step %d: the weights of workers %s differ from those of worker 0, which are saved; "
            "possible causes: machines of different kinds, or a hardware or network fault",
            step,
            different,
        )


def _stopped(step: int, reason: str, writer: CheckpointWriter | None) -> InputError:
    stopped, rate = f"step {step}: {reason}; training stopped; ", "learning_rate"
    if writer:
        writer.close()  # A checkpoint may still be in progress.
        checkpoints = list_checkpoints(writer.directory)
        stopped += f"last good checkpoint: {checkpoints[-1] if checkpoints else 'none'}; "
        rate = "--learning_rate"
    return InputError(f"{stopped}a lower {rate} or a longer warm-up may help")
