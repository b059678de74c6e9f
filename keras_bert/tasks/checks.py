"""Checks the inputs of the Python API, lists, columns and tables, and the labels of a head."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.errors import InputError

if TYPE_CHECKING:
    from keras_bert.checkpoints.checkpoint import Checkpoint


# A text input is a list, a tuple or a column of strings, such as those of NumPy, pandas, Arrow and
# the package datasets. Pairs are a tuple of two such columns, or a list of tuples of two strings.


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
    """Returns an argument that is a list, a tuple, an array or a column of a table as a list.

    The error message contains the argument's `name` and `what`, its items, such as "strings".
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    # An array of NumPy or a column of pandas, or else of Arrow.
    to_list = getattr(value, "tolist", None) or getattr(value, "to_pylist", None)
    items = to_list() if to_list is not None else None
    if not isinstance(items, list):  # An array of no dimensions has one item, not a list.
        raise InputError(f"{name} is {described(value)}; expected a list of {what}")
    return items


def described(value: Any) -> str:
    """Describes an argument of a wrong type in an error message, without all of its items."""
    if value is None or isinstance(value, str | bytes | int | float):
        return f"{value!r:.60}, a {type(value).__name__}"
    size = f" of {len(value)} items" if isinstance(value, list | tuple | dict) else ""
    return f"a {type(value).__name__}{size}"


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


def check_not_blank(name: str, texts: Sequence[str]) -> None:
    """Raises InputError if a text is empty; `name` is the name of the list."""
    for index, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"{name}[{index}] is {text!r:.60}; expected a text")


def check_texts(name: str, value: Any, *, allow_pairs: bool = False) -> tuple[list[str], ...]:
    """Checks n strings or, with `allow_pairs`, n pairs of strings; returns one or two lists."""
    value = columns_of_tuples(name, value) if allow_pairs else value
    if allow_pairs and isinstance(value, list) and value and isinstance(value[0], list):
        raise InputError(
            f"{name}[0] is {described(value[0])}; expected a string, or for a pair a tuple"
        )
    if not isinstance(value, tuple) or all(map(_is_string, value)):
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


def columns_of_tuples(name: str, value: Any) -> Any:
    """Converts a list or column of tuples, such as pairs, to a tuple of columns."""
    if isinstance(value, tuple) or _is_string(value):
        return value
    items = check_list(name, value, "strings, or of tuples of strings")
    if not items or not isinstance(items[0], tuple):
        return items
    for index, item in enumerate(items):
        if not isinstance(item, tuple) or len(item) != len(items[0]):
            expected = f"expected a tuple of {len(items[0])} strings, as {name}[0]"
            raise InputError(f"{name}[{index}] is {described(item)}; {expected}")
    return tuple(map(list, zip(*items, strict=True)))


def is_one_text(name: str, value: Any, allow_pairs: bool = False) -> bool:
    """Returns whether an argument is one string or, with `allow_pairs`, one pair."""
    if value is None or isinstance(value, int | float):
        pairs = ", or for pairs a tuple of two lists or strings" * allow_pairs
        raise InputError(
            f"{name} is {described(value)}; expected a list of strings, or one string{pairs}"
        )
    is_pair = allow_pairs and isinstance(value, tuple) and len(value) == 2
    return _is_string(value) or (is_pair and all(map(_is_string, value)))


def first_row(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answers for the first text, {name: value}, with numbers as Python numbers."""
    row = {name: values[0] for name, values in answers.items()}
    return {name: v.item() if getattr(v, "shape", None) == () else v for name, v in row.items()}


def _is_string(value: Any) -> bool:
    return isinstance(value, str | bytes)


# --- tables and datasets ---
# They are recognized by their attributes, because pandas and datasets are not dependencies.


def is_table(value: Any) -> bool:
    """Returns whether a value is a table with named columns, or a tf.data.Dataset."""
    return any(hasattr(value, name) for name in ("column_names", "columns", "element_spec"))


def reject_dataset(name: str, value: Any) -> None:
    """Rejects a tf.data.Dataset, for a task whose targets differ in length from text to text."""
    if hasattr(value, "element_spec"):
        raise InputError(
            f"{name} is a tf.data.Dataset; expected lists, or a table such as a DataFrame"
        )


def split_examples(
    name: str, data: Any, targets: Any, text: str | tuple[str, ...], label: str | None
) -> tuple[Any, Any]:
    """Splits a table or a tf.data.Dataset into its texts and its targets; returns lists unchanged.

    `data`, the argument `name`, is a DataFrame of pandas, a Dataset of the package datasets or a
    table of Arrow; or a finite tf.data.Dataset, batched or not, whose elements are dicts of such
    columns, (text, target), or texts. `targets` must be None for these. `text` is the name of the
    column of texts, or for pairs a tuple of names, and `label` that of the targets; None without
    targets.
    """
    if hasattr(data, "element_spec"):
        data = _elements(name, data)
        first = data[0] if data else None
        if isinstance(first, dict):
            data = {key: [element[key] for element in data] for key in first}
        is_split = isinstance(first, tuple) and len(first) == 2 and targets is None
        # Without a label, two strings are a pair of texts, but ((first, second), score) is not.
        if is_split and (label or isinstance(first[0], tuple)):
            return tuple(map(list, zip(*data, strict=True)))
    if not is_table(data) and not isinstance(data, dict):
        return data, targets
    if targets is not None:
        raise InputError(
            f"{name} is a table, and {described(targets)} is given besides; expected only the "
            "table and the names of its columns"
        )
    texts = tuple(_column(name, data, t, "text") for t in ([text] if _is_string(text) else text))
    labels = _column(name, data, label, "label") if label else None
    return texts[0] if _is_string(text) else texts, labels


def check_validation_data(
    value: Any, expected: str, text: str | tuple[str, ...], label: str | None
) -> tuple[Any, Any]:
    """Returns the two arguments of `fit` in `validation_data`: a tuple of both, or a table.

    `expected` describes the tuple in the error message, such as "a tuple (texts, labels)".
    """
    if is_table(value):
        return split_examples("validation_data", value, None, text, label)
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(f"validation_data is {described(value)}; expected {expected}")
    return value


@contextmanager
def errors_within(name: str) -> Iterator[None]:
    """Adds the name of an argument, of which a part is checked, to the messages of InputErrors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def split_rows(
    fraction: float, seed: int, *columns: Sequence[Any] | None
) -> tuple[list[Any], list[Any]]:
    """Splits columns of n values at random into those of training and of `fraction` of the rows.

    A column may be None, which is returned for both. The rows keep their order.
    """
    count = len(columns[0])
    if count < 2:
        raise InputError(
            f"validation_split={fraction}: there are {count} examples; expected at least 2"
        )
    order = np.random.default_rng([seed, 0]).permutation(count)
    held_out = min(max(1, round(fraction * count)), count - 1)
    parts = (sorted(part.tolist()) for part in (order[held_out:], order[:held_out]))
    return tuple(
        [None if column is None else [column[index] for index in part] for column in columns]
        for part in parts
    )


def _column(name: str, table: Any, column: str, argument: str) -> Any:
    """Returns a column of a table, and the names of the classes for a column of `ClassLabel`."""
    splits = getattr(table, "column_names", None)
    if isinstance(splits, Mapping):
        raise InputError(
            f"{name} is a {type(table).__name__} with the splits {', '.join(splits)}; expected one "
            f"of them, such as data[{next(iter(splits), 'train')!r}]"
        )
    if not isinstance(table, Sized):
        raise InputError(
            f"{name} is a {type(table).__name__}; expected a table in memory or on disk, such as "
            "that of load_dataset without streaming"
        )
    data_format = getattr(table, "format", None)
    # A dataset may convert to arrays or tables; "custom" is a function of the user.
    if isinstance(data_format, Mapping) and data_format.get("type") not in (None, "custom"):
        table = table.with_format(None)
    names = table if isinstance(table, dict) else getattr(table, "column_names", None)
    names = [*(table.columns if names is None else names)]
    if column not in names:
        raise InputError(
            f"{name} has no column {column!r}; expected {argument}= with one of its columns "
            f"{', '.join(map(str, names))}"
        )
    features = getattr(table, "features", None)
    feature = features.get(column) if isinstance(features, Mapping) else None
    feature = getattr(feature, "feature", feature)  # That of the items of a list.
    classes = getattr(feature, "names", None)
    values = table[column][:]  # All at once, which is much faster with `datasets`.
    return _class_names([*values], classes) if classes else values


def _class_names(values: list[Any], classes: Sequence[str]) -> list[Any]:
    """Converts numbers, or lists of numbers, to names; a number that has no name is unchanged."""
    named = dict(enumerate(classes))
    return [
        _class_names(value, classes) if isinstance(value, list) else named.get(value, value)
        for value in values
    ]


def _elements(name: str, dataset: Any) -> list[Any]:
    """Returns the elements of a tf.data.Dataset; those of its batches, if it has batches."""
    if int(dataset.cardinality()) == -1:
        raise InputError(f"{name} is an infinite tf.data.Dataset; expected one without repeat()")
    spec = dataset.element_spec
    while isinstance(spec, tuple | dict):
        spec = next(iter(spec.values() if isinstance(spec, dict) else spec))
    return [*(dataset.unbatch() if spec.shape.rank else dataset).as_numpy_iterator()]


def check_count(value: Any, name: str = "batch_size") -> int:
    """Checks that a number, such as a batch size, is an integer of at least 1; returns it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}: expected a whole number of at least 1")
    return value


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


def _as_label(value: Any) -> str:
    """Converts the name of a label to a string; booleans are written as in JSON."""
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def head_labels(
    checkpoint: "Checkpoint",
    names: Sequence[str] | None,
    labels_of: Callable[[list[str]], list[str]] = list,
) -> tuple[list[str], bool]:
    """Returns the labels of a model's head, in the order of its logits.

    `names` are the labels, or names that `labels_of` converts if they are not those of the head.
    Without `names`, the labels are those of the checkpoint, or else LABEL_0, LABEL_1, ... as in
    transformers, and [] without a head. Also returns whether they have other names than LABEL_N.
    """
    with checkpoint.open_weights() as stored:
        num_logits = stored.num_labels or 0
    saved = (checkpoint.named_labels or []) if num_logits else []
    if names is None:
        default = (checkpoint.labels or []) if num_logits else []
        return default or [f"LABEL_{index}" for index in range(num_logits)], bool(saved)
    labels = check_list("labels", names, "names")
    is_text = all(isinstance(name, str | bytes) for name in labels)
    labels = check_strings("labels", labels) if is_text else [*map(_as_label, labels)]
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
