"""Progress of long work on stderr: a bar with a rate on a terminal, plain lines elsewhere.

Work that ends within some seconds shows nothing. Training steps have a bar of their own, which
lasts as long as the run (summaries.py).
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
    """Shows how far the block's work is.

    Args:
        what: what is being done, such as "predicting".
        total: how much there is of it.
        unit: what is counted, such as "examples".
        silent: show nothing: it is another worker's to show.

    Yields:
        What to call with how much was done since the last call.
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
