"""Joins the rows of requests into a batch, and splits the batch's outputs into answers.

The rows of an array are its items along the first dimension. Requests and answers are
{name: array}.
"""

import numpy as np

from keras_bert.serving.server.errors import bad_request
from keras_bert.serving.server.protocol import Arrays


def count_rows(inputs: Arrays) -> int:
    """Returns the number of rows; raises a RestError if the inputs have different numbers."""
    (first, array), *others = inputs.items()
    for name, other in others:
        if len(other) != len(array):
            raise bad_request(
                "Batching Run() input tensors must have equal 0th-dimension size: "
                f"{first} has {len(array)}, {name} has {len(other)}"
            )
    return len(array)


def text_bytes(inputs: Arrays) -> int:
    """Returns the total length of all texts of a request in bytes."""
    texts = (array for array in inputs.values() if array.dtype == object)
    return sum(sum(map(len, array.ravel())) for array in texts)


def num_bytes(outputs: Arrays) -> int:
    """Returns the size of arrays in bytes, with that of their texts."""
    return sum(array.nbytes for array in outputs.values()) + text_bytes(outputs)


def row_lengths(inputs: Arrays, rows: int) -> np.ndarray:
    """Returns the length of each row [rows]: of its longest list, or of its longest text in bytes.

    There must be at least one row.
    """
    lengths = np.zeros(rows, np.int64)
    for array in inputs.values():
        lengths = np.maximum(lengths, max(array.shape[1:], default=1))
        if array.dtype == object:
            texts = np.array(list(map(len, array.ravel())), np.int64).reshape(rows, -1)
            lengths = np.maximum(lengths, texts.max(1, initial=0))
    return lengths


def join_requests(inputs: list[Arrays]) -> Arrays:
    """Concatenates the rows of requests with inputs of the same names and inner shapes."""
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}


def split_rows(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    """Splits the outputs of a batch into answers; `rows` are the numbers of rows of the requests.

    Raises:
        ValueError: an output of a batch of several requests does not have one row for each input
            row.
    """
    if len(rows) == 1:
        return [outputs]
    check_rows(outputs, sum(rows))
    ends = np.cumsum(rows)[:-1]
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    return [{name: parts[name][index] for name in parts} for index in range(len(rows))]


def check_rows(outputs: Arrays, rows: int) -> None:
    """Raises ValueError if an output does not have one row for each of `rows` input rows."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != rows:
            raise ValueError(
                f"output {name}: shape {array.shape}; expected {rows} rows, one for each input row"
            )


def stack_slices(parts: list[Arrays]) -> Arrays:
    """Concatenates slices of an answer; pads them to the widest with "", -1 (integers) or 0."""
    stacked = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        widest = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        stacked[name] = np.concatenate([_pad(array, widest) for array in arrays])
    return stacked


def _pad(array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    padding = {"O": b"", "i": -1}.get(array.dtype.kind, 0)
    padded = np.full((len(array), *sizes), padding, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
