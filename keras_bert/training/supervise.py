"""Starts a run again when machines end it: a command in; its exit code, or the last one, out.

    python -m keras_bert.training.supervise [--num_workers=2] -- python run_pretraining.py ...

    start the command -> it ends with 0, bad input or Ctrl-C: so do we
                      -> with 75 or by a signal: wait, start it again from its checkpoint

On several machines each has a supervisor of its own: when one worker is gone the others end with
75, and all supervisors start theirs again, which wait for each other. `--num_workers` runs all of
them on this machine, with a TF_CONFIG each, and starts all again when one ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from absl import flags, logging

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.programs.program import run
from keras_bert.training.rendezvous import held_address

FLAGS = flags.FLAGS

flags.DEFINE_integer("max_restarts", 10, "Give up after so many restarts in a row.", lower_bound=0)
flags.DEFINE_float("backoff", 1.0, "Seconds before the first restart; doubles.")
flags.DEFINE_float("max_backoff", 300.0, "Seconds before a restart at most.")
flags.DEFINE_float(
    "healthy_after", 600.0, "Seconds of work that make restarts count anew.", lower_bound=0.0
)
flags.DEFINE_integer("num_workers", 0, "Workers on this machine; 0: TF_CONFIG as it is.", 0)
flags.DEFINE_float("grace", 60.0, "Seconds for the others to end before they are killed.")
_WEEK = 7 * 24 * 3600
for _name in ("backoff", "max_backoff", "grace"):  # The bounds of a flag let `nan` pass.
    flags.register_validator(
        _name,
        lambda seconds: 0 <= seconds <= _WEEK,
        message=f"expected seconds from 0 to {_WEEK}, which is a week",
    )

# Another start would end the same way: done, bad input, a bad command line, Ctrl-C.
FINAL = (0, 1, 2, 126, 127, 130)


def main(argv: Sequence[str]) -> None:
    """Runs the command after `--` until it ends for good."""
    command = list(argv[1:])
    if not command:
        raise InputError("expected a command after --, such as: -- python run_pretraining.py ...")
    told = threading.Event()
    workers: list[subprocess.Popen] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.set()
        _tell(workers)

    signal.signal(signal.SIGTERM, pass_on)
    try:
        sys.exit(_run_until_final(command, workers, told))
    finally:
        _tell(workers)  # Those of a start that failed, or of a Ctrl-C.


def _run_until_final(
    command: Sequence[str], workers: list[subprocess.Popen], told: threading.Event
) -> int:
    """Starts the command again and again; returns the exit code of the last start."""
    restarts = 0
    while True:
        start = time.monotonic()
        workers.clear()
        with contextlib.ExitStack() as held:
            addresses = [held.enter_context(held_address()) for _ in range(FLAGS.num_workers)]
            _start(workers, command, addresses)
            if told.is_set():  # In between, when there was no one to tell.
                _tell(workers)
            codes, own = _wait(workers, FLAGS.grace, told)
        # A worker that was killed may make another one fail in some way of its own.
        final = [code for code in own if code in FINAL and code] if min(own, default=0) >= 0 else []
        if not any(codes) or final:
            return max(final, default=0)
        if told.is_set():
            return EndedEarly.EXIT_CODE
        restarts = 0 if time.monotonic() - start > FLAGS.healthy_after else restarts
        if restarts == FLAGS.max_restarts:
            raise EndedEarly(
                f"{restarts} restarts in a row (--max_restarts) have ended with {codes}"
            )
        pause = seconds_before(restarts, FLAGS.backoff, FLAGS.max_backoff)
        restarts += 1
        logging.info(
            "ended with %s; restart %d of %d in %.0f s",
            codes,
            restarts,
            FLAGS.max_restarts,
            pause,
        )
        if told.wait(pause):
            return EndedEarly.EXIT_CODE


def seconds_before(restarts: int, backoff: float, max_backoff: float) -> float:
    """Returns how long to wait before a restart.

    Args:
        restarts: how many there have been in a row.
        backoff: seconds before the first one; it doubles.
        max_backoff: seconds at most.
    """
    doublings = min(restarts, 1000)  # More would be past the largest number.
    return min(backoff * 2.0**doublings, max_backoff)


def _tell(workers: Sequence[subprocess.Popen]) -> None:
    """Passes SIGTERM on to those that are at work."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()


def _start(
    workers: list[subprocess.Popen], command: Sequence[str], addresses: Sequence[str]
) -> None:
    """Starts the command, or a worker of it for each address, into a list."""
    try:
        if not addresses:
            workers.append(subprocess.Popen(command))
            return
        for index in range(len(addresses)):
            config = {
                "cluster": {"worker": [*addresses]},
                "task": {"type": "worker", "index": index},
            }
            environment = os.environ | {"TF_CONFIG": json.dumps(config)}
            workers.append(subprocess.Popen(command, env=environment))
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from error


def _wait(
    workers: Sequence[subprocess.Popen], grace: float, told: threading.Event
) -> tuple[list[int], list[int]]:
    """Waits for all; when one has ended badly, or all were told, they have some seconds to end.

    Returns the code of each, and those of the ones that were not killed here after that.
    """
    deadline, killed = None, []
    while any(worker.poll() is None for worker in workers):
        ending = told.is_set() or any(worker.poll() for worker in workers)
        if deadline is None and ending:
            deadline = time.monotonic() + grace
        if deadline is not None and time.monotonic() > deadline:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                    killed.append(worker)
        time.sleep(0.1)
    own = [worker.returncode for worker in workers if worker not in killed]
    return [worker.returncode for worker in workers], own


if __name__ == "__main__":
    run(main)
