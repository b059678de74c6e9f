"""Writes the figures of a run to a progress bar, TensorBoard and metrics.jsonl.

`metrics.jsonl` has a line a logged step: {"step": 100, "loss": 6.1, ...}; a line of an evaluation
has "eval_" before each figure.
"""

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
from keras_bert.training.metrics import EVALUATION, METRICS, read_line, read_metrics


class Summaries:
    """Writes the figures of one run to its three places.

    Args:
        output_dir: the run's folder; gets `metrics.jsonl` and `tensorboard/`.
        first_step: the step that the run starts or resumes at; lines of later steps, which the
            run will write again, are dropped.
        num_train_steps: the step at which the run ends.
        silent: write nothing: the figures are another worker's to write.

    Raises:
        InputError: the folder cannot be written.
    """

    def __init__(
        self, output_dir: Path, first_step: int, num_train_steps: int, silent: bool = False
    ):
        self._silent = silent
        if silent:
            return
        self._metrics, self._board = output_dir / METRICS, output_dir / "tensorboard"
        with _writing(self._metrics):
            output_dir.mkdir(parents=True, exist_ok=True)
            _drop_after(self._metrics, first_step)
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

    def advance(self, steps: int) -> None:
        """Moves the progress bar.

        Args:
            steps: how many steps were finished since the last call.
        """
        if self._silent:
            return
        self._bar.update(steps)

    def write(self, step: int, figures: Mapping[str, float], prefix: str = "") -> None:
        """Records the figures of a step.

        Args:
            step: the number of finished training steps.
            figures: {name: value}.
            prefix: goes before each name; `EVALUATION` for an evaluation.

        Raises:
            InputError: they cannot be written (a full disk).
        """
        if self._silent:
            return
        named = {prefix + name: float(value) for name, value in figures.items()}
        with _writing(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | named) + "\n")
            file.flush()
            os.fsync(file.fileno())  # A continued run reads its evaluations from here.
        with _writing(self._board):
            with self._writer.as_default(step=step):
                for name, value in named.items():
                    tf.summary.scalar(name, value)
            self._writer.flush()
        line = " ".join(f"{name}={value:.4g}" for name, value in named.items())
        if self._on_terminal and not prefix:
            self._bar.set_postfix_str(f"loss={figures.get('loss', math.nan):.4f}")
        elif self._on_terminal:
            self._bar.write(f"step {step}/{self._total} {line}", file=sys.stderr)
        else:
            logging.info("step %d/%d %s", step, self._total, line)

    def close(self) -> None:
        """Ends the bar and closes TensorBoard's file."""
        if self._silent:
            return
        self._bar.close()
        with contextlib.suppress(tf.errors.OpError):  # `write` has said it already.
            self._writer.close()


def read_evaluations(output_dir: Path, last_step: int) -> list[dict[str, float]]:
    """Reads the evaluations that a run has done.

    Args:
        output_dir: the run's folder; it may be absent.
        last_step: evaluations of later steps are left out, as the run will do them again.

    Returns:
        {"step": ..., figure: value} of each, in the order of steps.
    """
    return [
        {name.removeprefix(EVALUATION): value for name, value in row.items()}
        for row in read_metrics(output_dir)
        if row["step"] <= last_step and any(name.startswith(EVALUATION) for name in row)
    ]


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Makes one line of what goes wrong with a file, or with the folder of TensorBoard's."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    except tf.errors.OpError as error:
        first = error.message.partition("\n")[0]  # Names of operations, then FILE; REASON.
        reason = first.rpartition("; ")[2]
        raise InputError(f"{path}: cannot be written ({reason})") from error


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [(line, read_line(line)) for line in lines]
    write_bytes(path, "".join(line for line, row in rows if row and row["step"] <= step).encode())
