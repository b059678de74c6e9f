"""Checks of what a user of the Python API passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bert.common.errors import InputError


def check_strings(name: str, value: Any) -> list[str]:
    """Checks a list of strings.

    Args:
        name: the argument's name, for messages.
        value: a list, tuple or array of n strings.

    Returns:
        The strings.

    Raises:
        InputError: a string or another object in place of the list, or an item that is no string.
    """
    items = check_list(name, value, "strings")
    for index, item in enumerate(items):
        if not isinstance(item, str | bytes):
            raise InputError(
                f"{name}[{index}] is {item!r:.60}, a {type(item).__name__}; expected a string"
            )
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in items]


def check_list(name: str, value: Any, what: str) -> list[Any]:
    """Checks that an argument is a list.

    Args:
        name: the argument's name, for messages.
        value: what was passed.
        what: what the list holds, for messages.

    Returns:
        Its items.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, np.ndarray) and value.ndim >= 1:
        return value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InputError(
            f"{name} is {value!r:.60}, a {type(value).__name__}; expected a list of {what}"
        )
    return list(value)


def check_same_length(**lists: Sequence[Any]) -> None:
    """Checks that lists that belong together have one length.

    Args:
        lists: by the name of the argument.

    Raises:
        InputError: they have not.
    """
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length} items" for name, length in lengths.items())
        raise InputError(f"{found}; expected lists of one length")


def check_texts(name: str, value: Any, *, allow_pairs: bool = False) -> tuple[list[str], ...]:
    """Checks texts or pairs of texts.

    Args:
        name: the argument's name, for messages.
        value: a list of n strings, or a tuple of two such lists.
        allow_pairs: whether a tuple of two lists is a list of pairs.

    Returns:
        One list, or the two of pairs.

    Raises:
        InputError: something else.
    """
    is_pair = isinstance(value, tuple) and any(not isinstance(side, str | bytes) for side in value)
    if not is_pair:
        return (check_strings(name, value),)
    if not allow_pairs or len(value) != 2:
        raise InputError(
            f"{name} is a tuple of {len(value)} items; expected a list of strings"
            + ", or for pairs a tuple of two lists" * allow_pairs
        )
    sides = tuple(check_strings(f"{name}[{index}]", side) for index, side in enumerate(value))
    check_same_length(**{f"{name}[{index}]": side for index, side in enumerate(sides)})
    return sides


def check_batch_size(batch_size: Any) -> int:
    """Checks a batch size.

    Raises:
        InputError: no whole number of at least 1.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size={batch_size!r}: expected a whole number of at least 1")
    return batch_size
