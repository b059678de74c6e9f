"""Handles Ctrl-C where Python's own handler does not suffice.

This module imports nothing that takes time, because a program installs the handler first.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # The exit code that shells report for Ctrl-C.


class _Handler:
    """Raises KeyboardInterrupt like Python's handler, and records that it did."""

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        raise KeyboardInterrupt


class _Exit:
    """Ends the process with one line, without an exception that other code could replace."""

    def __init__(self, name: str):
        self._line = f"{name}: interrupted\n"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(self._line))
        os._exit(INTERRUPTED)


@contextlib.contextmanager
def exit_at_interrupt(name: str) -> Iterator[None]:
    """Makes Ctrl-C end the process with a line that starts with `name`, at once.

    For the block that imports a program and ends its process, in which nothing has to be cleaned
    up. The program's work runs in `keyboard_interrupts`. After the block, Ctrl-C has the default
    action of the system, which prints no traceback while Python exits. Nothing changes if SIGINT
    has a handler that is not Python's default one.
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
    """Ends the block with KeyboardInterrupt at Ctrl-C, even if the exception is replaced.

    An interrupted import may raise another exception, because C extensions and libraries convert
    the KeyboardInterrupt. Nothing changes outside the main thread, or if SIGINT has a handler that
    is neither Python's default one nor of this module.

    Args:
        imports_only: the block contains nothing but imports. Libraries may also ignore a
            KeyboardInterrupt, so it is raised again at the end of the block.
    """
    before = signal.getsignal(signal.SIGINT)
    is_replaceable = isinstance(before, _Handler | _Exit) or before is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_replaceable:
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
