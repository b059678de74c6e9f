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
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from absl.flags import ArgumentParser

import keras_bert
from keras_bert.errors import InputError

_BUNDLED = Path(keras_bert.__file__).parent / "recipes"
# The flags that --recipe_scale multiplies.
STEPS = ("num_train_steps", "num_warmup_steps", "batch_ramp_steps")
# Settings in `data` that are also flags of run_pretraining.py, which checks the records with them.
SHAPE = ("max_seq_length", "max_predictions_per_seq")
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
_TYPES = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "bool": (bool, "true or false"),
    "string": (str, "a string"),
    "string enum": (str, "a string"),
}


@dataclass(frozen=True)
class Phase:
    """One phase of a recipe.

    Attributes:
        recipe: the path or name of the recipe; empty without one.
        number: the number of the phase, from 1.
        flags: {name: value} of the flags of run_pretraining.py.
        data: {name: value} of the flags of create-pretraining-data.
        continue_optimizer: whether the optimizer state and learning-rate schedule of the previous
            phase continue.
    """

    recipe: str
    number: int
    flags: Mapping[str, Any]
    data: Mapping[str, Any]
    continue_optimizer: bool = False

    @property
    def title(self) -> str:
        """The name of the phase in error messages and reports."""
        return f"{self.recipe}: phase {self.number}"


# --- read ---


def read_recipe(
    path: str,
    parsers: Mapping[str, ArgumentParser],
    check_data: Callable[..., Any],
    data_flags: Mapping[str, type],
) -> list[Phase]:
    """Reads and checks a recipe; the phases have only the flags that are in the recipe.

    Args:
        path: the TOML file, or the name of a bundled recipe.
        parsers: {name: parser} of the flags of run_pretraining.py that recipes may contain.
        check_data: takes the settings in `data` as keyword arguments, and raises InputError for
            invalid values.
        data_flags: {name: type} of the settings that `data` may contain.

    Raises:
        InputError: the file is missing or is not valid TOML, a key is unknown, or a value has the
            wrong type or is out of range. The message contains the file and the key.
    """
    try:
        content = tomllib.loads(find_recipe(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        bundled = ", ".join(bundled_recipes())
        expected = f"expected a TOML file or one of {bundled}"
        raise InputError(f"{path}: cannot be read: {error.strerror}; {expected}") from error
    except ValueError as error:  # not UTF-8, not TOML
        raise InputError(f"{path}: is not valid TOML: {error}") from error
    phases = content.get("phase")
    _check_tables(path, content, phases)

    def flags_of(place: str, table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _flag(place, name, value, parsers) for name, value in table.items()}

    def data_of(place: str, table: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in table.items():
            _check_data_flag(f"{place}: {name}", name, value, data_flags)
        return dict(table)

    shared = flags_of(f"{path}: flags", content.get("flags", {}))
    shared_data = data_of(f"{path}: data", content.get("data", {}))
    read = []
    for number, table in enumerate(phases, 1):
        place, own = f"{path}: phase {number}", dict(table)
        data = shared_data | data_of(f"{place}: data", own.pop("data", {}))
        try:
            check_data(**data)
        except InputError as error:
            raise InputError(f"{place}: data: {error}") from None
        continues_optimizer = own.pop("continue_optimizer", False)
        if not isinstance(continues_optimizer, bool) or (continues_optimizer and number == 1):
            raise InputError(
                f"{place}: continue_optimizer is {continues_optimizer!r}; expected true or false, "
                "and false in the first phase"
            )
        shape = {name: data[name] for name in SHAPE if name in data}
        flags = shape | shared | flags_of(place, own)
        if "num_train_steps" not in flags:
            raise InputError(f"{place}: num_train_steps is missing")
        read.append(Phase(path, number, flags, data, continues_optimizer))
    return read


def _check_tables(path: str, content: Mapping[str, Any], phases: Any) -> None:
    unknown = sorted(set(content) - {"data", "flags", "phase"})
    if unknown:
        raise InputError(f"{path}: unknown key {unknown[0]}; expected data, flags or phase")
    if not isinstance(phases, list) or not phases:
        raise InputError(f"{path}: has no [[phase]]; expected at least one")
    tables = {"data": content.get("data", {}), "flags": content.get("flags", {})}
    for number, phase in enumerate(phases, 1):
        tables[f"phase {number}"] = phase
        if isinstance(phase, dict):
            tables[f"phase {number}: data"] = phase.get("data", {})
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} is {table!r}; expected a table")


def _flag(place: str, name: str, value: Any, parsers: Mapping[str, ArgumentParser]) -> Any:
    if name not in parsers:
        raise InputError(f"{place}: {name} is not a flag that a recipe can set")
    kind, expected = _TYPES[parsers[name].flag_type()]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{place}: {name} is {value!r}; expected {expected}")
    try:
        return parsers[name].parse(value)
    except ValueError as error:
        raise InputError(f"{place}: {name} is {value!r}: {error}") from None


def _check_data_flag(place: str, name: str, value: Any, known: Mapping[str, type]) -> None:
    if name not in known:
        raise InputError(f"{place} is not a flag of create-pretraining-data")
    kind, expected = _TYPES["string" if known[name] is str else known[name].__name__]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{place} is {value!r}; expected {expected}")


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


# --- plan ---


def plan_phases(
    phases: Sequence[Phase], defaults: Mapping[str, Any], given: Mapping[str, Any], scale: float
) -> list[Phase]:
    """Completes the flags of the phases that `read_recipe` returned.

    The flags `given` on the command line override those of the recipe, which override `defaults`.
    `scale` multiplies the recipe's numbers of steps, so that the schedule keeps its shape.

    Returns:
        The phases with all flags; in the paths of records, {max_seq_length} is replaced. Their
        flags also have "schedule_steps", the total number of steps of the phases that share the
        phase's learning-rate schedule.

    Raises:
        InputError: the scale is out of range, phases with a common schedule have different settings
            for it, or the paths of records do not fit the sequence lengths of the phases.
    """
    if not 0 < scale <= 1000:
        raise InputError(f"--recipe_scale={scale}: expected a number above 0, at most 1000")
    planned = []
    for phase in phases:
        own = {n: _scaled(v, scale) if n in STEPS else v for n, v in phase.flags.items()}
        if given.get("init_checkpoint"):
            own["bert_config"] = ""  # The checkpoint's config is used.
        flags = {**defaults, **own, **given}
        data = phase.data | {n: flags[n] for n in SHAPE if n in given and n in phase.data}
        planned.append(replace(phase, flags=flags, data=data))
    _check_schedules(planned)
    _check_records(planned)
    return [
        replace(
            phase,
            flags={
                **phase.flags,
                "schedule_steps": _schedule_steps(planned, index),
                "input_file": _with_length(phase, "input_file"),
                "eval_file": _with_length(phase, "eval_file"),
            },
        )
        for index, phase in enumerate(planned)
    ]


def _scaled(steps: int, scale: float) -> int:
    # At least one step, so that a trial with a small scale runs every part of the recipe.
    return max(1, round(steps * scale)) if steps else 0


def _check_schedules(phases: Sequence[Phase]) -> None:
    for previous, phase in pairwise(phases):
        if not phase.continue_optimizer:
            continue
        for name in _SCHEDULE_FLAGS:
            if phase.flags[name] != previous.flags[name]:
                raise InputError(
                    f"{phase.title}: {name} is {phase.flags[name]}, but continue_optimizer needs "
                    f"the value of the previous phase, {previous.flags[name]}"
                )


def _schedule_steps(phases: Sequence[Phase], index: int) -> int:
    first, last = index, index + 1
    while phases[first].continue_optimizer:
        first -= 1
    while last < len(phases) and phases[last].continue_optimizer:
        last += 1
    return sum(phase.flags["num_train_steps"] for phase in phases[first:last])


def _check_records(phases: Sequence[Phase]) -> None:
    lengths = list(dict.fromkeys(phase.flags["max_seq_length"] for phase in phases))
    name = phases[0].flags["input_file"]
    if name and len(lengths) > 1 and _LENGTH_PLACEHOLDER not in name:
        raise InputError(
            f"--input_file={name}: the phases of {phases[0].recipe} have max_seq_length "
            f"{', '.join(map(str, lengths))}; expected a path with {_LENGTH_PLACEHOLDER}"
        )


def _with_length(phase: Phase, name: str) -> str:
    value, length = phase.flags[name], phase.flags["max_seq_length"]
    if _LENGTH_PLACEHOLDER in value and not length:
        raise InputError(
            f"--{name}={value}: {phase.title} has no max_seq_length; expected one to replace "
            f"{_LENGTH_PLACEHOLDER}"
        )
    return value.replace(_LENGTH_PLACEHOLDER, str(length))


def data_command(phase: Phase) -> str:
    """Returns the command that creates a phase's records, with placeholders such as TEXT."""
    settings = [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in phase.data.items()
    ]
    places = ["--input_file=TEXT", "--vocab_file=VOCAB"]
    output = phase.flags["input_file"] or f"records-{phase.flags['max_seq_length']}"
    command = ["keras-bert create-pretraining-data", *places, f"--output_dir={output}"]
    return " ".join([*command, *settings])
