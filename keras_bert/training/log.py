"""Reports what a run does: progress on a terminal or in the log, metrics.jsonl, TensorBoard.

Summaries -> the steps of a run: progress bar or log lines, metrics.jsonl, TensorBoard
progress  -> a bar or log lines for other long work, such as an evaluation
Board     -> scalars, tables and precision-recall curves in TensorBoard

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import write_bytes

METRICS, BOARD = "metrics.jsonl", "tensorboard"
EVALUATION = "eval_"
# The metrics of a logged step cover the steps since the previous line. If the run resumed between
# the two, this key has the step of the checkpoint, and the metrics cover the steps since then.
RESUMED = "resumed_at_step"
SECONDS_BETWEEN_LINES = 10.0  # The longest time without a sign of progress.
_SECONDS_TO_CHECK = 1.0
_SECONDS_TO_BAR = 2.0


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

    `step` is the training step of tables and curves. Only this class needs TensorFlow, which is
    imported late: it is slow to import, and `plot` only reads metrics.jsonl.

    Raises:
        InputError: the directory cannot be written, for example because the disk is full.
    """

    def __init__(self, output_dir: Path, step: int = 0):
        import tensorflow as tf

        self._tf, self._path, self._step = tf, output_dir / BOARD, step
        with self._writing():
            self._writer = tf.summary.create_file_writer(str(self._path))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""
        with self._writing():
            with self._writer.as_default(step=step):
                for name, value in values.items():
                    self._tf.summary.scalar(name, value)
            self._writer.flush()

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes a table, for example of wrong predictions, to the Text tab of TensorBoard."""
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        with self._writer.as_default(step=self._step):
            self._tf.summary.text(name, text)

    def pr_curve(self, name: str, is_positive: np.ndarray, scores: np.ndarray) -> None:
        """Writes a precision-recall curve to the PR Curves tab of TensorBoard.

        `is_positive`, bool [n], is the true label of each example; `scores`, float [n], is its
        predicted score in [0, 1].
        """
        # Imported late: TensorBoard is slow to import, and only binary tasks need it.
        from tensorboard.plugins.pr_curve import summary

        curve = summary.pb(name, np.asarray(is_positive, bool), np.asarray(scores, np.float32))
        with self._writer.as_default(step=self._step):
            self._tf.summary.experimental.write_raw_pb(curve.SerializeToString(), step=self._step)

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


def _cell(value: object) -> str:
    """Formats a value as the text of one Markdown table cell that can be encoded as UTF-8."""
    # JSON files may contain an unpaired surrogate, which has no UTF-8 encoding.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


# --- steps of a run ---


class Summaries:
    """Writes the metrics of one run to a progress bar or log, TensorBoard and metrics.jsonl.

    The run starts or resumes at `first_step`. Lines of later steps are deleted from metrics.jsonl,
    because the run will write them again. With `silent`, nothing is written.

    Raises:
        InputError: `output_dir` cannot be written.
    """

    def __init__(
        self, output_dir: Path, first_step: int, num_train_steps: int, silent: bool = False
    ):
        self._silent = silent
        if silent:
            return
        self._metrics, self._total = output_dir / METRICS, num_train_steps
        with _writing(self._metrics):
            output_dir.mkdir(parents=True, exist_ok=True)
            last_line = _drop_after(self._metrics, first_step)
        self._board = Board(output_dir)
        self._on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=num_train_steps,
            initial=first_step,
            unit="step",
            disable=not self._on_terminal,
            dynamic_ncols=True,
        )
        self._resumed = {RESUMED: first_step} if last_line < first_step else {}
        self._step, self._is_compiled = first_step, False
        self._heartbeat = Heartbeat(self._report_running)

    @contextlib.contextmanager
    def during_steps(self) -> Iterator[None]:
        """Shows progress while the block runs training steps; the first block compiles them."""
        if self._silent:
            yield
            return
        if not self._is_compiled:
            self._report_running(0.0)
        with self._heartbeat.during_call():
            yield
        if not self._is_compiled:
            self._bar.set_postfix_str("")
            self._bar.unpause()  # The rate does not include the compilation.
        self._is_compiled = True

    def _report_running(self, seconds: float) -> None:
        if self._is_compiled:
            text = f"step {self._step}/{self._total}"
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

    def advance(self, steps: int) -> None:
        """Advances the progress bar by a number of steps."""
        if not self._silent:
            self._step += steps
            self._bar.update(steps)

    def write(self, step: int, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of a step; `prefix` is `EVALUATION` for those of an evaluation.

        Raises:
            InputError: a file cannot be written, for example because the disk is full.
        """
        if self._silent:
            return
        values = {prefix + name: float(value) for name, value in metrics.items()}
        resumed = {}
        if not prefix:
            resumed, self._resumed = self._resumed, {}
        with _writing(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | resumed | values) + "\n")
            file.flush()
            os.fsync(file.fileno())  # A resumed run reads its evaluations here.
        self._board.scalars(step, values)
        since = f" (since step {resumed[RESUMED]})" if resumed else ""
        line = " ".join(f"{name}={value:.4g}" for name, value in values.items())
        if self._on_terminal and not prefix:
            self._bar.set_postfix_str(f"loss={metrics.get('loss', math.nan):.4f}")
        elif self._on_terminal:
            self._bar.write(f"step {step}/{self._total} {line}", file=sys.stderr)
        else:
            logging.info("step %d/%d%s %s", step, self._total, since, line)
        self._heartbeat.restart_clock()

    def close(self) -> None:
        """Closes the progress bar and the TensorBoard event file."""
        if not self._silent:
            self._heartbeat.close()
            self._bar.close()
            self._board.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Converts errors of writing a file to an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


class Heartbeat:
    """A thread that reports progress during long calls, such as a compilation.

    While a call runs, the thread calls `report` every SECONDS_BETWEEN_LINES with the number of
    seconds since the call started; `restart_clock` restarts this interval.
    """

    def __init__(self, report: Callable[[float], None]):
        self._report = report
        self._started: float | None = None  # None while no call runs.
        self._closed = threading.Event()
        self.restart_clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def restart_clock(self) -> None:
        """Postpones the next report, because something else was logged."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Reports progress while the block runs."""
        self._started = time.monotonic()
        try:
            yield
        finally:
            self._started = None

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_SECONDS_TO_CHECK):
            now, started = time.monotonic(), self._started
            if started is not None and now - self._last >= SECONDS_BETWEEN_LINES:
                self._last = now
                self._report(now - started)


# --- other long work ---


@contextlib.contextmanager
def progress(
    what: str, total: int, unit: str, silent: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows the progress of the block on stderr: a bar on a terminal, otherwise log lines.

    Blocks that take less than a few seconds show nothing.

    Yields a function to call with the number of units completed since its last call.

    Args:
        what: a description of the operation, such as "predicting".
        total: the amount of work, in units.
        unit: the name of the unit, such as "examples".
        silent: whether to show nothing, because another worker shows the progress.
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
