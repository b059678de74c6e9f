"""TensorBoard reads the tables and curves that a run wrote."""

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_bert.training.board import Board


def test_table_and_curve_can_be_read_back(tmp_path):
    board = Board(tmp_path, 7)
    board.table("wrong", ["text", "label"], [["a|b\nc", 1], ["d", 2], ["half \ud83d", 3]])
    board.pr_curve("positive", np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.6, 0.1]))
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    [text] = events.Tensors("wrong")
    assert text.step == 7
    assert text.tensor_proto.string_val[0].decode().splitlines() == [
        "| text | label |",
        "| --- | --- |",
        "| a\\|b c | 1 |",
        "| d | 2 |",
        "| half ? | 3 |",
    ]
    [curve] = events.Tensors("positive/pr_curves")
    assert curve.step == 7
