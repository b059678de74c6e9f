"""Shows the progress of long operations on stderr: a bar on a terminal, otherwise log lines.

Operations that take less than a few seconds show nothing. For training steps see summaries.py.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from absl import logging
from tqdm import tqdm

_SECONDS_TO_BAR = 2.0
_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress(
    what: str, total: int, unit: str, silent: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows the progress of the block.

    Yields a function to call with the number of units completed since its last call.

    Args:
        what: a description of the operation, such as "predicting".
        total: the amount of work, in units.
        unit: the name of the unit, such as "examples".
        silent: whether to show nothing, because another worker shows the progress.
    """
    on_terminal = sys.stderr.isatty()
    done = 0
    start = last = time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last
        count = min(count, total - done)
        done += count
        bar.update(count)
        now = time.monotonic()
        if not (silent or on_terminal) and now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            rate = done / (now - start)
            logging.info("%s: %d/%d %s, %.3g %s/s", what, done, total, unit, rate, unit)

    with tqdm(
        desc=what,
        total=total,
        unit=f" {unit}",
        delay=_SECONDS_TO_BAR,
        leave=False,
        disable=silent or not on_terminal,
        dynamic_ncols=True,
    ) as bar:
        yield advance
