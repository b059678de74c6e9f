"""Reads a recipe, a TOML file with the flags of each phase of a pre-training run.

    [data]                      # flags of create-pretraining-data, for every phase
    [flags]                     # flags of keras-bert pretrain, for every phase
    [[phase]]                   # flags of one phase; a later one starts from the previous one
    data = {max_seq_length = 128}
    [[phase]]
    continue_optimizer = true   # also continues the optimizer state and learning-rate schedule

Precedence of flags, highest first: the command line, [[phase]], [flags], the program's defaults.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras_bert
from keras_bert.errors import InputError
from keras_bert.options import Option, from_values, options_of
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.settings import TrainingSettings

_BUNDLED = Path(keras_bert.__file__).parent / "recipes"
# The flags that --recipe_scale multiplies.
_STEPS = ("num_train_steps", "num_warmup_steps")
# Settings in `data` that are also flags of keras-bert pretrain, which checks the records with them.
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


@dataclass(frozen=True)
class Phase:
    """One phase of pre-training; a run without a recipe has a single one.

    Attributes:
        settings: the settings; `init_checkpoint` is used only in the first phase.
        training: the settings of the steps.
        record: the settings to save in run.json, which must be the same when the run is resumed.
            In a recipe, all flags and "schedule_steps", the total number of steps of the phases
            that share the phase's learning-rate schedule.
        data: the settings of create-pretraining-data that the records must have.
        continue_optimizer: whether the optimizer state and learning-rate schedule of the previous
            phase continue.
        title: the recipe and the number of the phase, for messages; empty without a recipe.
    """

    settings: PretrainingSettings
    training: TrainingSettings
    record: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    continue_optimizer: bool = False
    title: str = ""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Adds the title, if there is one, to InputErrors raised in the block."""
        try:
            yield
        except InputError as error:
            if not self.title:
                raise
            raise InputError(f"{self.title}: {error}") from error


def phase_of(
    flags: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    continue_optimizer: bool = False,
    title: str = "",
) -> Phase:
    """Creates the phase with these values of the flags of keras-bert pretrain, which it records."""
    settings = from_values(PretrainingSettings, flags)
    training = from_values(TrainingSettings, flags)
    return Phase(settings, training, flags, data or {}, continue_optimizer, title)


def read_recipe(
    path: str,
    data_settings: type,
    defaults: Mapping[str, Any],
    command_line: Mapping[str, Any],
    scale: float = 1.0,
) -> list[Phase]:
    """Reads and checks a recipe, and completes the flags of its phases.

    Args:
        path: the TOML file, or the name of a bundled recipe.
        data_settings: the dataclass that declares the flags that `data` may contain, and raises
            InputError for invalid combinations.
        defaults: the values of all flags of keras-bert pretrain.
        command_line: the values of the flags on the command line.
        scale: multiplies the recipe's numbers of steps, so that the schedule keeps its shape.
    """
    if not 0 < scale <= 1000:
        raise InputError(f"--recipe_scale={scale}: expected a number above 0, at most 1000")
    options = options_of(PretrainingSettings) | options_of(TrainingSettings)
    options = {name: declared for name, declared in options.items() if declared.in_recipe}
    data_options = options_of(data_settings)
    content = _read_toml(path)
    shared = _parse(f"{path}: flags", content.get("flags", {}), options)
    shared_data = _parse(f"{path}: data", content.get("data", {}), data_options)
    phases: list[Phase] = []
    for number, table in enumerate(content["phase"], 1):
        title = f"{path}: phase {number}"
        if not isinstance(table, dict):
            raise InputError(f"{title} is {table!r}; expected a table")
        special = {"data": {}, "continue_optimizer": False} | table
        data = shared_data | _parse(f"{title}: data", special["data"], data_options)
        try:
            data_settings(**data)
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
        phases.append(phase_of(flags, data, continues, title))
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


def _parse(where: str, table: Any, options: Mapping[str, Option]) -> dict[str, Any]:
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


def _check_schedules(phases: Sequence[Phase]) -> None:
    for previous, phase in pairwise(phases):
        for name in _SCHEDULE_FLAGS:
            if phase.continue_optimizer and phase.record[name] != previous.record[name]:
                raise InputError(
                    f"{phase.title}: {name} is {phase.record[name]}, but continue_optimizer needs "
                    f"the value of the previous phase, {previous.record[name]}"
                )


def _check_input_file(path: str, phases: Sequence[Phase]) -> None:
    lengths = list(dict.fromkeys(phase.record["max_seq_length"] for phase in phases))
    name = phases[0].record["input_file"]
    if name and len(lengths) > 1 and _LENGTH_PLACEHOLDER not in name:
        raise InputError(
            f"--input_file={name}: the phases of {path} have max_seq_length "
            f"{', '.join(map(str, lengths))}; expected a path with {_LENGTH_PLACEHOLDER}"
        )


def _complete(phases: Sequence[Phase], index: int) -> Phase:
    """Adds the length of the schedule, and replaces {max_seq_length} in the paths of records."""
    phase, first, last = phases[index], index, index + 1
    while phases[first].continue_optimizer:
        first -= 1
    while last < len(phases) and phases[last].continue_optimizer:
        last += 1
    steps = sum(each.record["num_train_steps"] for each in phases[first:last])
    flags, length = {**phase.record, "schedule_steps": steps}, phase.record["max_seq_length"]
    for name in ("input_file", "eval_file"):
        if _LENGTH_PLACEHOLDER in flags[name] and not length:
            raise InputError(
                f"--{name}={flags[name]}: {phase.title} has no max_seq_length; expected one to "
                f"replace {_LENGTH_PLACEHOLDER}"
            )
        flags[name] = flags[name].replace(_LENGTH_PLACEHOLDER, str(length))
    return phase_of(flags, phase.data, phase.continue_optimizer, phase.title)


def bundled_recipes() -> list[str]:
    """Returns the names of the bundled recipes."""
    return sorted(path.stem for path in _BUNDLED.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """Returns the path of a recipe: an existing file, or a bundled recipe."""
    path = Path(name)
    is_plain = path.parent.as_posix() in (".", "recipes")
    if is_plain and path.stem in bundled_recipes() and not path.is_file():
        return _BUNDLED / f"{path.stem}.toml"
    return path
