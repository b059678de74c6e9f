"""Runs whole fine-tunings of keras_bert and of a torch loop, for glue.py, ner.py and embedding.py.

Both contenders train with batch size 16, at most 128 tokens, a linear warm-up over 10% of the
steps, then linear decay, gradients clipped to norm 1, and AdamW (bias-corrected, epsilon 1e-6,
weight decay 0.01 except on biases and LayerNorm). The torch loop shuffles, and pads each batch to
its longest example. Training examples per second exclude evaluations; program seconds include
everything. Each finished run is a line of runs.jsonl in `--work_dir`: the same command runs only
the missing runs, then prints the table.

torch's learning rate peaks at 5e-5, and starts to decay at the end of the warm-up. keras_bert's
schedule, which is Google's, counts the decay from step 0, so at the end of the warm-up the rate is
0.9 times the flag's value. The flag is therefore set to 5e-5 / 0.9: after the warm-up, both
contenders have the same rate at every step.
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
    """Yields (seed, contenders); the order alternates, in case the machine slows down."""
    for round_, seed in enumerate(seeds):
        yield seed, CONTENDERS[:: -1 if round_ % 2 else 1]


def do_runs(
    work_dir: str, jobs: Sequence[Mapping[str, Any]], run: Callable[[Mapping], dict]
) -> list[dict]:
    """Runs the jobs that are missing from runs.jsonl in a folder, one after the other.

    A job is a dict of the values that identify a run, such as its seed; `run` runs a job and
    returns a dict of figures. Returns each job, joined with its figures and "program_seconds", the
    wall-clock time from start to end.
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
    """Runs a program of keras_bert as a user does; returns its speed, seconds and compute type.

    Deletes `output_dir` first, because a resumed run would train only the remaining steps. `flags`
    are added to the flags for the settings that both contenders share.
    """
    shutil.rmtree(output_dir, ignore_errors=True)
    flags = {
        "init_checkpoint": MODEL,
        "output_dir": output_dir,
        "train_batch_size": BATCH,
        "learning_rate": LEARNING_RATE / (1 - WARMUP),
        "warmup_proportion": WARMUP,
        "max_seq_length": LENGTH,
        "mixed_precision": "float32",
        "random_seed": seed,
        **flags,
    }
    command = [ROOT / ".venv/bin/python", ROOT / program]
    command += [f"--{name}={value}" for name, value in flags.items()]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    # The rate in a line is an average over the steps since the previous line.
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
    """Runs a benchmark's file in `.peers`; returns the figures in the last line of its output."""
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
    bfloat16: bool = False,
) -> float:
    """Trains a model of transformers in a plain loop; returns the training examples per second.

    `collate` pads a batch of examples. The time of `after_epoch` is not included. `bfloat16` is
    whether products are computed in bfloat16 (autocast), instead of float32.
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
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seconds += time.perf_counter() - start
        after_epoch()
    return epochs * len(data) / seconds


def mean_and_spread(values: np.ndarray) -> str:
    """Formats the mean and the sample standard deviation of values [n]."""
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{values.mean():.1f} ± {spread:.1f}"
