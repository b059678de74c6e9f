"""Starts a program as a process of its own.

This module imports nothing that takes time, so that Ctrl-C ends the process with one line even
while the program is imported.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from keras_bert.startup import exit_at_interrupt

TYPE_CHECKING = False  # As in `typing`, which takes milliseconds to import.
if TYPE_CHECKING:
    from typing import NoReturn


def start(module: str, argv: Sequence[str] | None = None) -> "NoReturn":
    """Imports the module of a program, runs its `PROGRAM` and exits with the exit code.

    `argv` is the command line; by default that of the process.
    """
    with exit_at_interrupt(os.path.basename((argv or sys.argv)[0])):
        from keras_bert.programs.program import run

        run(importlib.import_module(module).PROGRAM, argv)
