"""Checks the arguments of the Python API, and the labels of a head."""

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.errors import InputError

if TYPE_CHECKING:
    from keras_bert.checkpoints.checkpoint import Checkpoint


def check_strings(name: str, value: Any) -> list[str]:
    """Checks a column of strings or bytes, as for `check_list`; returns it as a list of strings."""
    items = check_list(name, value, "strings")
    for index, item in enumerate(items):
        if not isinstance(item, str | bytes):
            raise InputError(
                f"{name}[{index}] is {item!r:.60}, a {type(item).__name__}; expected a string"
            )
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in items]


def check_list(name: str, value: Any, what: str) -> list[Any]:
    """Checks that an argument is a list, a tuple, an array, or a column of pandas or Arrow.

    The error message contains `name`, the name of the argument, and `what`, the kind of items that
    are expected, such as "strings". Returns a list.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    # An array of NumPy or a column of pandas, or else of Arrow.
    to_list = getattr(value, "tolist", None) or getattr(value, "to_pylist", None)
    items = to_list() if to_list is not None else None
    if not isinstance(items, list):  # An array of no dimensions has one item, not a list.
        raise InputError(
            f"{name} is {value!r:.60}, a {type(value).__name__}; expected a list of {what}"
        )
    return items


def check_same_length(**lists: Sequence[Any]) -> None:
    """Checks that lists, which are passed with their names as keywords, have the same length."""
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} has {length} items" for name, length in lengths.items())
        raise InputError(f"{sizes}; expected lists of the same length")


def check_not_empty(name: str, items: Sized) -> None:
    """Checks that an argument has at least one item."""
    if not len(items):
        raise InputError(f"{name} is empty; expected at least one item")


def check_texts(name: str, value: Any, *, allow_pairs: bool = False) -> tuple[list[str], ...]:
    """Checks a list of n strings or, with `allow_pairs`, a tuple of two such lists.

    Returns:
        A tuple with one list of strings, or with two lists for pairs of texts.
    """
    is_pair = isinstance(value, tuple) and any(not isinstance(side, str | bytes) for side in value)
    if not is_pair:
        return (check_strings(name, value),)
    if not allow_pairs or len(value) != 2:
        raise InputError(
            f"{name} is a tuple of {len(value)} items; expected a list of strings"
            + ", or for pairs a tuple of two lists" * allow_pairs
        )
    return check_columns(name, value)


def check_columns(name: str, columns: Sequence[Any]) -> tuple[list[str], ...]:
    """Checks columns of strings, which must have the same length, and returns them as lists."""
    checked = {f"{name}[{i}]": check_strings(f"{name}[{i}]", x) for i, x in enumerate(columns)}
    check_same_length(**checked)
    return tuple(checked.values())


def check_validation_data(value: Any, expected: str) -> tuple[Any, Any]:
    """Checks that `validation_data` is a tuple of the two arguments of `fit`, and returns it.

    `expected` describes the tuple in the error message, such as "a tuple (texts, labels)".
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(f"validation_data is {value!r:.60}; expected {expected}")
    return value


def split_rows(
    fraction: float, seed: int, *columns: Sequence[Any] | None
) -> tuple[list[Any], list[Any]]:
    """Splits columns of n values at random into those of training and of `fraction` of the rows.

    A column may be None, which is returned for both. The rows keep their order.
    """
    count = len(columns[0])
    order = np.random.default_rng([seed, 0]).permutation(count)
    held_out = max(1, round(fraction * count))
    parts = (sorted(part.tolist()) for part in (order[held_out:], order[:held_out]))
    return tuple(
        [column and [column[index] for index in part] for column in columns] for part in parts
    )


def check_batch_size(batch_size: Any) -> int:
    """Checks that a batch size is an integer of at least 1, and returns it."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size={batch_size!r}: expected a whole number of at least 1")
    return batch_size


# --- labels of a head ---


def in_order_of(model_labels: Sequence[str] | None, labels: Sequence[str]) -> list[str] | None:
    """Returns a task's `labels` in the order of `model_labels`, those of a checkpoint's logits.

    The result is None if the checkpoint has no labels, or other labels than the task. Names that
    differ only in case are the same label, unless two of the task's labels differ only in case.
    """
    model_labels = model_labels or ()
    if sorted(model_labels) == sorted(labels):
        return [*model_labels]
    by_folded_name = {label.casefold(): label for label in labels}
    folded = [name.casefold() for name in model_labels]
    if len(by_folded_name) < len(labels) or sorted(folded) != sorted(by_folded_name):
        return None
    return [by_folded_name[name] for name in folded]


def head_labels(
    checkpoint: "Checkpoint",
    names: Sequence[str] | None,
    labels_of: Callable[[list[str]], list[str]] = list,
) -> tuple[list[str], bool]:
    """Returns the labels of a model's head, in the order of its logits.

    Args:
        checkpoint: the checkpoint, whose labels are the result if `names` is None.
        names: the labels, or names that `labels_of` converts to the labels.
        labels_of: the conversion, which is used for names that are not the labels of the head.

    Returns:
        The labels: without `names`, those of the checkpoint, or else LABEL_0, LABEL_1, ... as in
        transformers, and [] without a head. And whether they have other names than LABEL_N.

    Raises:
        InputError: `names` are invalid, or do not match the checkpoint's head.
    """
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels or 0
    saved = (checkpoint.named_labels or []) if num_logits else []
    if names is None:
        default = (checkpoint.labels or []) if num_logits else []
        return default or [f"LABEL_{index}" for index in range(num_logits)], bool(saved)
    labels = check_list("labels", names, "names")
    is_text = all(isinstance(name, str | bytes) for name in labels)
    labels = check_strings("labels", labels) if is_text else [*map(str, labels)]
    if not labels or len({*labels}) < len(labels):
        raise InputError(f"labels={labels!r:.200}: expected at least one name, and no duplicates")
    ordered = in_order_of(saved, labels)
    if ordered is None and (saved or num_logits != len(labels)):
        labels = labels_of(labels)
        ordered = in_order_of(saved, labels)
    if ordered is None and (saved or num_logits not in (0, len(labels))):
        described = f"the labels {', '.join(saved)}" if saved else f"a head of {num_logits} logits"
        raise InputError(
            f"labels={list(names)!r:.200}: {checkpoint.path} has {described}; expected the same; "
            "for a new head, run keras-bert convert SRC DST --noheads"
        )
    return ordered or labels, True
