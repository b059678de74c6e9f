"""Reads a recipe, a TOML file with the flags of each phase of a pre-training run.

    [data]                      # flags of create-pretraining-data, for every phase
    [flags]                     # flags of run_pretraining.py, for every phase
    [[phase]]                   # flags of one phase; a later one starts from the previous one
    data = {max_seq_length = 128}
    [[phase]]
    continue_optimizer = true   # also continues the optimizer state and learning-rate schedule

Precedence of flags, highest first: the command line, [[phase]], [flags], the program's defaults.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import keras_bert
from keras_bert.errors import InputError
from keras_bert.options import Option

_BUNDLED = Path(keras_bert.__file__).parent / "recipes"
# The flags that --recipe_scale multiplies.
_STEPS = ("num_train_steps", "num_warmup_steps")
# Settings in `data` that are also flags of run_pretraining.py, which checks the records with them.
_SHAPE = ("max_seq_length", "max_predictions_per_seq")
# The flags that must not change between phases that share an optimizer and its schedule.
_SCHEDULE_FLAGS = (
    "optimizer",
    "bias_correction",
    "optimizer_state_dtype",
    "mixed_precision",
    "learning_rate",
    "num_warmup_steps",
)
_LENGTH_PLACEHOLDER = "{max_seq_length}"

Options = Mapping[str, Option]  # by the name of the flag


class RecipePhase(NamedTuple):
    """The flags of one phase; those of a run without a recipe, if the title is empty.

    Attributes:
        title: the name of the phase in error messages and reports.
        flags: {name: value} of the flags of run_pretraining.py, and "schedule_steps", the total
            number of steps of the phases that share the phase's learning-rate schedule.
        data: {name: value} of the flags of create-pretraining-data.
        continue_optimizer: whether the optimizer state and learning-rate schedule of the previous
            phase continue.
    """

    title: str
    flags: Mapping[str, Any]
    data: Mapping[str, Any]
    continue_optimizer: bool = False


def read_recipe(
    path: str,
    options: Options,
    data_options: Options,
    check_data: Callable[..., Any],
    defaults: Mapping[str, Any],
    command_line: Mapping[str, Any],
    scale: float = 1.0,
) -> list[RecipePhase]:
    """Reads and checks a recipe, and completes the flags of its phases.

    Args:
        path: the TOML file, or the name of a bundled recipe.
        options: the declarations of the flags of run_pretraining.py that recipes may contain.
        data_options: the declarations of the flags that `data` may contain.
        check_data: takes the settings in `data` as keyword arguments, and raises InputError for
            invalid combinations.
        defaults: the values of all flags of run_pretraining.py.
        command_line: the values of the flags on the command line.
        scale: multiplies the recipe's numbers of steps, so that the schedule keeps its shape.

    Raises:
        InputError: the file is missing or is not valid TOML, a key is unknown, or a value has the
            wrong type or is out of range; the message has the file and the key. Or phases with a
            common schedule have different settings for it, or the paths of records do not fit the
            sequence lengths of the phases.
    """
    if not 0 < scale <= 1000:
        raise InputError(f"--recipe_scale={scale}: expected a number above 0, at most 1000")
    content = _read_toml(path)
    shared = _parse(f"{path}: flags", content.get("flags", {}), options)
    shared_data = _parse(f"{path}: data", content.get("data", {}), data_options)
    phases: list[RecipePhase] = []
    for number, table in enumerate(content["phase"], 1):
        title = f"{path}: phase {number}"
        if not isinstance(table, dict):
            raise InputError(f"{title} is {table!r}; expected a table")
        special = {"data": {}, "continue_optimizer": False} | table
        data = shared_data | _parse(f"{title}: data", special["data"], data_options)
        try:
            check_data(**data)
        except InputError as error:
            raise InputError(f"{title}: data: {error}") from None
        continues = special["continue_optimizer"]
        if not isinstance(continues, bool) or (continues and number == 1):
            raise InputError(
                f"{title}: continue_optimizer is {continues!r}; expected true or false, and false "
                "in the first phase"
            )
        table = {n: v for n, v in table.items() if n not in ("data", "continue_optimizer")}
        flags = {n: data[n] for n in _SHAPE if n in data} | shared | _parse(title, table, options)
        if "num_train_steps" not in flags:
            raise InputError(f"{title}: num_train_steps is missing")
        # At least one step, so that a trial with a small scale runs every part of the recipe.
        steps = {n: max(1, round(flags[n] * scale)) for n in _STEPS if flags.get(n)}
        config = {"bert_config": ""} if command_line.get("init_checkpoint") else {}
        flags = {**defaults, **flags, **steps, **config, **command_line}
        data |= {n: command_line[n] for n in _SHAPE if n in command_line and n in data}
        phases.append(RecipePhase(title, flags, data, continues))
    _check_schedules(phases)
    _check_input_file(path, phases)
    return [_complete(phases, index) for index in range(len(phases))]


def _read_toml(path: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(find_recipe(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        bundled = ", ".join(bundled_recipes())
        expected = f"expected a TOML file or one of {bundled}"
        raise InputError(f"{path}: cannot be read: {error.strerror}; {expected}") from error
    except ValueError as error:  # not UTF-8, not TOML
        raise InputError(f"{path}: is not valid TOML: {error}") from error
    unknown = sorted(set(content) - {"data", "flags", "phase"})
    if unknown:
        raise InputError(f"{path}: unknown key {unknown[0]}; expected data, flags or phase")
    if not isinstance(content.get("phase"), list) or not content["phase"]:
        raise InputError(f"{path}: has no [[phase]]; expected at least one")
    return content


def _parse(where: str, table: Any, options: Options) -> dict[str, Any]:
    """Checks a table of flags by their declarations; error messages start with `where`."""
    if not isinstance(table, dict):
        raise InputError(f"{where} is {table!r}; expected a table")
    values = {}
    for name, value in table.items():
        if name not in options:
            raise InputError(f"{where}: {name} is not a flag that a recipe can set here")
        try:
            values[name] = options[name].check(value)
        except ValueError as error:
            raise InputError(f"{where}: {name} is {value!r}; {error}") from None
    return values


def _check_schedules(phases: Sequence[RecipePhase]) -> None:
    for previous, phase in pairwise(phases):
        for name in _SCHEDULE_FLAGS:
            if phase.continue_optimizer and phase.flags[name] != previous.flags[name]:
                raise InputError(
                    f"{phase.title}: {name} is {phase.flags[name]}, but continue_optimizer needs "
                    f"the value of the previous phase, {previous.flags[name]}"
                )


def _check_input_file(path: str, phases: Sequence[RecipePhase]) -> None:
    lengths = list(dict.fromkeys(phase.flags["max_seq_length"] for phase in phases))
    name = phases[0].flags["input_file"]
    if name and len(lengths) > 1 and _LENGTH_PLACEHOLDER not in name:
        raise InputError(
            f"--input_file={name}: the phases of {path} have max_seq_length "
            f"{', '.join(map(str, lengths))}; expected a path with {_LENGTH_PLACEHOLDER}"
        )


def _complete(phases: Sequence[RecipePhase], index: int) -> RecipePhase:
    """Adds the length of the schedule, and replaces {max_seq_length} in the paths of records."""
    phase, first, last = phases[index], index, index + 1
    while phases[first].continue_optimizer:
        first -= 1
    while last < len(phases) and phases[last].continue_optimizer:
        last += 1
    steps = sum(each.flags["num_train_steps"] for each in phases[first:last])
    flags, length = {**phase.flags, "schedule_steps": steps}, phase.flags["max_seq_length"]
    for name in ("input_file", "eval_file"):
        if _LENGTH_PLACEHOLDER in flags[name] and not length:
            raise InputError(
                f"--{name}={flags[name]}: {phase.title} has no max_seq_length; expected one to "
                f"replace {_LENGTH_PLACEHOLDER}"
            )
        flags[name] = flags[name].replace(_LENGTH_PLACEHOLDER, str(length))
    return phase._replace(flags=flags)


def bundled_recipes() -> list[str]:
    """Returns the names of the bundled recipes."""
    return sorted(path.stem for path in _BUNDLED.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """Returns the path of a recipe: an existing file, or a bundled recipe.

    A bundled recipe is named NAME, NAME.toml or recipes/NAME.toml.
    """
    path = Path(name)
    is_plain = path.parent.as_posix() in (".", "recipes")
    if is_plain and path.stem in bundled_recipes() and not path.is_file():
        return _BUNDLED / f"{path.stem}.toml"
    return path
