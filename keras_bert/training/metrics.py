"""Reads `metrics.jsonl`, the figures of a run by step.

A line a logged step, {"step": 100, "loss": 6.1, ...}, and a line an evaluation, with `EVALUATION`
before each figure. A kill can cut the last line short.
"""

import json
from pathlib import Path

METRICS = "metrics.jsonl"
EVALUATION = "eval_"


def read_line(line: str) -> dict[str, float] | None:
    """Reads a line.

    Args:
        line: of the file.

    Returns:
        {"step": ..., figure: value}; None if a kill cut it short.
    """
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(row, dict) and isinstance(row.get("step"), int)
    return row if is_whole else None


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
    """Reads the lines of a run that are whole.

    Args:
        output_dir: the run's folder; it may be absent.

    Returns:
        {"step": ..., figure: value} of each line, in the order of the file.
    """
    path = output_dir / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(read_line, lines) if row is not None]
