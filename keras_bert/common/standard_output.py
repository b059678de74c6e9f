"""Ends a process whose standard output has no reader anymore, as in `keras-bert --help | head`."""

import contextlib
import os
import select
import sys
from collections.abc import Iterator

OUTPUT_CLOSED = 141  # The exit code that shells report for SIGPIPE.


@contextlib.contextmanager
def quiet_end_without_reader() -> Iterator[None]:
    """Ends the process without a message if the block writes to stdout after its reader closed it.

    The exit code is then `OUTPUT_CLOSED`. Other tools leave this to the signal SIGPIPE, but the
    default action of SIGPIPE would also end a server or a worker that writes to a closed network
    connection. A BrokenPipeError from such a connection is raised unchanged.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        # Python flushes stdout once more at exit, and would report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OUTPUT_CLOSED)


def _has_no_reader() -> bool:
    """Returns whether stdout is a pipe or a connection that the other side has closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # stdout is not a file.
        return False
