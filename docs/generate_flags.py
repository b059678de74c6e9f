"""Writes the reference pages of the programs' flags to docs/reference/programs.

    .venv/bin/python -m docs.generate_flags

`make docs` runs this command before it builds the site. It imports neither TensorFlow nor Keras.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from absl.flags import Flag, FlagValues

from data_tools.settings import define_reading_flags
from keras_bert.programs import fine_tuning_flags, run_flags
from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.flags import Definitions, own_flags
from keras_bert.programs.program import Program

FOLDER = Path(__file__).parent / "reference" / "programs"

# The files at the top level of a checkout that start a program.
FILES = {
    "pretrain": "run_pretraining.py",
    "classify": "run_classifier.py",
    "squad": "run_squad.py",
    "ner": "run_ner.py",
    "embed": "run_embedding.py",
    "fill-mask": "run_fill_mask.py",
    "extract-features": "extract_features.py",
    "export": "export_model.py",
}

_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "string": "string"}
_REQUIRED = "is required and must not be empty"
_CHOICES = re.compile(r"^<[^>]*>: ")  # absl puts the choices of a flag before its help.
_FLAG = re.compile(r"(--[a-z][a-z0-9_]*(?:=[A-Za-z0-9_]+)?)")


def _names(define: Callable[[Definitions], None]) -> set[str]:
    values = FlagValues()
    define(Definitions(values, "group"))
    return set(own_flags(values))


OWN = "Flags of this program"
# Flags that several programs share, by the title of their group. A program has a group if it has
# all of its flags; a flag belongs to the last group that has it.
GROUPS: Mapping[str, set[str]] = {
    "Reading the corpus": _names(define_reading_flags),
    "Training and evaluation": _names(fine_tuning_flags.define_flags),
    "Devices, precision and memory": _names(run_flags.define_computing),
}


def flags_of(program: Program) -> FlagValues:
    """Returns the flags that a program defines, without absl's own."""
    values = FlagValues()
    program.define_flags(Definitions(values, program.name))
    return values


def page(program: Program, purpose: str) -> str:
    """Returns the Markdown page of a program."""
    values = flags_of(program)
    flags = own_flags(values)
    shared = {title: names for title, names in GROUPS.items() if names <= set(flags)}
    groups: dict[str, list[Flag]] = {title: [] for title in (OWN, *shared)}
    for name, flag in flags.items():
        titles = [title for title, names in shared.items() if name in names]
        groups[titles[-1] if titles else OWN].append(flag)
    file = FILES.get(program.name)
    parts = [
        f"# keras-bert {program.name}",
        f"{purpose[0].upper()}{purpose[1:]}."
        + (f" In a checkout also: `python {file}`." if file else ""),
        _as_markdown(program.description),
    ]
    required = _required(values)
    for title, members in groups.items():
        if members:
            parts += [f"## {title}", _table(members, required)]
    parts.append(
        "absl's flags are accepted too, such as `--verbosity`, `--flagfile` and `--log_dir`; "
        "`--helpfull` lists them. A boolean flag is unset by `--noNAME` or `--NAME=false`."
    )
    return "\n\n".join(parts) + "\n"


def index(programs: Sequence[tuple[Program, str]]) -> str:
    """Returns the page that lists all programs."""
    rows = [
        f"| [`keras-bert {program.name}`]({program.name}.md) | {purpose} | "
        f"{_as_code(FILES.get(program.name))} |"
        for program, purpose in programs
    ]
    return "\n".join(
        [
            "# Programs",
            "",
            "Installation adds one command, `keras-bert`, with the programs below as subcommands.",
            "In a checkout, the files in the third column start the same programs. `--help` prints",
            "the flags that these pages list; both come from the same definitions.",
            "",
            "| program | purpose | file |",
            "| --- | --- | --- |",
            *rows,
            "",
            "## Exit codes",
            "",
            "| code | meaning |",
            "| --- | --- |",
            "| 0 | success; also `--help` |",
            "| 1 | invalid input or too little memory, reported in one line |",
            "| 75 | the run was stopped by SIGTERM, lost a worker or a GPU, or another process "
            "uses its folder or the worker's port; the same command resumes it |",
            "| 130 | Ctrl-C; in training, after a checkpoint was saved |",
            "| 141 | the reader of stdout has ended, as in `--help \\| head -1` |",
            "",
        ]
    )


def _as_code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _as_markdown(description: str) -> str:
    """Indents commands at the start of a line, so that Markdown shows them as code."""
    lines = [
        f"    {line}" if line.startswith("keras-bert ") else line
        for line in description.strip().splitlines()[1:]
    ]
    first = description.strip().splitlines()[0]
    return "\n".join([first, *lines])


def _required(values: FlagValues) -> set[str]:
    """Returns the names of the flags that must be given."""
    return {
        name
        for name in own_flags(values)
        if any(
            validator.message.startswith((_REQUIRED, f"--{name} {_REQUIRED}"))
            for validator in values[name].validators
        )
    }


def _table(flags: Sequence[Flag], required: set[str]) -> str:
    rows = ["| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
    for flag in flags:
        default = "required" if flag.name in required else _default(flag)
        meaning = _escape(_CHOICES.sub("", " ".join((flag.help or "").split())))
        rows.append(f"| `--{flag.name}` | {_type(flag)} | {default} | {meaning} |")
    return "\n".join(rows)


def _type(flag: Flag) -> str:
    """Returns the type of a flag, with its choices or bounds."""
    choices = getattr(flag.parser, "enum_values", None)
    if choices:
        return " \\| ".join(f"`{choice}`" for choice in choices if choice)
    kind = flag.flag_type()
    if "comma" in kind:
        return "comma-separated list"
    low = getattr(flag.parser, "lower_bound", None)
    high = getattr(flag.parser, "upper_bound", None)
    bounds = f", at least {low}" if low is not None else ""
    if low is not None and high is not None:
        bounds = f" from {low} to {high}"
    elif high is not None:
        bounds = f", at most {high}"
    return _TYPES.get(kind, kind) + bounds


def _default(flag: Flag) -> str:
    default = flag.default
    if default is None or default == "" or default == []:
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        return f"`{','.join(default)}`"
    return f"`{default}`"


def _escape(text: str) -> str:
    """Escapes characters that Markdown or HTML would interpret, and shows flags as code."""
    parts = _FLAG.split(text)  # Every second part is a flag.
    for index, part in enumerate(parts):
        parts[index] = f"`{part}`" if index % 2 else re.sub(r"([\\|*_])", r"\\\1", part)
    return "".join(parts).replace("<", "&lt;")


def main() -> None:
    """Writes all pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    programs = [
        (importlib.import_module(module).PROGRAM, purpose) for module, purpose in PROGRAMS.values()
    ]
    for program, purpose in programs:
        (FOLDER / f"{program.name}.md").write_text(page(program, purpose), encoding="utf-8")
    (FOLDER / "index.md").write_text(index(programs), encoding="utf-8")


if __name__ == "__main__":
    main()
