"""Runs the programs on generated bad inputs, and reports tracebacks, hangs and partial outputs.

    python -m tests.bad_input --cases=500 --seed=1
    python -m tests.bad_input --cases=1 --seed=1 --first=17

The seed and the number determine a case: a program, and what is wrong with its command line or with
one of its input files; the first cases are valid. A program must end with exit code 0 or 1 in time,
print no traceback, leave its inputs as they are, and leave no output if it fails.
"""

import argparse
import collections
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 900  # For the imports and the valid inputs, on a busy machine.
_CASES_PER_WORKER = 100  # TensorFlow keeps the memory of all graphs.


class Worker:
    """A process that runs cases."""

    def __init__(self, folder: Path, seed: int):
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bad_input.worker", str(folder), str(seed), str(writing)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
        )
        os.close(writing)
        self._results = os.fdopen(reading)
        if self._receive(_START_SECONDS) is None:
            self.stop()
            sys.exit("the inputs cannot be created, or only in a longer time")

    def run(self, number: int, seconds: float) -> dict:
        """Runs a case; if the process ends or time runs out, the worker cannot be used again."""
        print(number, file=self._process.stdin, flush=True)
        result = self._receive(seconds)
        if result is None:
            problem = "hang" if self._process.poll() is None else "the process died"
            result = {"case": number, "command": "?", "change": "?", "code": None}
            result |= {"line": "", "error": "", "problem": problem}
        return result

    def _receive(self, seconds: float) -> dict | None:
        ready, _, _ = select.select([self._results], [], [], seconds)
        line = self._results.readline() if ready else ""
        return json.loads(line) if line else None

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def main() -> int:
    """Runs the cases, prints a line for each one and a summary; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a case")
    parser.add_argument("--folder", type=Path, help="keeps the valid inputs here for the next run")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    numbers = range(options.first, options.first + options.cases)
    problems, codes, slowest = [], collections.Counter(), 0.0
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="bad-input-"))
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        worker = Worker(folder, options.seed)
        for done, number in enumerate(numbers, start=1):
            started = time.monotonic()
            result = worker.run(number, options.seconds)
            seconds = time.monotonic() - started
            slowest = max(slowest, seconds)
            codes[result["code"]] += 1
            print(
                f"{number} [{seconds:.1f} s] {result['command']}: {result['change']} -> "
                f"{result['code']} {result['line']!r:.200} {result['problem'].upper()}",
                flush=True,
            )
            if result["problem"]:
                problems.append(result)
            if result["code"] is None or done % _CASES_PER_WORKER == 0:
                worker.stop()
                worker = Worker(folder, options.seed)
        worker.stop()
    for result in problems:
        print(f"\ncase {result['case']}: {result['problem']}\n{result['error']}")
    counts = collections.Counter(result["problem"] for result in problems)
    print(f"\nseed {options.seed}: {len(numbers)} cases, slowest {slowest:.0f} s")
    print(f"exit codes {dict(codes)}; problems: {dict(counts) or 'none'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
