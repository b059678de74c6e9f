"""Makes the flags of a program from the declarations of its options.

    settings dataclasses -> flags and their checks -> values -> settings objects, run.json

Each program has its own `absl.flags.FlagValues`, so that several programs can run in one process.
absl's flags of logging are shared by all programs.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from absl import flags, logging
from absl.flags import Flag, FlagValues

from keras_bert.errors import InputError
from keras_bert.options import Option, options_of


def define_flags(
    settings: Sequence[type],
    program: str = "",
    defaults: Mapping[str, Any] | None = None,
    omit: Sequence[str] = (),
) -> FlagValues:
    """Returns a program's flags.

    Args:
        settings: the dataclasses with the options; of several with the same name, the first counts.
        program: the name of the program.
        defaults: {name: default} of options with another default than declared.
        omit: the names of options that the program does not have.
    """
    values, defaults = FlagValues(), defaults or {}
    options: dict[str, Option] = {}
    for group in settings:
        for name, option in options_of(group).items():
            options.setdefault(name, option)
    for name, option in options.items():
        if name in omit:
            continue
        option = replace(option, default=defaults.get(name, option.default))
        flag = Flag(
            _OptionParser(option),
            flags.CsvListSerializer(",") if option.kind is list else flags.ArgumentSerializer(),
            name,
            option.default,
            option.help,
            short_name=option.alias or None,
            boolean=option.kind is bool,
        )
        flags.DEFINE_flag(flag, values, program)
    return values


class _OptionParser(flags.ArgumentParser):
    """Parses and checks the values of a flag as its option declares."""

    def __init__(self, option: Option):
        self.option = option
        is_plain = option.kind in (bool, str) and not option.choices
        self.syntactic_help = "" if is_plain else option.expected

    def parse(self, argument: Any) -> Any:
        return self.option.parse(argument)

    def flag_type(self) -> str:
        return {str: "string", list: "list"}.get(self.option.kind, self.option.kind.__name__)


def declared(values: FlagValues) -> dict[str, Option]:
    """Returns {name: option} of a program's flags without absl's."""
    return {
        name: values[name].parser.option
        for name in values
        if isinstance(values[name].parser, _OptionParser) and values[name].name == name
    }


def values_of(values: FlagValues) -> dict[str, Any]:
    """Returns {name: value} of a program's flags without absl's."""
    return {name: values[name].value for name in declared(values)}


def check_flags(values: FlagValues) -> None:
    """Rejects missing flags, and flags that have no effect without another one."""
    for name, option in declared(values).items():
        flag = values[name]
        if (
            option.required
            and not flag.value
            and not (option.unless and values[option.unless].value)
        ):
            raise InputError(f"--{name} is required; expected: {option.help}")
        if flag.present and flag.value and option.needs and not values[option.needs].value:
            raise InputError(
                f"--{name}: has no effect without --{option.needs}; expected both of these flags"
            )


def recorded(values: FlagValues, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of run.json: the settings of a run that affect its result.

    `settings` are the values of the flags, or those of a phase and what follows from them.
    """
    options = declared(values)
    return {
        name: value
        for name, value in settings.items()
        if name not in options
        or not (options[name].may_change or _has_no_effect(options[name], settings))
    }


def _has_no_effect(option: Option, settings: Mapping[str, Any]) -> bool:
    return bool(option.needs) and not settings[option.needs]


def integers(values: FlagValues, name: str) -> list[int] | None:
    """Returns the value of a list flag as integers; None if the flag is not set."""
    texts = values[name].value
    if not values[name].present or texts is None:
        return None
    try:
        return [int(text) for text in texts or [""]]
    except ValueError:
        raise InputError(
            f"--{name}={','.join(texts)}: expected integers, separated by commas"
        ) from None


def set_flag(values: FlagValues, name: str, value: Any) -> None:
    """Sets a flag to a value, and logs it; does nothing if the value is empty."""
    if value:
        logging.info("--%s=%s", name, value)
        values[name].value = value


# --- absl's flags of logging, and --help ---


@contextlib.contextmanager
def absl_flags(values: FlagValues, description: str) -> Iterator[None]:
    """Adds absl's flags of logging to a program's flags, and restores their values at the end.

    absl reads these flags in `absl.flags.FLAGS`, and a program's flags contain the same objects.
    Parsing them for one program therefore sets them for the whole process. `description` is
    the text that --help prints above the flags.
    """
    shared = flags.FLAGS.get_flags_for_module(logging.__name__)
    for flag in shared:
        flags.DEFINE_flag(flag, values, logging.__name__)
    _define_help(values, description)
    before = [(flag, flag.value, flag.present, flag.using_default_value) for flag in shared]
    for flag in shared:  # Otherwise flags set by code count as given by the user.
        flag.unparse()
    flags.FLAGS.mark_as_parsed()  # Otherwise absl logs a warning.
    try:
        yield
    finally:
        for flag, *state in before:
            flag.value, flag.present, flag.using_default_value = state


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

    for flag in (
        _PrintingFlag("help", "show this help", short_help, "?"),
        _PrintingFlag("helpshort", "show this help", short_help),
        _PrintingFlag("helpfull", "show full help", full_help),
    ):
        flags.DEFINE_flag(flag, values, "help")
