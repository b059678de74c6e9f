"""Handles Ctrl-C where Python's own handler does not suffice.

This module imports only fast modules, because a program installs a handler before all other work.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # The exit code that shells report for Ctrl-C.


class _Handler:
    """Raises KeyboardInterrupt like Python's handler, and sets `interrupted`."""

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        raise KeyboardInterrupt


class _Exit:
    """Prints one line and ends the process, without an exception that other code could replace."""

    def __init__(self, name: str):
        self._line = f"{name}: interrupted\n"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(self._line))
        os._exit(INTERRUPTED)


def is_python_handler(handler: object) -> bool:
    """Returns whether a handler of SIGINT is Python's default one, or from this module."""
    return isinstance(handler, _Handler | _Exit) or handler is signal.default_int_handler


@contextlib.contextmanager
def exit_at_interrupt(name: str) -> Iterator[None]:
    """Makes Ctrl-C print a line that starts with `name` and end the process at once.

    This is for the import of a program and for its exit, where nothing has to be cleaned up. The
    program's work in between runs within `keyboard_interrupts`. After the block, Ctrl-C has the
    default action of the system, which prints no traceback while Python exits. Nothing changes if
    SIGINT has a handler that is not Python's default one.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _Exit(name))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def keyboard_interrupts(*, imports_only: bool = False) -> Iterator[None]:
    """Makes Ctrl-C end the block with KeyboardInterrupt, even if other code converts the exception.

    For example, C extensions convert a KeyboardInterrupt that is raised while they are imported.
    Nothing changes outside the main thread, or if SIGINT has a handler that is neither Python's
    default one nor from this module.

    Args:
        imports_only: whether the block contains only imports. Libraries may even ignore a
            KeyboardInterrupt while they are imported, so it is raised again after the block.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not is_python_handler(before):
        yield
        return
    handler = _Handler()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    except Exception as error:
        if handler.interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if imports_only and handler.interrupted:
        raise KeyboardInterrupt
