"""What glue.py and ner.py share: whole fine-tuning runs of the product and of a torch loop.

Both peers train alike: batch 16, a linear warm-up over 10% of the steps, then linear decay;
gradients clipped to norm 1, AdamW (bias-corrected, epsilon 1e-6, weight decay 0.01 but on biases
and LayerNorm). The torch loop shuffles, and pads each batch to its longest example.

The peer's learning rate peaks at 5e-5. Its schedule starts to fall at the end of the warm-up, ours,
which is Google's, counts the fall from step 0 and so stands at 0.9 of the peer's from there on.
Ours is therefore given 5e-5 / 0.9: after the warm-up both have the same rate at every step.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from workers import MODEL, ROOT

BATCH, LEARNING_RATE, WARMUP, LENGTH = 16, 5e-5, 0.1, 128
CONTENDERS = ("ours", "torch")


def in_turn(seeds: Sequence[int]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields each seed and its contenders, lest a machine that slows down harm one of them more."""
    for round_, seed in enumerate(seeds):
        yield seed, CONTENDERS[:: -1 if round_ % 2 else 1]


def do_runs(
    work_dir: str, jobs: Sequence[Mapping[str, Any]], run: Callable[[Mapping], dict]
) -> list[dict]:
    """Does the runs that runs.jsonl in a folder lacks, one after the other.

    Args:
        work_dir: the folder.
        jobs: what tells each run from the others.
        run: job -> its figures.

    Returns:
        Each job with its figures and "program_seconds", from start to end.
    """
    log = Path(work_dir) / "runs.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    logged = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = []
    for job in jobs:
        found = next((line for line in logged if job.items() <= line.items()), None)
        if found is None:
            start = time.perf_counter()
            found = {**job, **run(job)}
            found.setdefault("program_seconds", time.perf_counter() - start)
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps(found), file=sys.stderr, flush=True)
        done.append(found)
    return done


def run_ours(program: str, output_dir: Path, seed: int, **flags: object) -> dict:
    """Runs a program of the product as a user starts it.

    Args:
        program: its file.
        output_dir: the run's folder, which is emptied: half a run would say nothing of its speed.
        seed: of the run.
        flags: those beside what all contenders share.

    Returns:
        Its training examples a second without the evaluations, its compute type, and
        "program_seconds".
    """
    shutil.rmtree(output_dir, ignore_errors=True)
    flags = {
        "init_checkpoint": MODEL,
        "output_dir": output_dir,
        "train_batch_size": BATCH,
        "learning_rate": LEARNING_RATE / (1 - WARMUP),
        "warmup_proportion": WARMUP,
        "max_seq_length": LENGTH,
        "random_seed": seed,
        **flags,
    }
    command = [ROOT / ".venv/bin/python", ROOT / program]
    command += [f"--{name}={value}" for name, value in flags.items()]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    # The rates are those of the steps since the line before.
    steps, trained, last = 0, 0.0, 0
    for line in (output_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "examples_per_second" in row:
            steps += row["step"] - last
            trained += (row["step"] - last) * BATCH / row["examples_per_second"]
        last = row["step"]
    settings = json.loads((output_dir / "run.json").read_text())["settings"]
    return {
        "examples_per_second": steps * BATCH / trained,
        "precision": settings["mixed_precision"],
        "program_seconds": seconds,
    }


def run_torch(benchmark: str, **flags: object) -> dict:
    """Runs a benchmark's own file as the peer, in its environment.

    Args:
        benchmark: the file.
        flags: with --worker among them.

    Returns:
        The figures that it prints last.
    """
    command = [ROOT / ".peers/bin/python", benchmark]
    command += [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def train_torch(
    model: Any,
    data: Sequence[dict],
    collate: Callable,
    epochs: int,
    after_epoch: Callable[[], None] = lambda: None,
) -> float:
    """Trains a model of transformers in a plain loop.

    Args:
        model: gives its loss.
        data: examples.
        collate: pads a batch of them.
        epochs: passes over the examples.
        after_epoch: called after each, outside the time taken.

    Returns:
        Training examples a second.
    """
    import torch
    import transformers

    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for p in model.parameters() if not any(p is other for other in plain)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-6)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, collate_fn=collate)
    steps = len(loader) * epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    seconds = 0.0
    for _ in range(epochs):
        model.train()
        start = time.perf_counter()
        for batch in loader:
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seconds += time.perf_counter() - start
        after_epoch()
    return epochs * len(data) / seconds


def mean_and_spread(values: np.ndarray) -> str:
    """Writes a mean and a sample standard deviation."""
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{values.mean():.1f} ± {spread:.1f}"
