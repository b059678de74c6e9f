"""Restarts a training command that was preempted or killed.

If the command ends with one of FINAL_EXIT_CODES, such as that of success, invalid input or Ctrl-C,
the supervisor exits with the same code. Otherwise, for example after 75 or a signal, it restarts
the command, which resumes from its checkpoint. 75 is also the exit code while the lock of
a lost process is still held; the command is then restarted until the lock is released.

    python -m keras_bert.training.supervise [--num_workers=2] -- python run_pretraining.py ...
"""

if __name__ == "__main__":  # Before the imports, so that Ctrl-C ends them with one line.
    from keras_bert.programs.start import start

    start("keras_bert.programs.supervise")

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from absl import logging

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.common.standard_output import OUTPUT_CLOSED
from keras_bert.training.rendezvous import reserved_address

# Exit codes after which a restart would not help: success, invalid input, an invalid command line,
# a command that is not executable or not found, Ctrl-C, a closed stdout.
FINAL_EXIT_CODES = (0, 1, 2, 126, 127, 130, OUTPUT_CLOSED)


@dataclass(frozen=True)
class Supervision:
    """The restart settings; the attributes are flags of the program.

    Attributes:
        max_restarts: the number of consecutive restarts after which the supervisor gives up.
        backoff: seconds before the first restart; doubled for each consecutive restart.
        max_backoff: the maximum number of seconds before a restart.
        healthy_after: seconds of work after which the count of consecutive restarts is reset.
        num_workers: the number of workers on this machine; 0 for one process that inherits
            TF_CONFIG.
        grace: seconds after a failure or SIGTERM until the workers that still run are killed.
    """

    max_restarts: int
    backoff: float
    max_backoff: float
    healthy_after: float
    num_workers: int
    grace: float


def supervise(command: Sequence[str], settings: Supervision) -> int:
    """Runs a command, and restarts it until it ends with a final exit code; forwards SIGTERM.

    Returns the exit code of the last start.

    Raises:
        EndedEarly: there were too many consecutive restarts.
        InputError: the command cannot be started.
    """
    stop_requested = threading.Event()
    workers: list[subprocess.Popen] = []

    def forward_sigterm(number: int, frame: FrameType | None) -> None:
        stop_requested.set()
        _terminate(workers)

    signal.signal(signal.SIGTERM, forward_sigterm)
    try:
        return _run_until_final(command, settings, workers, stop_requested)
    except KeyboardInterrupt:  # A worker that runs alone saves a checkpoint first.
        forward_sigterm(signal.SIGINT, None)
        _wait(workers, settings.grace, stop_requested)
        raise
    finally:
        _terminate(workers)  # After a failed start or a second Ctrl-C.


def _run_until_final(
    command: Sequence[str],
    settings: Supervision,
    workers: list[subprocess.Popen],
    stop_requested: threading.Event,
) -> int:
    restarts = 0
    while True:
        start = time.monotonic()
        workers.clear()
        with contextlib.ExitStack() as held:
            addresses = [
                held.enter_context(reserved_address()) for _ in range(settings.num_workers)
            ]
            _start(workers, command, addresses)
            if stop_requested.is_set():  # SIGTERM was received before the workers had started.
                _terminate(workers)
            codes, own_codes = _wait(workers, settings.grace, stop_requested)
        # If a signal ended any worker, the others may have failed because they lost this worker.
        final = []
        if min(own_codes, default=0) >= 0:
            final = [code for code in own_codes if code in FINAL_EXIT_CODES and code]
        if not any(codes) or final:
            return max(final, default=0)
        if stop_requested.is_set():
            return EndedEarly.EXIT_CODE
        restarts = 0 if time.monotonic() - start > settings.healthy_after else restarts
        if restarts == settings.max_restarts:
            raise EndedEarly(
                f"stopped after {restarts} consecutive restarts (--max_restarts); the last exit "
                f"codes are {codes}"
            )
        pause = restart_delay(restarts, settings.backoff, settings.max_backoff)
        restarts += 1
        logging.info(
            "exit codes %s; restart %d of %d in %.0f s",
            codes,
            restarts,
            settings.max_restarts,
            pause,
        )
        if stop_requested.wait(pause):
            return EndedEarly.EXIT_CODE


def restart_delay(restarts: int, backoff: float, max_backoff: float) -> float:
    """Returns the seconds before the next restart, which double with each consecutive restart."""
    doublings = min(restarts, 1000)  # More would overflow a float.
    return min(backoff * 2.0**doublings, max_backoff)


def _terminate(workers: Sequence[subprocess.Popen]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()


def _start(
    workers: list[subprocess.Popen], command: Sequence[str], addresses: Sequence[str]
) -> None:
    """Starts the command, or one worker per address, and appends the processes to `workers`."""
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
    workers: Sequence[subprocess.Popen], grace: float, stop_requested: threading.Event
) -> tuple[list[int], list[int]]:
    """Waits for all workers; kills those that still run `grace` seconds after a failure or SIGTERM.

    Returns the exit codes of all workers, and those of the workers that this function did not kill.
    """
    deadline, killed = None, []
    while any(worker.poll() is None for worker in workers):
        ending = stop_requested.is_set() or any(worker.poll() for worker in workers)
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
