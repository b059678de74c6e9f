"""Starts a program as a process of its own.

This module imports nothing that takes time, so that Ctrl-C ends the process with one line even
while the program is imported.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from keras_bert.common.interrupts import keyboard_interrupts

INTERRUPTED = 130  # The exit code that shells report for Ctrl-C.


def start(module: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Imports the module of a program, runs its `PROGRAM` and exits with the exit code.

    `argv` is the command line; by default that of the process.
    """
    try:
        with keyboard_interrupts(imports_only=True):
            from keras_bert.programs.program import run

            program = importlib.import_module(module).PROGRAM
    except KeyboardInterrupt:
        name = os.path.basename((argv or sys.argv)[0])
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run(program, argv)
