"""Reports what a run does: progress on a terminal or in the log, metrics.jsonl, TensorBoard.

RunLog   -> the steps of a run: averages and rates, progress bar or log lines, files
progress, elapsed_time -> a bar or lines for other long work, such as an evaluation
Board    -> scalars in TensorBoard

Each line of metrics.jsonl is a logged step, {"step": 100, "loss": 6.1, ...}, or an evaluation,
whose metric names start with `EVALUATION`. The last line may be incomplete if the process was
killed.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import logging
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import write_bytes

if TYPE_CHECKING:
    import keras

    from keras_bert.training.objective import StepMetrics, TrainState

METRICS, BOARD = "metrics.jsonl", "tensorboard"
EVALUATION = "eval_"
# The metrics of a logged step cover the steps since the previous line. If the run resumed between
# the two, this key has the step of the checkpoint, and the metrics cover the steps since then.
RESUMED = "resumed_at_step"
SECONDS_BETWEEN_LINES = 10.0  # The longest time without a sign of progress.
_SECONDS_TO_CHECK = 1.0
_SECONDS_TO_BAR = 2.0
_SECONDS_TO_ESTIMATE = 2.0  # of steps, before the time of the training is estimated
# The values in a log line of steps, and their number in one of an evaluation; all of them are in
# metrics.jsonl. Of the accuracies, the line has the first one.
_SHOWN = ("loss", "accuracy", "learning_rate", "examples_per_second")
_MAX_SHOWN = 5


# --- metrics.jsonl ---


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
    """Reads all complete lines of the run's `metrics.jsonl`, in order; [] if it does not exist."""
    path = output_dir / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(_read_line, lines) if row is not None]


def read_evaluations(output_dir: Path, last_step: int) -> list[dict[str, float]]:
    """Returns {"step": ..., metric: value} of each evaluation up to `last_step`, in order of steps.

    Later evaluations are ignored, since the resumed run will repeat them.
    """
    return [
        {name.removeprefix(EVALUATION): value for name, value in row.items()}
        for row in read_metrics(output_dir)
        if row["step"] <= last_step and _is_evaluation(row)
    ]


def _read_line(line: str) -> dict[str, float] | None:
    """Parses a line as {"step": ..., metric: value}; returns None if it is incomplete."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_complete = isinstance(row, dict) and isinstance(row.get("step"), int)
    return row if is_complete else None


def _is_evaluation(row: Mapping[str, float]) -> bool:
    return any(name.startswith(EVALUATION) for name in row)


def _drop_after(path: Path, step: int) -> int:
    """Removes the lines of steps after `step`, and incomplete ones, from metrics.jsonl.

    Returns the step of the last remaining line of a logged step; 0 if there is none.
    """
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [(line, row) for line in lines if (row := _read_line(line)) and row["step"] <= step]
    write_bytes(path, "".join(line for line, _ in rows).encode())
    return max((row["step"] for _, row in rows if not _is_evaluation(row)), default=0)


# --- TensorBoard ---


class Board:
    """Writes to `tensorboard/` in a run directory.

    Only this class needs TensorFlow, which is imported late: it is slow to import, and `plot` only
    reads metrics.jsonl.
    """

    def __init__(self, output_dir: Path):
        import tensorflow as tf

        self._tf, self._path = tf, output_dir / BOARD
        with self._writing():
            self._writer = tf.summary.create_file_writer(str(self._path))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""
        with self._writing():
            with self._writer.as_default(step=step):
                for name, value in values.items():
                    self._tf.summary.scalar(name, value)
            self._writer.flush()

    def close(self) -> None:
        """Closes the event file; ignores its errors, which could hide an earlier one."""
        with contextlib.suppress(self._tf.errors.OpError):
            self._writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._tf.errors.OpError as error:
            first = error.message.partition("\n")[0]  # "OPERATIONS FILE; REASON".
            reason = first.rpartition("; ")[2]
            raise InputError(f"{self._path}: cannot be written ({reason})") from error


# --- experiment trackers ---


@contextlib.contextmanager
def _trackers(
    names: Sequence[str], run: str, settings: Mapping[str, object], state: "TrainState"
) -> Iterator[list["keras.callbacks.Callback"]]:
    """Starts a run of MLflow or Weights & Biases, and yields their Keras callbacks.

    Their epochs are the steps at which metrics are written. `names` are `mlflow` and `wandb`.
    """
    if unknown := {*names} - {"mlflow", "wandb"}:
        raise InputError(f"--report_to={', '.join(unknown)}: expected mlflow, wandb, or both")
    with contextlib.ExitStack() as runs:
        callbacks = []
        if names:  # They show the learning rate and the settings of the optimizer.
            state.model.compile(optimizer=state.optimizer, auto_scale_loss=False)
        for name in names:
            try:
                if name == "mlflow":
                    import mlflow.keras

                    runs.enter_context(mlflow.start_run(run_name=run))
                    mlflow.log_params(settings)
                    callbacks.append(mlflow.keras.MlflowCallback())
                else:
                    import wandb
                    from wandb.integration.keras import WandbMetricsLogger

                    runs.enter_context(wandb.init(name=run, config=dict(settings)))
                    callbacks.append(WandbMetricsLogger())
                callbacks[-1].set_model(state.model)
                callbacks[-1].on_train_begin()
            except Exception as error:  # The packages raise many types.
                raise InputError(
                    f"--report_to={name}: {_reason(error)}; expected the package "
                    f"{name}, and a server that can be reached or the settings for working offline"
                ) from error
        yield callbacks


def _warn_of_tracker(what: str, error: Exception) -> None:
    message = "--report_to: %s failed: %s; the run continues without it"
    logging.warning(message, what, _reason(error))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


# --- steps of a run ---


class RunLog:
    """Reports the steps of a run: progress bar or log lines, TensorBoard and metrics.jsonl.

    The metrics of the steps since the last line are averaged, and their rates measured: examples,
    tokens and model FLOPs utilization (MFU). The first call of the training step does not count,
    since it includes the compilation. During a call, such as a compilation, a thread reports every
    SECONDS_BETWEEN_LINES that the run is alive.

    Args:
        state: the objective, and whether there is a loss scale.
        first_step: the step at which the run starts or resumes. Lines of later steps are deleted
            from metrics.jsonl, because the run will write them again.
        peak: the peak rate of all devices in FLOP/s, of which MFU is a share; 0 if it is unknown.
        silent: whether to write nothing, because another worker does.
        report_to: the names of the experiment trackers that get the metrics too. One that fails
            after the start is logged, and no longer used.
        settings: the settings of the run, for the trackers.
    """

    def __init__(
        self,
        output_dir: Path,
        state: "TrainState",
        first_step: int,
        num_train_steps: int,
        peak: float = 0.0,
        silent: bool = False,
        report_to: Sequence[str] = (),
        settings: Mapping[str, object] = types.MappingProxyType({}),
    ):
        self._objective, self._has_loss_scale = state.objective, state.loss_scale is not None
        self._peak, self._silent = peak, silent
        self._step, self._total, self._is_compiled = first_step, num_train_steps, False
        self._parts: list[StepMetrics] = []  # of the steps since the last line
        # Rows, tokens, FLOPs and seconds: since the last line, and before.
        self._window, self._before = np.zeros(4), np.zeros(4)
        self.restart_clock()
        self._start, self._is_estimated = self._since, False
        self._timed_from = self._since, first_step  # Set again after the compilation.
        if silent:
            return
        self._metrics = output_dir / METRICS
        with _writing(self._metrics):
            output_dir.mkdir(parents=True, exist_ok=True)
            last_line = _drop_after(self._metrics, first_step)
        self._resumed = {RESUMED: first_step} if last_line < first_step else {}
        self._board = Board(output_dir)
        self._open = contextlib.ExitStack()
        self._trackers = self._open.enter_context(
            _trackers(report_to, output_dir.name, settings, state)
        )
        self._on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=num_train_steps,
            initial=first_step,
            unit="step",
            disable=not self._on_terminal,
            dynamic_ncols=True,
        )
        self._call_start: float | None = None  # None while no call runs.
        self._last_line = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report_calls, name="heartbeat", daemon=True)
        self._thread.start()

    def restart_clock(self) -> None:
        """Excludes the time since the last `add` from the rates, for example of an evaluation."""
        self._since = time.monotonic()

    # --- calls of the training step ---

    @contextlib.contextmanager
    def during_steps(self) -> Iterator[None]:
        """Shows progress while the block runs training steps; the first block compiles them."""
        if self._silent:
            yield
            return
        if not self._is_compiled:
            self._report_running(0.0)
        self._call_start = time.monotonic()
        try:
            yield
        finally:
            self._call_start = None

    def _report_calls(self) -> None:
        while not self._closed.wait(_SECONDS_TO_CHECK):
            now, start = time.monotonic(), self._call_start
            if start is not None and now - self._last_line >= SECONDS_BETWEEN_LINES:
                self._last_line = now
                self._report_running(now - start)

    def _report_running(self, seconds: float) -> None:
        if self._is_compiled:
            text = f"step {self._step}/{self._total}, {self._time_left()}"
            if seconds > SECONDS_BETWEEN_LINES / 2:
                text += (
                    f"; the next steps take {seconds:.0f} s so far (a new length is compiled first)"
                )
        else:
            text = "Compiling the training step" + (f": {seconds:.0f} s" if seconds else "")
        if self._on_terminal:
            self._bar.set_postfix_str("" if self._is_compiled else text)
        else:
            logging.info("%s", text)

    def add(self, metrics: "StepMetrics") -> None:
        """Adds the metrics of completed steps, and the time since the last `add` or restart."""
        self._parts.append(metrics)
        if self._is_compiled:
            parts = (metrics.examples, metrics.tokens, metrics.flops)
            sums = [part.sum(dtype=np.float64) for part in parts]
            self._window += [*sums, time.monotonic() - self._since]
        elif not self._silent:
            self._bar.set_postfix_str("")
            self._bar.unpause()  # The rate of the bar does not include the compilation.
        self._step += len(metrics.examples)
        if not self._silent:
            self._bar.update(len(metrics.examples))
        self.restart_clock()
        if not self._is_compiled:
            self._is_compiled, self._timed_from = True, (self._since, self._step)
        elif not (self._silent or self._on_terminal or self._is_estimated):
            self._is_estimated = self._since - self._timed_from[0] >= _SECONDS_TO_ESTIMATE
            if self._is_estimated:
                total = self._since - self._start + self._seconds_left()
                logging.info("Estimated time of the training: %s", _duration(total))

    def _seconds_left(self) -> float:
        """Estimates the remaining time, with evaluations and checkpoints; NaN if it is unknown."""
        start, first_step = self._timed_from
        steps = self._step - first_step
        pace = (time.monotonic() - start) / steps if self._is_compiled and steps else math.nan
        return pace * (self._total - self._step)

    def _time_left(self) -> str:
        seconds = self._seconds_left()
        return "time left unknown" if math.isnan(seconds) else f"{_duration(seconds)} left"

    # --- lines ---

    def write_steps(self) -> None:
        """Writes the averages and rates of the steps since the last line.

        The learning rate, the gradient norm and the loss scale are the latest ones (the latest
        finite norm).
        """
        parts, self._parts = self._parts, []
        steps = type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))
        # The loss or the norm of a skipped step may not be finite.
        finite = np.isfinite(steps.sums).all(axis=1)
        values = {}
        if finite.any():
            sums, weights = (
                part[finite].astype(np.float64).sum(axis=0) for part in (steps.sums, steps.weights)
            )
            values = self._objective.divide(sums, weights)
        values["learning_rate"] = float(steps.learning_rate[-1])
        norms = steps.gradient_norm[np.isfinite(steps.gradient_norm)]
        if len(norms):
            values["gradient_norm"] = float(norms[-1])
        if self._has_loss_scale:
            values["loss_scale"] = float(steps.loss_scale[-1])
        values |= self._rates(self._window)
        self._before += self._window
        self._window = np.zeros(4)
        if self._silent:
            return
        resumed, self._resumed = self._resumed, {}
        self._write(values, resumed)
        if self._on_terminal:
            self._bar.set_postfix_str(f"loss={values.get('loss', math.nan):.4f}")
        else:
            since = f" (since step {resumed[RESUMED]})" if resumed else ""
            accuracy = next((name for name in values if name.endswith("accuracy")), "")
            names = [accuracy if name == "accuracy" else name for name in _SHOWN]
            line = _line({name: values[name] for name in names if name in values})
            left = self._time_left()
            logging.info("step %d/%d%s %s, %s", self._step, self._total, since, line, left)

    def write_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of an evaluation of the current weights; raises like `write_steps`."""
        if self._silent:
            return
        values = {EVALUATION + name: float(value) for name, value in metrics.items()}
        self._write(values, {})
        line = _line(dict([*values.items()][:_MAX_SHOWN]))
        if self._on_terminal:
            self._bar.write(f"step {self._step}/{self._total} {line}", file=sys.stderr)
        else:
            logging.info("step %d/%d %s", self._step, self._total, line)

    def _write(self, values: Mapping[str, float], resumed: Mapping[str, int]) -> None:
        with _writing(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self._step, **resumed, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # A resumed run reads its evaluations here.
        self._board.scalars(self._step, values)
        for tracker in [*self._trackers]:
            try:
                tracker.on_epoch_end(self._step, dict(values))
            except Exception as error:  # A server may fail; the run must not.
                self._trackers.remove(tracker)
                _warn_of_tracker(type(tracker).__name__, error)
        self._last_line = time.monotonic()

    def rates(self) -> dict[str, float]:
        """Returns {metric: value} of the rates of all steps up to the last line; {} without any."""
        return self._rates(self._before)

    def _rates(self, total: np.ndarray) -> dict[str, float]:
        rows, tokens, flops, seconds = total.tolist()
        if not seconds:
            return {}
        rates = {
            "examples_per_second": rows / self._objective.rows_per_example / seconds,
            "tokens_per_second": tokens / seconds,
        }
        return rates | ({"mfu": flops / seconds / self._peak} if self._peak and flops else {})

    def close(self) -> None:
        """Closes the progress bar and the TensorBoard event file."""
        if not self._silent:
            self._closed.set()
            self._thread.join()
            self._bar.close()
            self._board.close()
            try:
                self._open.close()
            except Exception as error:
                _warn_of_tracker("the end of the run", error)


def _line(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


def _duration(seconds: float) -> str:
    """Returns a time as one number with a unit, such as "12 min"."""
    limits = {"s": 90, "min": 90 * 60, "h": 48 * 3600, "days": math.inf}
    unit = next(unit for unit, limit in limits.items() if seconds < limit)
    number = seconds / {"s": 1, "min": 60, "h": 3600, "days": 86400}[unit]
    return f"{number:.{int(unit != 's' and number < 10)}f} {unit}"


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Converts errors of writing a file to an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


# --- other long work ---


@contextlib.contextmanager
def elapsed_time(what: str) -> Iterator[None]:
    """Prints `what`, and the time every SECONDS_BETWEEN_LINES while the block runs."""
    print(what)
    start, is_done = time.monotonic(), threading.Event()

    def report() -> None:
        while not is_done.wait(SECONDS_BETWEEN_LINES):
            print(f"{what}: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@contextlib.contextmanager
def progress(
    what: str, total: int, unit: str, silent: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows the progress of the block on stderr: a bar on a terminal, otherwise log lines.

    Blocks that take less than a few seconds show nothing, nor does one that is `silent`. Yields a
    function to call with the number of units completed since its last call. `what` is the
    operation, such as "predicting", and `unit` the name of the unit, such as "examples".
    """
    on_terminal = sys.stderr.isatty()
    done = 0
    start = last = time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last
        count = min(count, total - done)
        done += count
        bar.update(count)
        now = time.monotonic()
        if not (silent or on_terminal) and now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = done / (now - start)
            logging.info("%s: %d/%d %s, %.3g %s/s", what, done, total, unit, rate, unit)

    with tqdm(
        desc=what,
        total=total,
        unit=f" {unit}",
        delay=_SECONDS_TO_BAR,
        leave=False,
        disable=silent or not on_terminal,
        dynamic_ncols=True,
    ) as bar:
        yield advance
