"""Runs the signature of an export that maps strings to answers."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export.inputs import failed_check
from keras_bert.tasks.prepared import as_tensor

Serve = Callable[..., Mapping[str, tf.Tensor]]
# A value per text for each input.
Columns = Sequence[Sequence[Any]]


def positional(signature: Serve, input_names: Sequence[str], expected: Collection[str]) -> Serve:
    """Returns a function that calls a signature with positional tensors.

    Args:
        signature: the signature, which takes the tensors by name.
        input_names: the names of the positional tensors; the last ones may be omitted.
        expected: the names of the signature's inputs. The function raises an InputError if it gets
            others.
    """

    def serve(*texts: tf.Tensor) -> Mapping[str, tf.Tensor]:
        names = input_names[: len(texts)]
        if set(names) != set(expected):
            raise InputError(
                f"predict() got {', '.join(names)}; the exported model expects "
                f"{', '.join(expected)}"
            )
        return signature(**dict(zip(names, texts, strict=True)))

    return serve


def served_answers(
    serve: Serve, columns: Columns, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the answers {name: [B, ...]} of each batch; without texts, of one empty batch.

    Raises:
        InputError: the signature rejects the texts.
    """
    for start in range(0, max(len(columns[0]), 1), batch_size):
        batch = [as_tensor(column[start : start + batch_size]) for column in columns]
        try:
            yield {name: value.numpy() for name, value in serve(*batch).items()}
        except tf.errors.InvalidArgumentError as error:
            message = failed_check(error.message) or error.message.partition("\n")[0]
            raise InputError(message) from None
