"""run_classifier.py as a user runs it: no flags, continuation after SIGKILL, bad input."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

STEPS = 48


@pytest.fixture(scope="module")
def place(make_checkpoint, tmp_path_factory):
    """A user's folder, with SST-2 and a model under data/."""
    folder = tmp_path_factory.mktemp("place")
    make_checkpoint(folder / "data" / "bert", ["good", "bad", "film", "very", "."])
    glue = folder / "data" / "glue" / "SST-2"
    glue.mkdir(parents=True)
    texts = [f"{'very ' * (i % 4)}{('bad', 'good')[i % 2]} film .\t{i % 2}\n" for i in range(64)]
    for name, some in (("train", texts), ("dev", texts[:20])):
        (glue / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(some))
    (glue / "test.tsv").write_text("index\tsentence\n0\tgood film .\n1\tbad .\n")
    return folder


def test_without_flags_it_takes_what_is_at_hand(run_program, place):
    flags = {"max_seq_length": 16, "num_train_epochs": 1, "seeds": "1,2", "export": True}
    done = run_program("run_classifier.py", "--nojit_compile", cwd=place, **flags)
    assert done.returncode == 0, done.stderr
    assert "--task_name=SST-2" in done.stderr
    assert "--init_checkpoint=data/bert" in done.stderr
    results = json.loads((place / "out" / "SST-2" / "results.json").read_text())
    assert results["seeds"] == [1, 2]
    assert results.keys() >= {"accuracy_mean", "accuracy_std", "score_mean", "loss_mean"}
    assert "accuracy_mean = " in done.stdout
    names = {path.name for path in (place / "out" / "SST-2" / "seed-1").iterdir()}
    assert names >= {"model", "best", "SST-2.tsv", "SST-2.jsonl", "results.json"}
    for seed in (1, 2):
        info = place / "out" / "SST-2" / f"seed-{seed}" / "export" / "1" / "export.json"
        assert json.loads(info.read_text())["max_seq_length"] == 16


def metrics(folder):
    """The lines of metrics.jsonl without the rates."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in row.items() if not k.endswith("_per_second")} for row in rows]


def test_a_run_killed_at_a_random_step_ends_at_the_same_bytes(root, place):
    flags = {
        "init_checkpoint": "data/bert",
        "max_seq_length": 16,
        "train_batch_size": 4,
        "num_train_epochs": 3,  # 16 steps, an evaluation and the best kept in each
        "save_checkpoints_steps": 7,
        "log_steps": 1,
    }

    def start(output_dir):
        command = [sys.executable, root / "run_classifier.py", "--nojit_compile"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        return subprocess.Popen(
            [*command, f"--output_dir={output_dir}"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    # A new step each time the test runs; the message of a failure names it.
    step = random.randrange(8, STEPS - 1)
    whole, killed = place / "whole", place / "killed"
    beside, process = start(whole), start(killed)  # Both at once, as the start is what takes long.
    deadline = time.monotonic() + 120
    while max((row["step"] for row in metrics(killed)), default=0) < step:
        assert process.poll() is None, f"ended before step {step}: {process.stderr.read()}"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (killed / "results.json").exists()
    again = start(killed)
    for each in (beside, again):
        _, error = each.communicate()
        assert each.returncode == 0, error
    assert "continuing from step" in error
    for name in ("model/model.safetensors", "results.json", "SST-2.tsv", "SST-2.jsonl"):
        same = (whole / name).read_bytes() == (killed / name).read_bytes()
        assert same, f"{name} differs; killed at step {step}"
    assert [row["step"] for row in metrics(whole) if "loss" in row] == [*range(1, STEPS + 1)]
    assert metrics(whole) == metrics(killed), f"killed at step {step}"


def test_without_data_it_says_what_to_put_where(run_program, tmp_path):
    done = run_program("run_classifier.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("run_classifier.py: found no task and no checkpoint.")
    assert "data/glue/MRPC" in done.stderr
    assert "--task_name=MRPC --data_dir=DIR --init_checkpoint=DIR" in done.stderr
    assert done.stderr.count("\n") < 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_name": "SNLI"}, "--task_name=SNLI: expected CoLA"),
        ({"problem_type": "ranking"}, "--problem_type=ranking"),
        ({"init_checkpoint": "nowhere"}, "nowhere: no such checkpoint"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_1(run_program, place, changes, message):
    values = {"task_name": "SST-2", "data_dir": "data/glue", "output_dir": "bad"} | changes
    done = run_program("run_classifier.py", cwd=place, **values)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (place / "bad").exists()
