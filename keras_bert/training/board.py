"""Precision-recall curves and text for TensorBoard."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf


class Board:
    """Writes tables and precision-recall curves of one step into a run's `tensorboard/`.

    Args:
        output_dir: the run's folder.
        step: the step that they belong to.
    """

    def __init__(self, output_dir: Path, step: int):
        self._writer = tf.summary.create_file_writer(str(output_dir / "tensorboard"))
        self._step = step

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Shows a table, such as that of wrong predictions, under the tab Text.

        Args:
            name: what it is called.
            header: the columns' names.
            rows: a cell a column.
        """
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        with self._writer.as_default(step=self._step):
            tf.summary.text(name, text)

    def pr_curve(self, name: str, is_positive: np.ndarray, scores: np.ndarray) -> None:
        """Shows precision over recall under the tab PR Curves.

        Args:
            name: what it is called, such as the positive class.
            is_positive: [n], the truth, true or false.
            scores: [n], what the model gives, in [0, 1].
        """
        # TensorBoard is slow to import, and few runs have two classes.
        from tensorboard.plugins.pr_curve import summary

        curve = summary.pb(name, np.asarray(is_positive, bool), np.asarray(scores, np.float32))
        with self._writer.as_default(step=self._step):
            tf.summary.experimental.write_raw_pb(curve.SerializeToString(), step=self._step)

    def close(self) -> None:
        """Closes TensorBoard's file."""
        self._writer.close()


def _cell(value: object) -> str:
    """Returns one line that Markdown does not take for two cells, and UTF-8 can hold."""
    # Half a surrogate pair, which JSON files may have, has no UTF-8.
    whole = str(value).encode("utf-8", "replace").decode("utf-8")
    return " ".join(whole.split()).replace("\\", "\\\\").replace("|", "\\|")
