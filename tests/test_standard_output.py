"""A program whose stdout has no reader anymore ends without a message, as other tools do."""

import os
import subprocess
import sys

import pytest

from keras_bert.startup import quiet_end_without_reader

PRINTS = """
from keras_bert.programs.program import Program, run
def main(flags, arguments):
    for _ in range({lines}):
        print("x" * 50)
run(Program("count", "Counts.", (), main))
"""
COMMANDS = {
    "the command's help": ["-m", "keras_bert", "--help"],
    "a program's help": ["-m", "keras_bert", "build-vocab", "--help"],
    "few results": ["-c", PRINTS.format(lines=3)],
    "many results": ["-c", PRINTS.format(lines=10_000)],
}


def end_without_reader(root, command, **variables):
    """Runs a Python command with a closed pipe as its stdout; returns its exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env=os.environ | variables,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [*((name, "") for name in COMMANDS), ("few results", "1"), ("many results", "1")],
)
def test_program_without_a_reader_ends_quietly(root, name, unbuffered):
    ended = end_without_reader(root, COMMANDS[name], PYTHONUNBUFFERED=unbuffered)
    assert ended == (141, "")


def test_exit_code_is_kept_if_nothing_was_printed(root):
    code, err = end_without_reader(root, ["run_ner.py", "--nonsense"])
    assert code == 1
    assert err.startswith("run_ner.py: error: Unknown command line flag 'nonsense'")


def test_closed_pipe_other_than_stdout_is_an_error():
    with pytest.raises(BrokenPipeError), quiet_end_without_reader():
        raise BrokenPipeError
