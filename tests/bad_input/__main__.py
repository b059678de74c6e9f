"""Runs the programs on generated bad inputs, and reports tracebacks, hangs and partial outputs.

    python -m tests.bad_input --cases=100 --seed=1
    python -m tests.bad_input --cases=1 --seed=1 --first=17

The seed and the number determine a case: a program, and what is wrong with its command line or with
one of its input files; the first cases are valid. A program must end with exit code 0 or 1 in time,
print no traceback, leave its inputs as they are, and leave no output if it fails. All cases run in
this process, which keeps the memory of all graphs, so use several processes for many cases.
"""

import argparse
import collections
import contextlib
import faulthandler
import hashlib
import importlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from absl.flags import ArgumentParser

from tests import processes
from tests.bad_input.commands import COMMANDS, write_inputs, write_models
from tests.bad_input.mutations import damage_arguments, damage_file

# The address space of the process; a program that allocates more gets a MemoryError.
_MAX_BYTES = 16 * 2**30
# Outputs that exist only if a program succeeded.
_WHOLE = ("out.txt", "out.jsonl", "out.png", "out/1", "out/manifest.json", "out/model")
_WHOLE += ("out/triplets.jsonl",)


def run_command(name: str, arguments: Sequence[str]) -> subprocess.CompletedProcess:
    """Runs a program in the current folder."""
    return processes.call_here(COMMANDS[name][0], [f"keras-bert {name}", *arguments])


def prepare(folder: Path) -> None:
    """Creates the valid inputs, of which two are the outputs of programs."""
    folder.mkdir()
    write_inputs(folder)
    write_models(folder)
    for name, output in (("create-pretraining-data", "dataset"), ("pretrain", "run")):
        with contextlib.chdir(folder):
            done = run_command(name, COMMANDS[name][1])
        assert done.returncode == 0, f"the valid command {name} failed:\n{done.stderr}"
        shutil.move(folder / "out", folder / output)


def run_case(inputs: Path, place: Path, seed: int, number: int) -> dict:
    """Runs one case in the new folder `place`, and returns what happened.

    The first cases are the valid commands, which must succeed.
    """
    rng = random.Random(f"{seed}-{number}")
    is_valid = number < len(COMMANDS)
    name = [*COMMANDS][number] if is_valid else _any_command(rng)
    module, arguments = COMMANDS[name]
    shutil.copytree(inputs, place)
    if is_valid:
        change = "valid"
    elif rng.random() < 0.5:
        arguments, change = damage_arguments(rng, arguments, _parsers_of(module))
    else:
        change = damage_file(rng, place, _files_of(place, arguments))
    case = {"case": number, "command": name, "change": change}
    before = _contents(place)
    with contextlib.chdir(place):
        done = run_command(name, arguments)
    code, err = done.returncode, done.stderr
    lines = [line for line in err.splitlines() if "\r" not in line]
    case |= {"code": code, "line": lines[-1] if lines else ""}
    problem = _problem(code, err, place, before)
    if is_valid and code:
        problem = "a valid command failed"
    return case | {"problem": problem, "error": err[-4000:]}


def _any_command(rng: random.Random) -> str:
    """Draws a command; those that train take much longer, and are drawn less often."""
    weights = [1 if "--num_train_steps=1" in arguments else 3 for _, arguments in COMMANDS.values()]
    return rng.choices([*COMMANDS], weights)[0]


def _parsers_of(module: str) -> dict[str, ArgumentParser]:
    from keras_bert.programs.options import declared

    values = importlib.import_module(module).PROGRAM.flags()
    return {name: values[name].parser for name in declared(values)}


def _files_of(folder: Path, arguments: tuple[str, ...]) -> list[Path]:
    """Returns the input files that arguments name, or that are in a folder that they name."""
    named = [folder / argument.partition("=")[2] for argument in arguments if "=" in argument]
    named += [folder / argument for argument in arguments if "=" not in argument]
    named = [path for path in named if path.exists() and path != folder]
    inside = [path for each in named if each.is_dir() for path in each.rglob("*")]
    return sorted(path for path in {*named, *inside} if path.is_file())


def _problem(code: int, err: str, place: Path, before: dict[str, str]) -> str:
    """Returns what is wrong with the outcome of a case; "" if nothing is."""
    if "Traceback" in err:
        return "traceback"
    if code not in (0, 1):
        return f"exit code {code}"
    if code == 1 and not err.strip():
        return "no message"
    after = _contents(place)
    if any(after.get(name) != digest for name, digest in before.items()):
        return "an input file was changed"
    if any(".partial" in name for name in after):
        return "a partial file was left behind"
    if code == 1 and any((place / name).exists() for name in _WHOLE):
        return "output of a failed program"
    return ""


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def main() -> int:
    """Runs the cases, prints a line for each one and a summary; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=180.0, help="time limit of a case")
    options = parser.parse_args()
    from keras_bert.startup import start_tensorflow

    start_tensorflow()
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    print(f"seed {options.seed}", flush=True)
    problems, codes = [], collections.Counter()
    with tempfile.TemporaryDirectory(prefix="bad-input-") as temporary:
        folder = Path(temporary)
        os.environ["TFDS_DATA_DIR"] = str(folder)
        prepare(folder / "inputs")
        for number in range(options.first, options.first + options.cases):
            started = time.monotonic()
            # After the time limit, the process ends, and shows where the program hangs.
            faulthandler.dump_traceback_later(options.seconds, exit=True)
            result = run_case(folder / "inputs", folder / "case", options.seed, number)
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(folder / "case", ignore_errors=True)
            codes[result["code"]] += 1
            print(
                f"{number} [{time.monotonic() - started:.1f} s] {result['command']}: "
                f"{result['change']} -> {result['code']} {result['line']!r:.200} "
                f"{result['problem'].upper()}",
                flush=True,
            )
            if result["problem"]:
                problems.append(result)
    for result in problems:
        print(f"\ncase {result['case']}: {result['problem']}\n{result['error']}")
    counts = collections.Counter(result["problem"] for result in problems)
    print(f"\nseed {options.seed}: exit codes {dict(codes)}; problems: {dict(counts) or 'none'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
