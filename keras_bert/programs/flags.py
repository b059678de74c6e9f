"""Defines and parses the flags of one program.

Each program has its own `absl.flags.FlagValues`, so that several programs can run in one process.
absl's own flags (logging, debugging) are shared by all programs.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags, logging
from absl.flags import FlagValues

# Upper bounds of flags, above all sensible values; larger ones would exhaust memory or time.
MAX_BATCH_SIZE = 2**20
MAX_SEQ_LENGTH = 2**16
MAX_REPEATS = 1e6  # passes over the training examples

# The modules of absl whose flags every program accepts; importing them defines the flags.
_ABSL = (app.__name__, logging.__name__)


class Definitions:
    """Defines the flags of one program."""

    def __init__(self, values: FlagValues, program: str):
        self._values = values
        self._where = {"flag_values": values, "module_name": program}

    def string(self, name: str, default: str | None, description: str) -> None:
        """Defines a string flag."""
        flags.DEFINE_string(name, default, description, **self._where)

    def boolean(self, name: str, default: bool | None, description: str) -> None:
        """Defines a boolean flag, set by --name and unset by --noname."""
        flags.DEFINE_bool(name, default, description, **self._where)

    def integer(
        self,
        name: str,
        default: int | None,
        description: str,
        lower_bound: int | None = None,
        upper_bound: int | None = None,
    ) -> None:
        """Defines an integer flag with inclusive bounds; None means the bound of int32."""
        parser = _IntegerParser(lower_bound, upper_bound)
        flags.DEFINE(
            parser, name, default, description, serializer=flags.ArgumentSerializer(), **self._where
        )

    def number(
        self,
        name: str,
        default: float | None,
        description: str,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
    ) -> None:
        """Defines a float flag with inclusive bounds; `inf` and `nan` are always rejected."""
        parser = _FloatParser(lower_bound, upper_bound)
        flags.DEFINE(
            parser, name, default, description, serializer=flags.ArgumentSerializer(), **self._where
        )

    def enum(
        self, name: str, default: str | None, choices: Sequence[str], description: str
    ) -> None:
        """Defines a string flag with a fixed set of values."""
        flags.DEFINE_enum(name, default, choices, description, **self._where)

    def strings(self, name: str, default: Sequence[str] | None, description: str) -> None:
        """Defines a flag for a list of strings, separated by commas."""
        flags.DEFINE_list(name, default, description, **self._where)

    def alias(self, name: str, original: str) -> None:
        """Defines a second name for a flag."""
        flags.DEFINE_alias(name, original, **self._where)

    def require(self, *names: str, unless: str = "") -> None:
        """Requires non-empty values for flags, unless the boolean flag `unless` is set."""
        for name in names:
            message = f"is required and must not be empty; expected: {self._values[name].help}"
            if unless:
                self.check([name, unless], lambda two: any(two.values()), f"--{name} {message}")
            else:
                self.check_value(name, bool, message)

    def check_value(self, name: str, accepts: Callable[[Any], bool], message: str) -> None:
        """Rejects values of a flag for which `accepts(value)` is false."""
        flags.register_validator(name, accepts, message, self._values)

    def check(
        self, names: Sequence[str], accepts: Callable[[Mapping[str, Any]], bool], message: str
    ) -> None:
        """Rejects combinations of flags for which `accepts({name: value})` is false."""
        flags.register_multi_flags_validator(names, accepts, message, self._values)


def own_flags(values: FlagValues) -> dict[str, flags.Flag]:
    """Returns {name: flag} of a program's flags without absl's, in the order of definition."""
    modules = values.flags_by_module_dict()
    return {
        flag.name: flag
        for module, defined in modules.items()
        if module not in _ABSL
        for flag in defined
    }


@contextlib.contextmanager
def absl_flags(values: FlagValues, description: str) -> Iterator[None]:
    """Adds absl's flags to the flags of a program, and at the end restores the values of absl's.

    absl reads its flags in `absl.flags.FLAGS`, and a program's flags contain the same objects.
    Parsing absl's flags for one program therefore sets them for the whole process. `description` is
    the text that --help prints above the flags.
    """
    shared = [
        (module, flag)
        for module in _ABSL
        for flag in flags.FLAGS.get_flags_for_module(module)
        if not isinstance(flag, app.HelpFlag | app.HelpfullFlag | app.HelpXMLFlag)
        and flag.name != app.OnlyCheckFlagsFlag().name
    ]
    for module, flag in shared:
        flags.DEFINE_flag(flag, values, module)
    _define_help(values, description)
    before = [(flag, flag.value, flag.present, flag.using_default_value) for _, flag in shared]
    for _, flag in shared:  # Otherwise flags set by code count as given by the user.
        flag.unparse()
    flags.FLAGS.mark_as_parsed()  # Otherwise absl logs a warning.
    try:
        yield
    finally:
        for flag, *state in before:
            flag.value, flag.present, flag.using_default_value = state


class _IntegerParser(flags.IntegerParser):
    """Rejects integers that need more than 32 bits, unless the flag has bounds for them.

    Python's integers have no limit, but those of NumPy and TensorFlow do.
    """

    def is_outside_bounds(self, value: int) -> bool:
        if super().is_outside_bounds(value):
            return True
        low, high = self.lower_bound, self.upper_bound
        if not -(2**31) <= value < 2**31 and (low if value < 0 else high) is None:
            raise ValueError("expected an integer of at most 32 bits")
        return False


class _FloatParser(flags.FloatParser):
    """Rejects `inf` and `nan`, which bounds do not reject."""

    def convert(self, argument: int | float | str) -> float:
        try:
            value = super().convert(argument)
        except OverflowError:  # An integer with hundreds of digits, in a recipe or in run.json.
            value = math.inf
        if not math.isfinite(value):
            raise ValueError("expected a finite number")
        return value


class _PrintingFlag(flags.BooleanFlag):
    """A flag that makes the program print a text and exit."""

    def __init__(
        self, name: str, description: str, act: Callable[[], None], short_name: str | None = None
    ):
        super().__init__(name, False, description, short_name=short_name)
        self._act = act

    def parse(self, argument: str) -> None:
        if self._parse(argument):
            self._act()
            sys.exit(0)  # absl's own --help ends with 1, like a failure.


def _define_help(values: FlagValues, description: str) -> None:
    """Defines --help and its variants; absl's own ones would print `absl.flags.FLAGS`."""

    def short_help() -> None:
        hint = "Try --helpfull to get a list of all flags."
        print(f"{description}\nflags:\n{values.main_module_help()}\n\n{hint}")

    def full_help() -> None:
        print(f"{description}\nflags:\n{values.get_help()}")

    def xml_help() -> None:
        values.write_help_in_xml_format(sys.stdout)

    for flag in (
        _PrintingFlag("help", "show this help", short_help, "?"),
        _PrintingFlag("helpshort", "show this help", short_help),
        _PrintingFlag("helpfull", "show full help", full_help),
        _PrintingFlag("helpxml", "like --helpfull, but generates XML output", xml_help),
        app.OnlyCheckFlagsFlag(),
    ):
        flags.DEFINE_flag(flag, values, app.__name__)
