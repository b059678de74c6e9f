"""Reads `metrics.jsonl`, the metrics of a run by step.

Each line is a logged step, {"step": 100, "loss": 6.1, ...}, or an evaluation, whose metric names
start with `EVALUATION`. The last line may be incomplete if the process was killed.
"""

import json
from pathlib import Path

METRICS = "metrics.jsonl"
BOARD = "tensorboard"
EVALUATION = "eval_"
# The metrics of a logged step cover the steps since the previous line. If the run resumed between
# the two, this key has the step of the checkpoint, and the metrics cover the steps since then.
RESUMED = "resumed_at_step"


def read_line(line: str) -> dict[str, float] | None:
    """Parses a line as {"step": ..., metric: value}; returns None if it is incomplete."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_complete = isinstance(row, dict) and isinstance(row.get("step"), int)
    return row if is_complete else None


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
    """Reads all complete lines of the run's `metrics.jsonl`, in order; [] if it does not exist."""
    path = output_dir / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(read_line, lines) if row is not None]
