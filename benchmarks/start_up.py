"""Measures how soon fine-tuning takes its first step, and how long a whole run takes.

    .venv/bin/python benchmarks/start_up.py [--checkouts=.,../old] [--rounds=3] [--whole]

run_classifier.py fine-tunes MiniLM on MRPC. Each round starts it twice for one step, first
without compiled programs on disk and then with those of the first start. The table has the seconds
from the start of the program, and from the log line that the weights are loaded, to the end of the
first step. With --whole, each round also runs the three epochs, with the compiled programs of the
first two starts, evaluations and predictions.

--checkouts compares versions of keras_bert, which take turns. A checkout needs a `.venv`.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from absl import app, flags
from workers import MODEL, ROOT

MRPC = ROOT.parent / "shared/data/glue/MRPC"

flags.DEFINE_list("checkouts", [str(ROOT)], "folders of keras_bert")
flags.DEFINE_integer("rounds", 3, "rounds of each checkout", lower_bound=1)
flags.DEFINE_bool("whole", False, "also run three epochs in each round")
flags.DEFINE_list("flags", [], "further flags of the program, such as --mixed_precision=float32")
FLAGS = flags.FLAGS


def run(checkout: Path, folder: Path, steps: int = 0) -> dict[str, float]:
    """Runs the program; returns the seconds of its parts.

    Args:
        checkout: the folder of keras_bert.
        folder: the folder of compiled programs, as `cache`, and of the run.
        steps: the number of steps, without evaluation; 0 for three epochs with everything.
    """
    command = [checkout / ".venv/bin/python", checkout / "run_classifier.py"]
    command += [f"--init_checkpoint={MODEL}", "--task_name=MRPC", f"--data_dir={MRPC}"]
    command += [f"--output_dir={tempfile.mkdtemp(dir=folder)}", "--train_batch_size=16"]
    if steps:
        command += [f"--num_train_steps={steps}", "--do_eval=false", "--do_predict=false"]
    environment = {**os.environ, "KERAS_BERT_COMPILATION_CACHE": str(folder / "cache")}
    start = time.perf_counter()
    seconds = {}
    process = subprocess.Popen(
        [*map(str, command), *FLAGS.flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env=environment,
    )
    for line in process.stderr:
        if "weights loaded" in line:
            seconds.setdefault("loaded", time.perf_counter() - start)
        if re.search(r" step \d+/\d+", line):
            seconds.setdefault("first step", time.perf_counter() - start)
    if process.wait():
        sys.exit(f"{command[1]}: exit code {process.returncode}")
    seconds["whole"] = time.perf_counter() - start
    seconds["loaded to first step"] = seconds["first step"] - seconds.pop("loaded")
    return seconds


def main(_) -> None:
    """Runs the rounds, and prints the medians of each checkout."""
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        for round_ in range(FLAGS.rounds):
            for checkout in FLAGS.checkouts:
                folder = Path(work) / f"{round_}-{FLAGS.checkouts.index(checkout)}"
                folder.mkdir()
                runs = {"first start": 1, "second start": 1} | ({"whole": 0} if FLAGS.whole else {})
                for kind, steps in runs.items():
                    seconds = run(Path(checkout).absolute(), folder, steps)
                    names = ["whole"] if kind == "whole" else ["first step", "loaded to first step"]
                    for name in names:
                        key = f"{kind}: {name}" if steps else "whole run"
                        measured.setdefault((checkout, key), []).append(seconds[name])
                        print(f"{checkout}: {key}: {seconds[name]:.1f} s", flush=True)
    print("\n| checkout | | median s |\n| --- | --- | --- |")
    for (checkout, key), values in measured.items():
        print(f"| {checkout} | {key} | {median(values):.1f} |")


if __name__ == "__main__":
    app.run(main)
