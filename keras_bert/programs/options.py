"""Makes the flags of a program from the declarations of its options.

    settings dataclasses -> flags and their checks -> values -> settings objects, run.json

Each program has its own `absl.flags.FlagValues`, so that several programs can run in one process.
absl's flags of logging are shared by all programs.
"""

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from absl import flags, logging
from absl.flags import Flag, FlagValues

from keras_bert.errors import InputError
from keras_bert.options import Option, options_of

# The groups of flags in --help and on the reference pages, in order.
GROUPS = ("data", "model", "training", "output", "server", "advanced")


def define_flags(
    settings: Sequence[type],
    program: str = "",
    defaults: Mapping[str, Any] | None = None,
    omit: Sequence[str] = (),
) -> FlagValues:
    """Returns a program's flags.

    Of several options with the same name in `settings`, the first counts. `defaults` are those that
    differ from the declarations, and `omit` are options that the program does not have.
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
        flag = (_ListFlag if option.kind is list else Flag)(
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


class _ListFlag(Flag):
    """A flag whose repetitions are joined: --name=a --name=b means --name=a,b."""

    def parse(self, argument: Any) -> None:
        earlier = self.value if self.present else []
        super().parse(argument)
        self.value = [*earlier, *self.value]


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


def grouped(values: FlagValues) -> dict[str, list[Option]]:
    """Returns {group: options} of a program's flags; the first group has those that are required.

    Groups without flags are omitted.
    """
    groups: dict[str, list[Option]] = {name: [] for name in ("required", *GROUPS)}
    for option in declared(values).values():
        groups["required" if option.required else option.group].append(option)
    return {name: options for name, options in groups.items() if options}


def check_flags(values: FlagValues, example: str = "") -> None:
    """Rejects missing flags, and flags that have no effect without another one."""
    options = declared(values)
    missing = [
        f"--{name}"
        for name, option in options.items()
        if option.required and not values[name].value and not _is_set(values, option.unless)
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        raise InputError(f"{names} {verb} required; the shortest command is: {example}")
    for name, option in options.items():
        flag = values[name]
        is_set = flag.present and (flag.value or flag.value != flag.default)
        if is_set and option.needs and not values[option.needs].value:
            raise InputError(
                f"--{name}: has no effect without --{option.needs}; expected both of these flags"
            )


def _is_set(values: FlagValues, name: str) -> bool:
    """Returns whether a flag, such as dry_run or nodo_train, is set; False for an empty name."""
    if name not in values and name.startswith("no"):
        return not values[name.removeprefix("no")].value
    return bool(name) and bool(values[name].value)


def recorded(values: FlagValues, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of run.json: the settings of a run that affect its result.

    `settings` are the values of the flags, or those of a phase and what follows from them.
    """
    unrecorded = {
        name
        for name, option in declared(values).items()
        # Without what it needs, an option has no effect.
        if option.may_change or (option.needs and not settings[option.needs])
    }
    return {name: value for name, value in settings.items() if name not in unrecorded}


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
    Parsing them for one program therefore sets them for the whole process.
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

    def print_help(is_full: bool = False) -> None:
        groups = grouped(values)
        advanced = [] if is_full else groups.pop("advanced", [])
        print(description.strip())
        for group, options in groups.items():
            print(f"\n{group.capitalize()} flags:", *map(_described, options), sep="\n")
        if is_full:
            print(values.module_help(logging.__name__))
        else:
            count = f"{len(advanced)} advanced flag{'s' * (len(advanced) > 1)}"
            more = f"{count}, and those" if advanced else "the flags"
            print(f"\n--helpfull lists {more} of logging, too.")

    for flag in (
        _PrintingFlag("help", "show this help", print_help, "?"),
        _PrintingFlag("helpshort", "show this help", print_help),
        _PrintingFlag("helpfull", "show full help", lambda: print_help(is_full=True)),
    ):
        flags.DEFINE_flag(flag, values, "help")


def _described(option: Option) -> str:
    """Returns the paragraph of --help about an option."""
    name = f"--[no]{option.name}" if option.kind is bool else f"--{option.name}"
    default = option.default
    if isinstance(default, bool | list | tuple):
        default = ",".join(default) if option.kind is list else str(default).lower()
    details = [option.expected] if option.choices else []
    is_described = default in (None, "") or "Default:" in option.help
    details += [] if is_described else [f"default: {default}"]
    details += [f"not needed with --{option.unless}"] if option.unless else []
    text = f"{name}: {option.help}" + (f" ({'; '.join(details)})" if details else "")
    indent = {"initial_indent": "  ", "subsequent_indent": "      "}
    return textwrap.fill(text, 88, **indent, break_long_words=False, break_on_hyphens=False)
