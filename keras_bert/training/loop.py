"""Trains a model: the loop of the programs and of `fit`.

take_steps            runs training steps; `train` and `train_with_callbacks` are built on it
train                 the programs: files, checkpoints, the best weights, signals, workers
train_with_callbacks  `fit`: Keras callbacks

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
import re
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import EndedEarly, InputError
from keras_bert.startup import INTERRUPTED, is_python_handler
from keras_bert.training.backend import BACKEND, make_train_steps
from keras_bert.training.checkpoint import CheckpointWriter, list_checkpoints, restore_latest
from keras_bert.training.cluster import all_sum, gather, num_workers, worker_index
from keras_bert.training.log import BOARD, RunLog, read_evaluations
from keras_bert.training.objective import (
    AfterBatch,
    Objective,
    StepMetrics,
    TrainingRun,
    TrainingSettings,
    TrainState,
)
from keras_bert.training.strategy import distribute

# {"step": ..., metric: value} of each evaluation, in the order of steps.
Evaluations = Sequence[Mapping[str, float]]

# The time between two agreements of the workers; long enough that the cost of returning to Python
# is negligible.
SECONDS_PER_CALL = 2.0
# JAX waits for the device once 32 steps have been started, and two calls are running at a time.
_JAX_STEPS_PER_CALL = 16


# --- evaluation ---


class BestWeights(NamedTuple):
    """Saves the best weights of a run and stops a run that no longer improves.

    An evaluation is better than another if its metric is higher, or if the metrics are equal and
    its loss is lower. Not every task has a loss. Of equal evaluations, the last one has the best
    weights. All decisions depend only on the evaluations in metrics.jsonl and on the step of the
    saved weights, so a resumed run makes the same decisions.

    Attributes:
        metric: the name of the metric to compare.
        save: a function that takes the current step, and saves it with the current weights.
        read_step: a function that returns the step of the saved weights; None if no weights are
            saved, or if version 0.2 saved them, without a step.
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
        got a lower value at their step than at an earlier one.
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
        """Returns whether the last `patience` evaluations are not better than all earlier ones."""
        if not self.patience or not evaluations:
            return False
        ranks = [self._rank(evaluation) for evaluation in evaluations]
        return len(ranks) - 1 - ranks.index(max(ranks)) >= self.patience

    def _rank(self, evaluation: Mapping[str, float]) -> tuple[float, float]:
        """Returns a pair that is greater for a better evaluation; NaN is worse than all numbers."""
        values = float(evaluation[self.metric]), -float(evaluation.get("loss", math.nan))
        return tuple(-math.inf if math.isnan(value) else value for value in values)


# --- loop ---


def take_steps(
    train_steps: Callable[..., StepMetrics],
    batches: Any,
    step: int,
    steps_of_call: Callable[[int], int],
    starts_ahead: Callable[[int], bool] = lambda step: False,
) -> Iterator[tuple[StepMetrics, bool]]:
    """Yields the metrics of each call of `train_steps`, and whether the next call is running.

    `batches` are the infinite batches after `step` steps. `steps_of_call` returns the number of
    steps to take without a return to Python. `starts_ahead` returns whether the next call starts
    before the metrics of the current one are known, so that the device has work while this process
    reports them. Both functions take the number of steps that have been started.
    """
    iterator, started = iter(batches), step

    def start() -> StepMetrics:
        nonlocal started
        count = steps_of_call(started)
        started += count
        # An array, because TensorFlow would trace the function again for each Python int.
        return train_steps(iterator, np.array(count, np.int32))

    running = None
    while True:
        current = running or start()
        running = start() if starts_ahead(started) else None
        yield current.numpy(), running is not None


def train(
    run: TrainingRun,
    state: TrainState,
    batches_from: Callable[[int], tf.data.Dataset],
    evaluate: Callable[[AfterBatch], Mapping[str, float]] | None = None,
    best: BestWeights | None = None,
    num_examples: int = 0,
) -> tuple[Mapping[str, float] | None, Mapping[str, float]]:
    """Trains a model to the last step, from its newest checkpoint or else from its current weights.

    Args:
        run: the settings, devices and run directory.
        state: the model, which has the trained weights afterwards, and its optimizer.
        batches_from: a function of the number of completed steps that returns the infinite dataset
            of the batches to train on next. Batches contain this worker's rows of the global
            batches.
        evaluate: returns {metric: value}, and calls its argument after each batch. It runs every
            `evaluate_steps` steps (if 0, before each checkpoint) and after the last step; None to
            never evaluate.
        best: saves the best weights and stops the run early; None for neither.
        num_examples: the number of training examples, for the log; 0 if it is unknown.

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
    training, strategy, output_dir = run.training, run.strategy, run.output_dir
    last, save_steps = training.num_train_steps, training.save_checkpoints_steps
    evaluate_steps = training.evaluate_steps or save_steps
    is_chief = worker_index(strategy) == 0

    # --- resume ---

    checkpoints = output_dir / "checkpoints"
    with strategy.scope():
        step = restore_latest(checkpoints, state.model, state.optimizer)
    evaluations = read_evaluations(output_dir, step)
    check_same_start(strategy, step, evaluations, output_dir)
    if step:
        logging.info("Training resumed at step %d (%s)", step, checkpoints)
    elif (output_dir / BOARD).is_dir():
        logging.info("The interrupted run saved no checkpoint; training starts at step 0")

    def evaluates_at(number: int) -> bool:
        return bool(evaluate and number and (number == last or number % evaluate_steps == 0))

    def is_complete() -> bool:
        return step >= last or bool(best and best.has_stopped(evaluations))

    def last_metrics() -> Mapping[str, float] | None:
        return {n: v for n, v in evaluations[-1].items() if n != "step"} if evaluations else None

    was_interrupted = evaluates_at(step) and step not in [each["step"] for each in evaluations]
    if is_complete() and not was_interrupted:
        return last_metrics(), {}

    # --- set up ---

    logging.info("%s", plan_of(training, num_examples))
    train_steps = make_train_steps(strategy, state, training)
    devices = getattr(strategy, "num_devices", strategy.num_replicas_in_sync)
    peak = peak_flops(training.peak_tflops, devices)
    trackers = {"report_to": training.report_to, "settings": run.record}
    log = RunLog(output_dir, state, step, last, peak, silent=not is_chief, **trackers)
    writer = CheckpointWriter(checkpoints, training.keep_checkpoint_max)
    stopping = Stopping(strategy, training.steps_per_loop)

    def evaluate_and_report() -> None:
        metrics = stopping.evaluate(evaluate)
        if metrics is None:  # It was interrupted; the resumed run repeats it.
            return
        evaluations.append({"step": step, **metrics})
        if best and is_chief:
            best.save_if_better(evaluations)
        log.write_evaluation(metrics)
        if best and best.has_stopped(evaluations):
            logging.info(
                "step %d: %s has not improved for %d evaluations; training stops",
                step,
                best.metric,
                best.patience,
            )

    def steps_of_call(started: int) -> int:
        count = min(_steps_to_next_event(started, training), stopping.steps_per_call)
        return min(count, _JAX_STEPS_PER_CALL) if BACKEND == "jax" else count

    def starts_ahead(started: int) -> bool:
        # Only JAX returns before steps have run. A checkpoint or an evaluation needs the weights
        # as they are.
        saves = evaluates_at(started) or started % save_steps == 0
        return BACKEND == "jax" and not (stopping.requested or saves or started >= last)

    try:
        with stopping.on_signals():
            batches = distribute(strategy, batches_from(step), endless=True)
            steps = take_steps(train_steps, batches, step, steps_of_call, starts_ahead)
            if was_interrupted:
                evaluate_and_report()
            is_running = False
            while is_running or not (stopping.requested or is_complete()):
                # --- train ---
                start = time.monotonic()
                with log.during_steps():
                    metrics, is_running = next(steps)
                count = len(metrics.examples)
                stopping.agree(count, time.monotonic() - start)
                stop_if_not_finite(metrics, step, state.objective, writer)
                step += count
                log.add(metrics)
                writer.check()

                # --- log ---
                ends = step == last or (stopping.requested and not is_running)
                must_save = ends or evaluates_at(step)
                if must_save or step % training.log_steps == 0:
                    log.write_steps()
                if not (must_save or step % save_steps == 0):
                    continue

                # --- evaluate ---
                check_weights(strategy, state.model, step, writer)
                # The checkpoint is saved afterwards, so a run killed in the evaluation repeats it.
                if evaluates_at(step) and not stopping.requested:
                    evaluate_and_report()

                # --- save ---
                if is_chief:
                    writer.save(step, state.model, state.optimizer)
                log.restart_clock()
            writer.wait()
            all_sum(strategy)(np.zeros([1]))  # Waits for the files of worker 0.
    finally:
        writer.close()
        log.close()

    # --- end ---

    performance, memory = log.rates(), peak_memory()
    if memory:
        performance["peak_memory_gb"] = memory / 1e9
    if performance and is_chief:
        values = " ".join(f"{name}={value:.4g}" for name, value in performance.items())
        logging.info("Training throughput: %s", values)
    if stopping.requested or stopping.unanswered:
        part = f" of {output_dir.name}" if run.is_part else ""
        reached = f"after step {step}{part}; the checkpoint is saved"
        if stopping.interrupted:
            raise KeyboardInterrupt(f"stopped {reached}")
        raise EndedEarly(f"stopped by SIGTERM {reached}")
    return last_metrics(), performance if peak or memory else {}


def plan_of(training: TrainingSettings, num_examples: int = 0) -> str:
    """Describes the steps of a training and, if the number of examples is known, its epochs."""
    steps, batch_size = training.num_train_steps, training.train_batch_size
    plan = f"Training: {steps:,} steps of {batch_size:,} examples"
    if num_examples:
        epochs = steps / -(-num_examples // batch_size)  # The last batch may be partial.
        plan += f", {epochs:.3g} epochs of {num_examples:,} examples"
    return plan


def _steps_to_next_event(step: int, settings: TrainingSettings) -> int:
    ends = [settings.num_train_steps]
    ends += [
        (step // every + 1) * every
        for every in (settings.log_steps, settings.save_checkpoints_steps, settings.evaluate_steps)
        if every
    ]
    return min(settings.steps_per_loop, min(ends) - step)


def train_with_callbacks(
    train_steps: Callable[..., StepMetrics],
    batches: tf.data.Dataset,
    objective: Objective,
    epoch_steps: int,
    evaluate: Callable[[], Mapping[str, float]] | None,
    callbacks: keras.callbacks.CallbackList,
    best: BestWeights | None = None,
    during_first_step: contextlib.AbstractContextManager[object] | None = None,
) -> None:
    """Trains for `fit` on one device, and calls Keras callbacks as `keras.Model.fit` does.

    `batches` are infinite. `evaluate` returns {metric: value} after each epoch, which the callbacks
    get as `val_METRIC`; None to never evaluate. `callbacks` have their model, whose `stop_training`
    ends the training, and the number of epochs. `best` saves the best weights, and
    `during_first_step` reports the compilation; None for neither.
    """
    model, logs = callbacks.model, {}
    evaluations: list[Mapping[str, float]] = []
    model.stop_training = False
    callbacks.on_train_begin()
    steps = take_steps(train_steps, batches, 0, lambda step: 1)
    for step in range(callbacks.params["epochs"] * epoch_steps):
        epoch, index = divmod(step, epoch_steps)
        if not index:
            totals = np.zeros([2, len(objective.metrics)])
            callbacks.on_epoch_begin(epoch)
        callbacks.on_train_batch_begin(index)
        with during_first_step if during_first_step and not step else contextlib.nullcontext():
            metrics, _ = next(steps)
        is_skipped = metrics.loss_scale[0] > 1 and not np.isfinite(metrics.gradient_norm[0])
        if not is_skipped:
            totals += [metrics.sums[0], metrics.weights[0]]
        logs = objective.divide(*totals)
        callbacks.on_train_batch_end(index, dict(logs))
        if not model.stop_training:
            stop_if_not_finite(metrics, step, objective)
        if index + 1 == epoch_steps or model.stop_training:
            values = evaluate() if evaluate else {}
            if best:
                evaluations.append({"step": step + 1, **values})
                best.save_if_better(evaluations)
            logs |= {f"val_{name}": float(value) for name, value in values.items()}
            callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    callbacks.on_train_end(logs)


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
        self.requested = False  # Whether the workers have agreed to stop.
        self._steps = _Pace(max_steps)
        self._batches = _Pace()

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

    def agree(self, steps: int, seconds: float) -> None:
        """Updates `requested` and `steps_per_call` after a call of `steps` steps in `seconds`."""
        self._agree(self._steps, steps, seconds)

    def evaluate(
        self, evaluation: Callable[[AfterBatch], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """Runs an evaluation; returns None if it was interrupted because a worker must stop.

        `evaluation` must call its argument after each batch, equally often on all workers.
        """
        count, start = 0, time.monotonic()

        def after_batch() -> None:
            nonlocal count, start
            count += 1
            if count < self._batches.count and self._workers > 1:
                return
            self._agree(self._batches, count, time.monotonic() - start)
            count, start = 0, time.monotonic()
            if self.requested:
                raise _StopRequested

        try:
            return evaluation(after_batch)
        except _StopRequested:
            return None

    def _agree(self, pace: "_Pace", units: int, seconds: float) -> None:
        requests, total_seconds = self._sum(
            np.array([bool(self._received), seconds / units], np.float32)
        )
        pace.learn(float(total_seconds) / self._workers)
        self.requested = self.requested or bool(requests > 0)

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


# --- peak rate and memory of the devices ---


# Peak rates of dense bfloat16 products in TFLOP/s, from datasheets (float16 for V100 and T4). The
# first name that is in the name of a device counts.
_PEAK_TFLOPS = {
    "B200": 2250,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H200 NVL": 835,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "A100": 312,
    "A30": 165,
    "A10": 125,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "V100": 125,
    "T4": 65,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5p": 459,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
}


def peak_flops(peak_tflops: float, devices: int) -> float:
    """Returns the peak rate of a number of devices in FLOP/s; 0 if it is unknown.

    `peak_tflops` is that of one device; 0 for the known rate of the first device.
    """
    device = _name_of_device()
    rates = (rate for name, rate in _PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device))
    return 1e12 * devices * (peak_tflops or next(rates, 0))


def _name_of_device() -> str:
    """Returns the name of the first accelerator; any other text if there is none."""
    if keras.config.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return next(details, {}).get("device_name", "")


def peak_memory() -> int | None:
    """Returns the most bytes that were in use on one of this machine's accelerators, if known."""
    if keras.config.backend() == "jax":
        import jax

        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        return max((each.get("peak_bytes_in_use", 0) for each in stats), default=0) or None
    names = [f"GPU:{i}" for i in range(len(tf.config.list_logical_devices("GPU")))]
    infos = map(tf.config.experimental.get_memory_info, names)
    return max((info["peak"] for info in infos), default=None)
