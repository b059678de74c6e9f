"""Turns Ctrl-C into KeyboardInterrupt where Python's own handler does not suffice."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Handler:
    """Raises KeyboardInterrupt like Python's handler, and records that it did."""

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def keyboard_interrupts(*, imports_only: bool = False) -> Iterator[None]:
    """Ends the block with KeyboardInterrupt at Ctrl-C, even if the exception is replaced.

    An interrupted import may raise another exception, because C extensions and libraries convert
    the KeyboardInterrupt. Nothing changes outside the main thread, or if SIGINT has a handler that
    is not Python's default one.

    Args:
        imports_only: the block contains nothing but imports. Libraries may also ignore a
            KeyboardInterrupt, so it is raised again at the end of the block.
    """
    before = signal.getsignal(signal.SIGINT)
    is_replaceable = isinstance(before, _Handler) or before is signal.default_int_handler
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
