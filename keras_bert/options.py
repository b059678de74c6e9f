"""Declares the options of programs and of the API: a dataclass field with help, bounds and choices.

    @dataclass(frozen=True)
    class Settings:
        train_batch_size: int = option(32, "Number of examples per training step.", min=1)

`keras_bert.programs.options` makes flags, run.json and the reference pages from the declarations;
`check` checks the values of an object that the API created.
"""

import csv
import dataclasses
import functools
import numbers
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from keras_bert.errors import InputError

Settings = TypeVar("Settings")

# Upper bounds, above all sensible values; larger ones would exhaust memory or time.
MAX_BATCH_SIZE = 2**20
MAX_SEQ_LENGTH = 2**16
MAX_REPEATS = 1e6  # passes over the training examples
WEEK = 7 * 24 * 3600.0  # seconds
MAX_SEED = 2**32 - 1
# The values of options that name a model, for their help.
ANY_MODEL = (
    "a model directory, run folder, TF1 checkpoint or KerasHub preset, or hf://NAME of the Hugging "
    "Face Hub"
)

_KINDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string"}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of an option; `option` documents the attributes."""

    name: str
    kind: type  # int, float, bool, str, or list for a list of strings
    default: Any
    help: str
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Sequence[str] = ()
    required: bool = False
    unless: str = ""
    needs: str = ""
    may_change: bool = False
    in_recipe: bool = True
    alias: str = ""
    argument: str = ""
    group: str = ""

    @property
    def bounds(self) -> str:
        """The bounds of a number in words; empty if there are none."""
        if self.min is not None and self.max is not None:
            return f"from {self.min:.15g} to {self.max:.15g}"
        bounds = {
            "at least": self.min,
            "above": self.above,
            "at most": self.max,
            "below": self.below,
        }
        return " and ".join(
            f"{word} {bound:.15g}" for word, bound in bounds.items() if bound is not None
        )

    @property
    def expected(self) -> str:
        """The values that the option accepts, for error messages and --help."""
        if self.choices:
            return "one of " + ", ".join(filter(None, self.choices))
        if self.kind is list:
            return "a list of strings, separated by commas"
        joined = " of " if self.bounds.startswith("at ") else " "
        return (_KINDS[self.kind] + joined + self.bounds).rstrip()

    def check(self, value: Any) -> Any:
        """Returns a value as the option's type; raises ValueError with the expected values."""
        if value is None and self.default is None:
            return None
        accepted = {float: numbers.Real, list: (list, tuple)}.get(self.kind, self.kind)
        is_valid = isinstance(value, accepted) and isinstance(value, bool) == (self.kind is bool)
        if is_valid and self.kind in (int, float):
            # Python's integers have no limit, but those of NumPy and TensorFlow do.
            size = 2**31 if self.kind is int else 1.7e308
            low = -size if self.min is None else self.min
            high = size - 1 if self.max is None else self.max
            is_valid = low <= value <= high and (self.above is None or value > self.above)
            is_valid = is_valid and (self.below is None or value < self.below)
            if not is_valid and self.kind is int and not -size <= value < size:
                raise ValueError(f"expected {self.expected}, and at most 32 bits")
        if not is_valid or (self.choices and value not in self.choices):
            raise ValueError(f"expected {self.expected}")
        return float(value) if self.kind is float else value

    def parse(self, text: Any) -> Any:
        """Returns the value that a command line gives as text; other values are only checked."""
        if not isinstance(text, str) or self.kind is str:
            return self.check(text)
        if self.kind is list:
            try:
                return [entry.strip() for entry in next(csv.reader([text], strict=True), [])]
            except csv.Error:  # A quote that is not closed.
                raise ValueError(f"expected {self.expected}") from None
        try:
            value = _BOOLEANS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            raise ValueError(f"expected {self.expected}") from None
        return self.check(value)


def option(default: Any, help: str = "", **declaration: Any) -> Any:
    """Declares a dataclass field as an option.

    Args:
        default: the default value; None for a value that another setting determines, MISSING for
            a value that has no default.
        help: one or more sentences; they also state the default if it is None or empty. Empty if
            the field is not a flag.
        **declaration: any of
            min, max: inclusive bounds. Integers have 32 bits without them.
            above, below: exclusive bounds.
            choices: the values of a string.
            required: whether the value must not be empty.
            unless: the option that makes a required option optional, such as dry_run or nodo_train.
            needs: the option without which this one has no effect and is rejected.
            may_change: whether it may differ when a run is resumed; it is not in run.json.
            in_recipe: whether a recipe can set it; otherwise it depends on the user or the machine.
            alias: a second name of the flag.
            argument: the name of the argument of `fit`, for options that `fit` has too.
            group: the group of flags in --help, data, model, training, output, server or advanced;
                by default the `GROUP` of the class.
    """
    metadata = {"help": help, **declaration}
    return dataclasses.field(default=default, metadata={"option": metadata})


def advanced(default: Any, help: str = "", **declaration: Any) -> Any:
    """Declares a dataclass field as an option that only --helpfull shows."""
    return option(default, help, group="advanced", **declaration)


def same_as(settings: type, name: str, **changes: Any) -> Any:
    """Declares a field like the option `name` of another dataclass, apart from `changes`."""
    (field,) = (field for field in dataclasses.fields(settings) if field.name == name)
    default = changes.pop("default", field.default)
    return dataclasses.field(
        default=default, metadata={"option": {**field.metadata["option"], **changes}}
    )


@functools.cache
def options_of(settings: type) -> Mapping[str, Option]:
    """Returns {name: declaration} of the options of a settings dataclass."""
    group = {"group": getattr(settings, "GROUP", "")}
    return {
        field.name: Option(
            field.name, _kind(field.type), field.default, **group | field.metadata["option"]
        )
        for field in dataclasses.fields(settings)
        if "option" in field.metadata
    }


def _kind(annotation: Any) -> type:
    """Returns the type of an option without None; list for all types of sequences."""
    if get_origin(annotation) in (types.UnionType, Union):
        (annotation,) = (arg for arg in get_args(annotation) if arg is not type(None))
    return annotation if annotation in _KINDS else list


def check(settings: Any, as_flags: bool = False) -> None:
    """Checks the values of a settings object against its declarations.

    Error messages name arguments, or flags if `as_flags` is true.
    """
    for name, declaration in options_of(type(settings)).items():
        value = getattr(settings, name)
        try:
            declaration.check(value)
        except ValueError as error:
            where = f"--{name}={value}" if as_flags else f"{name}={value!r}"
            raise InputError(f"{where}: {error}") from None


def fit_arguments(*settings: type) -> dict[str, Option]:
    """Returns {argument of `fit`: declaration} of the options that `fit` shares with programs."""
    return {
        declaration.argument: declaration
        for group in settings
        for declaration in options_of(group).values()
        if declaration.argument
    }


def from_values(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Creates a settings object from the values that have the names of its fields."""
    names = {field.name for field in dataclasses.fields(settings)}
    return settings(**{name: value for name, value in values.items() if name in names})
