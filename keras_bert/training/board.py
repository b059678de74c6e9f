"""Writes tables and precision-recall curves for TensorBoard."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_bert.training.metrics import BOARD


class Board:
    """Writes the tables and curves of one training step to `tensorboard/` in a run directory."""

    def __init__(self, output_dir: Path, step: int):
        self._writer = tf.summary.create_file_writer(str(output_dir / BOARD))
        self._step = step

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes a table, for example of wrong predictions, to the Text tab of TensorBoard."""
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        with self._writer.as_default(step=self._step):
            tf.summary.text(name, text)

    def pr_curve(self, name: str, is_positive: np.ndarray, scores: np.ndarray) -> None:
        """Writes a precision-recall curve to the PR Curves tab of TensorBoard.

        `is_positive`, bool [n], is the true label of each example; `scores`, float [n], is its
        predicted score in [0, 1].
        """
        # Imported late: TensorBoard is slow to import, and only binary tasks need it.
        from tensorboard.plugins.pr_curve import summary

        curve = summary.pb(name, np.asarray(is_positive, bool), np.asarray(scores, np.float32))
        with self._writer.as_default(step=self._step):
            tf.summary.experimental.write_raw_pb(curve.SerializeToString(), step=self._step)

    def close(self) -> None:
        """Closes the TensorBoard event file."""
        self._writer.close()


def _cell(value: object) -> str:
    """Formats a value as the text of one Markdown table cell that can be encoded as UTF-8."""
    # JSON files may contain an unpaired surrogate, which has no UTF-8 encoding.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
