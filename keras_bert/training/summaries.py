"""What a run shows of itself: figures of steps in; a progress bar, TensorBoard, metrics.jsonl out.

`metrics.jsonl` has a line a logged step: {"step": 100, "loss": 6.1, ...}; a line of an evaluation
has "eval_" before each figure.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from keras_bert.files import write_bytes

EVALUATION = "eval_"


class Summaries:
    """Writes the figures of one run to its three places.

    Args:
        output_dir: the run's folder; gets `metrics.jsonl` and `tensorboard/`.
        first_step: the step that the run starts or goes on from; lines of later steps, which the
            run will write again, are dropped.
        num_train_steps: the step at which the run ends.
    """

    def __init__(self, output_dir: Path, first_step: int, num_train_steps: int):
        output_dir.mkdir(parents=True, exist_ok=True)
        self._metrics = output_dir / "metrics.jsonl"
        _drop_after(self._metrics, first_step)
        self._writer = tf.summary.create_file_writer(str(output_dir / "tensorboard"))
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
        self._bar.update(steps)

    def write(self, step: int, figures: Mapping[str, float], prefix: str = "") -> None:
        """Records the figures of a step.

        Args:
            step: the number of finished training steps.
            figures: {name: value}.
            prefix: goes before each name; `EVALUATION` for an evaluation.
        """
        named = {prefix + name: float(value) for name, value in figures.items()}
        with open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | named) + "\n")
            file.flush()
            os.fsync(file.fileno())  # A continued run reads its evaluations from here.
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
        self._bar.close()
        self._writer.close()


def read_evaluations(output_dir: Path, last_step: int) -> list[dict[str, float]]:
    """Reads the evaluations that a run has done.

    Args:
        output_dir: the run's folder; it may be absent.
        last_step: evaluations of later steps are left out, as the run will do them again.

    Returns:
        {"step": ..., figure: value} of each, in the order of steps.
    """
    path = output_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if _step_of(line) <= last_step]
    return [
        {name.removeprefix(EVALUATION): value for name, value in line.items()}
        for line in found
        if any(name.startswith(EVALUATION) for name in line)
    ]


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _step_of(line) <= step]
    write_bytes(path, "".join(kept).encode())


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # a line cut short by a kill
        return float("inf")
