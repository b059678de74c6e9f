"""Writes the metrics of a run to a progress bar, TensorBoard and metrics.jsonl (metrics.py)."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_bytes
from keras_bert.training import heartbeat
from keras_bert.training.metrics import (
    BOARD,
    EVALUATION,
    METRICS,
    RESUMED,
    read_line,
    read_metrics,
)


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
        self._metrics, self._board = output_dir / METRICS, output_dir / BOARD
        with _writing(self._metrics):
            output_dir.mkdir(parents=True, exist_ok=True)
            last_line = _drop_after(self._metrics, first_step)
        with _writing(self._board):
            self._writer = tf.summary.create_file_writer(str(self._board))
        self._on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=num_train_steps,
            initial=first_step,
            unit="step",
            disable=not self._on_terminal,
            dynamic_ncols=True,
        )
        self._total = num_train_steps
        self._resumed = {RESUMED: first_step} if last_line < first_step else {}
        self._step, self._is_compiled = first_step, False
        self._heartbeat = heartbeat.Heartbeat(self._report_running)

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
        state = "" if self._is_compiled else "Compiling the training step"
        if self._on_terminal:
            self._bar.set_postfix_str(f"{state}, {seconds:.0f} s" if state else "")
        elif state:
            logging.info("%s%s", state, f": {seconds:.0f} s" if seconds else "")
        else:
            long = ""
            if seconds > heartbeat.SECONDS / 2:
                long = (
                    f"; the next steps take {seconds:.0f} s so far (a new length is compiled first)"
                )
            logging.info("step %d/%d%s", self._step, self._total, long)

    def advance(self, steps: int) -> None:
        """Advances the progress bar by a number of steps."""
        if self._silent:
            return
        self._step += steps
        self._bar.update(steps)

    def write(self, step: int, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of a step; `prefix` is `EVALUATION` for those of an evaluation.

        Raises:
            InputError: a file cannot be written, for example because the disk is full.
        """
        if self._silent:
            return
        named = {prefix + name: float(value) for name, value in metrics.items()}
        resumed = {}
        if not prefix:
            resumed, self._resumed = self._resumed, {}
        with _writing(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | resumed | named) + "\n")
            file.flush()
            os.fsync(file.fileno())  # A resumed run reads its evaluations here.
        with _writing(self._board):
            with self._writer.as_default(step=step):
                for name, value in named.items():
                    tf.summary.scalar(name, value)
            self._writer.flush()
        since = f" (since step {resumed[RESUMED]})" if resumed else ""
        line = " ".join(f"{name}={value:.4g}" for name, value in named.items())
        if self._on_terminal and not prefix:
            self._bar.set_postfix_str(f"loss={metrics.get('loss', math.nan):.4f}")
        elif self._on_terminal:
            self._bar.write(f"step {step}/{self._total} {line}", file=sys.stderr)
        else:
            logging.info("step %d/%d%s %s", step, self._total, since, line)
        self._heartbeat.restart_clock()

    def close(self) -> None:
        """Closes the progress bar and the TensorBoard event file."""
        if self._silent:
            return
        self._heartbeat.close()
        self._bar.close()
        with contextlib.suppress(tf.errors.OpError):  # `write` has raised already.
            self._writer.close()


def read_evaluations(output_dir: Path, last_step: int) -> list[dict[str, float]]:
    """Returns {"step": ..., metric: value} of each evaluation up to `last_step`, in order of steps.

    Later evaluations are ignored, since the resumed run will repeat them.
    """
    return [
        {name.removeprefix(EVALUATION): value for name, value in row.items()}
        for row in read_metrics(output_dir)
        if row["step"] <= last_step and _is_evaluation(row)
    ]


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Converts errors of writing `path` (a file, or TensorBoard's directory) to an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    except tf.errors.OpError as error:
        first = error.message.partition("\n")[0]  # "OPERATIONS FILE; REASON".
        reason = first.rpartition("; ")[2]
        raise InputError(f"{path}: cannot be written ({reason})") from error


def _drop_after(path: Path, step: int) -> int:
    """Removes the lines of steps after `step`, and incomplete ones, from metrics.jsonl.

    Returns the step of the last remaining line of a logged step; 0 if there is none.
    """
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [(line, row) for line in lines if (row := read_line(line)) and row["step"] <= step]
    write_bytes(path, "".join(line for line, _ in rows).encode())
    return max((row["step"] for _, row in rows if not _is_evaluation(row)), default=0)


def _is_evaluation(row: Mapping[str, float]) -> bool:
    return any(name.startswith(EVALUATION) for name in row)
