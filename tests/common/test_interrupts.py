"""Ctrl-C ends a program with exit code 130 and one line, even while libraries are imported."""

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
    "ignores": "pass",
}


def interrupted(root, place, code):
    """Runs code that imports a library in `place`, and interrupts the import."""
    started = place / "started"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(place)!r}); {code}"],
        cwd=root,
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
def test_while_tensorflow_is_imported(root, tmp_path, reaction):
    write_library(tmp_path, "tensorflow", reaction)
    code = "from keras_bert.programs.start import start; "
    code += "start('keras_bert.programs.convert', ['convert.py', 'a', 'b'])"
    assert interrupted(root, tmp_path, code) == (130, "", "convert.py: interrupted\n")


@pytest.mark.parametrize("reaction", REACTIONS)
def test_while_the_program_is_imported(root, tmp_path, reaction):
    write_library(tmp_path, "slow_program", reaction)
    code = "from keras_bert.programs.start import start; start('slow_program', ['slow.py'])"
    assert interrupted(root, tmp_path, code) == (130, "", "slow.py: interrupted\n")
