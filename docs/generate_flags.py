"""Writes the reference pages of the programs' flags to docs/reference/programs.

    .venv/bin/python -m docs.generate_flags

`make docs` runs this command before it builds the site. It imports neither TensorFlow nor Keras.
"""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert.options import Option
from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.options import grouped
from keras_bert.programs.program import Program

FOLDER = Path(__file__).parent / "reference" / "programs"

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_FLAG = re.compile(r"(--[a-z][a-z0-9_]*(?:=[A-Za-z0-9_]+)?)")


def page(program: Program, purpose: str) -> str:
    """Returns the Markdown page of a program."""
    parts = [
        f"# keras-bert {program.name}",
        f"{purpose[0].upper()}{purpose[1:]}.",
        _as_markdown(program.description),
    ]
    for group, options in grouped(program.flags()).items():
        parts += [f"## {group.capitalize()} flags", _table(options)]
    parts.append(
        "absl's flags of logging and `--flagfile` are accepted too; `--helpfull` lists them and "
        "the advanced flags, `--help` the others. A boolean flag is unset by `--noNAME` or "
        "`--NAME=false`."
    )
    return "\n\n".join(parts) + "\n"


def index(programs: Sequence[tuple[Program, str]]) -> str:
    """Returns the page that lists all programs."""
    rows = [
        f"| [`keras-bert {program.name}`]({program.name}.md) | {purpose} |"
        for program, purpose in programs
    ]
    return "\n".join(
        [
            "# Programs",
            "",
            "Installation adds one command, `keras-bert`, with the programs below as subcommands.",
            "`--help` prints the flags that these pages list; both come from the same definitions.",
            "A checkout has files with the names of Google's programs: `run_squad.py` and so on.",
            "",
            "| program | purpose |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def _as_markdown(description: str) -> str:
    """Indents commands at the start of a line, so that Markdown shows them as code."""
    lines = [
        f"    {line}" if line.startswith("keras-bert ") else line
        for line in description.strip().splitlines()[1:]
    ]
    first = description.strip().splitlines()[0]
    return "\n".join([first, *lines])


def _table(options: Sequence[Option]) -> str:
    rows = ["| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
    for option in options:
        default = _default(option.default)
        if option.required:
            unless = f", not needed with `--{option.unless}`" if option.unless else ""
            default = f"required{unless}"
        meaning = _escape(" ".join(option.help.split()))
        rows.append(f"| `--{option.name}` | {_type(option)} | {default} | {meaning} |")
    return "\n".join(rows)


def _type(option: Option) -> str:
    """Returns the type of an option, with its choices or bounds."""
    if option.choices:
        return " \\| ".join(f"`{choice}`" for choice in option.choices if choice)
    if option.kind is list:
        return "comma-separated list"
    bounds = option.bounds
    return _TYPES[option.kind] + (f", {bounds}" if bounds else "")


def _default(default: Any) -> str:
    if default is None or default in ("", (), []):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list | tuple):
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
