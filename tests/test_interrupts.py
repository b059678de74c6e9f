"""Ctrl-C ends a program with exit code 130 and one line, even while libraries are imported."""

import os
import signal
import subprocess
import sys
import time

import pytest

# A library that takes long to import, and what it does with a KeyboardInterrupt.
LIBRARY = """
import pathlib, time
try:
    pathlib.Path("{started}").touch()
    time.sleep(60)
except KeyboardInterrupt:
    {reaction}
class config:
    list_physical_devices = staticmethod(lambda: [])
"""
REACTIONS = {
    "raises": "raise",
    "replaces": "raise ImportError('C extensions failed')",
}
START = "from keras_bert.programs.command import start; start({module!r}, ['slow.py', 'a', 'b'])"


def interrupted(root, place, *command):
    """Runs a Python command that imports a library in `place`, and interrupts the import."""
    started = place / "started"
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{place}:{os.environ['PYTHONPATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not started.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def write_library(place, name, reaction):
    text = LIBRARY.format(started=place / "started", reaction=REACTIONS[reaction])
    (place / f"{name}.py").write_text(text)


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize(
    ("library", "module"),
    [("tensorflow", "keras_bert.programs.convert"), ("slow_program", "slow_program")],
)
def test_while_tensorflow_or_the_program_is_imported(root, tmp_path, library, module, reaction):
    write_library(tmp_path, library, reaction)
    ended = interrupted(root, tmp_path, "-c", START.format(module=module))
    assert ended == (130, "", "slow.py: interrupted\n")


COMMANDS = {
    "run_ner.py": ["run_ner.py"],
    "keras-bert ner": ["-m", "keras_bert", "ner"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_handles_ctrl_c_before_it_imports_other_libraries(root, tmp_path, name):
    write_library(tmp_path, "absl", "raises")
    ended = interrupted(root, tmp_path, *COMMANDS[name])
    assert ended == (130, "", f"{name}: interrupted\n")


def test_modules_before_the_handler_take_little_time(root):
    """Before it is installed, Ctrl-C prints a traceback. -S: the environment may import more."""
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import keras_bert.programs.command; "
    code += "print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    slow = {"typing", "tempfile", "random", "shutil", "inspect", "re", "importlib.util", "absl"}
    assert not slow & {*done.stdout.split()}


PROGRAM = """
import atexit, pathlib, time
from keras_bert.programs.program import Program
def wait(*arguments):
    try:
        pathlib.Path("{started}").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        raise ValueError("replaced")
class Slow:
    def __iter__(self):
        wait()
def main(flags, arguments):
    if {at_exit}:
        atexit.register(wait)
PROGRAM = Program("slow", "Waits.", () if {at_exit} else Slow(), main)
"""


@pytest.mark.parametrize(
    ("at_exit", "ended"),
    [(False, (130, "", "slow.py: interrupted\n")), (True, (-signal.SIGINT, "", ""))],
)
def test_while_flags_are_defined_or_python_exits(root, tmp_path, at_exit, ended):
    program = PROGRAM.format(started=tmp_path / "started", at_exit=at_exit)
    (tmp_path / "waiting_program.py").write_text(program)
    assert interrupted(root, tmp_path, "-c", START.format(module="waiting_program")) == ended
