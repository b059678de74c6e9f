"""Damages a valid command line or one of its input files, at random."""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl.flags import ArgumentParser

# Values that no flag expects, or only some do. All paths stay in the folder of the case.
VALUES = (
    *("", "0", "-1", "1", "1.5", "2", "7", "100", "65536", "2147483647", "2147483648"),
    *("1" + "0" * 12, "1" + "0" * 30, "0.5", "1e-300", "1e300", "-1e300", "nan", "inf", "true"),
    *("x", "[1]", "{}", ",", "*", ".", "a" * 300, "missing/file", "lines.txt", "train.csv"),
    *("train.parquet", "squad.json", "vocab.txt", "bert", "run", "dataset", "documents"),
    *("\udc80", "😀", "a\nb"),
)
# Flags for which a valid value is an order to work for a long time.
_LONG = ("num_train_steps", "dupe_factor", "num_shards", "num_workers", "train_batch_size")
_LONG += ("eval_batch_size", "num_train_epochs", "recipe_scale")
_SHORT = ("", "-1", "0", "x", "nan", "1e300", "1" + "0" * 12)
_JSON_VALUES = (None, True, -1, 0, 10**12, 1e300, "x", "", "\ud800", [], {}, [[]], "0" * 5000)


def damage_arguments(
    rng: random.Random, arguments: Sequence[str], parsers: Mapping[str, ArgumentParser]
) -> tuple[list[str], str]:
    """Returns the changed arguments of a program, and what was changed.

    `parsers` has the parser of each flag of the program. Most values have the type of their flag.
    """
    flags = sorted(parsers)
    arguments = list(arguments)
    kind = rng.choice(["set", "set", "set", "set", "drop", "add", "unknown"])
    if kind == "drop":
        dropped = arguments.pop(rng.randrange(len(arguments)))
        return arguments, f"without {dropped}"
    if kind in ("add", "unknown"):
        word = rng.choice(VALUES) if kind == "add" else f"--{rng.choice(flags)}x=1"
        return [*arguments, word], f"with {word!r}"
    name = rng.choice(flags)
    values = [*(_SHORT if name in _LONG else VALUES)]
    if rng.random() < 0.8:
        values = [value for value in values if _is_accepted(parsers[name], value)] or values
    value = rng.choice(values)
    return [*arguments, f"--{name}={value}"], f"--{name}={value!r:.40}"


def _is_accepted(parser: ArgumentParser, value: str) -> bool:
    try:
        parser.parse(value)
    except ValueError:
        return False
    return True


def damage_file(rng: random.Random, folder: Path, files: Sequence[Path]) -> str:
    """Changes one of the files; returns what was changed."""
    path = rng.choice(files)
    kinds: list[Callable[[random.Random, bytes], bytes]] = [
        _truncated,
        _bits_flipped,
        _with_nul,
        _empty,
        _random_bytes,
        _as_utf16,
        _with_bad_byte,
        _long_line,
        _doubled,
    ]
    if path.suffix in (".json", ".jsonl"):
        kinds += [_other_json_value] * len(kinds)
    kind = rng.choice([*kinds, "swapped", "removed", "folder"])
    name = path.relative_to(folder)
    if kind == "swapped":
        others = sorted(p for p in folder.rglob("*") if p.is_file() and p != path)
        other = rng.choice(others)
        shutil.copy(other, path)
        return f"{name} replaced by {other.relative_to(folder)}"
    if kind in ("removed", "folder"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        return f"{name} {kind}"
    path.write_bytes(kind(rng, path.read_bytes()))
    return f"{name} {kind.__name__[1:]}"


def _truncated(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _bits_flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 3, 20])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _inserted(rng: random.Random, content: bytes, new: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + new + content[place:]


def _with_nul(rng: random.Random, content: bytes) -> bytes:
    return _inserted(rng, content, b"\0")


def _with_bad_byte(rng: random.Random, content: bytes) -> bytes:
    return _inserted(rng, content, rng.choice([b"\xff", b"\xe4", b"\xed\xa0\x80", b"\xf0\x9f"]))


def _long_line(rng: random.Random, content: bytes) -> bytes:
    return _inserted(rng, content, rng.choice([b"a", b"a ", b"[", b",", b"\t"]) * 100_000)


def _empty(rng: random.Random, content: bytes) -> bytes:
    return rng.choice([b"", b"\n", b"   \n\n"])


def _random_bytes(rng: random.Random, content: bytes) -> bytes:
    return rng.randbytes(rng.randrange(1, 2000))


def _as_utf16(rng: random.Random, content: bytes) -> bytes:
    return content.decode("latin-1").encode("utf-16")


def _doubled(rng: random.Random, content: bytes) -> bytes:
    return content + content


def _other_json_value(rng: random.Random, content: bytes) -> bytes:
    """Replaces a value anywhere in a JSON file, or in one line of a JSONL file."""
    lines = content.splitlines()
    place = rng.randrange(len(lines)) if len(lines) > 1 and lines[0].endswith(b"}") else None
    try:
        value = json.loads(content if place is None else lines[place])
    except ValueError:
        return content[1:]
    spots: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in pairs:
            spots.append((node, key))
            if isinstance(child, dict | list):
                visit(child)

    if isinstance(value, dict | list):
        visit(value)
    if spots:
        node, key = rng.choice(spots)
        node[key] = rng.choice(_JSON_VALUES)
    text = json.dumps(value).encode()
    return text if place is None else b"\n".join([*lines[:place], text, *lines[place + 1 :]])
