"""Runs run_pretraining.py --recipe as a user does: phases, SIGKILL, dry run, invalid input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

# Two phases like those of bert-base.toml, as small as possible.
RECIPE = """
[flags]
learning_rate = 1e-4
num_warmup_steps = 1
train_batch_size = 4
[[phase]]
num_train_steps = 50
data = { max_seq_length = 16, max_predictions_per_seq = 3 }
[[phase]]
num_train_steps = 60
continue_optimizer = true
data = { max_seq_length = 32, max_predictions_per_seq = 3 }
"""
CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 16,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records):
    folder = tmp_path_factory.mktemp("recipe")
    write_records(folder / "16.tfrecord", 20, length=16)
    write_records(folder / "32.tfrecord", 20, length=32)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "own.toml").write_text(RECIPE)
    return folder


def command(folder, **changes):
    values = {
        "recipe": folder / "own.toml",
        "bert_config_file": folder / "config.json",
        "input_file": folder / "{max_seq_length}.tfrecord",
        "output_dir": folder / "out",
        "eval_batch_size": 4,
        "do_eval": "false",
        "log_steps": 1,
        "save_checkpoints_steps": 3,
        "jit_compile": "false",
        "mixed_precision": "float32",
    } | changes
    flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [sys.executable, "run_pretraining.py", *flags]


def run(root, arguments):
    return subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(folder, root):
    done = run(root, command(folder, output_dir=folder / "uninterrupted"))
    assert done.returncode == 0, done.stderr
    return folder / "uninterrupted"


@pytest.mark.slow
def test_recipe_writes_the_documented_files_and_one_folder_per_phase(finished):
    assert {p.name for p in finished.iterdir()} == {
        "phase-1",
        "phase-2",
        "model",
        "results.json",
        "run.json",
    }
    last = finished / "phase-2"
    for name in ("model/model.safetensors", "model/config.json", "results.json"):
        assert (finished / name).read_bytes() == (last / name).read_bytes()
    settings = json.loads((finished / "run.json").read_text())["settings"]
    assert settings["phases"] == 2
    assert (settings["num_train_steps"], settings["phase-1"]["num_train_steps"]) == (60, 50)


@pytest.mark.slow
def test_second_phase_continues_the_schedule_of_the_first(finished):
    """Checks a warm-up of 1 step to 1e-4, then 1e-4 * (1 - step / 110) over both phases."""
    rates = [
        row["learning_rate"]
        for name in ("phase-1", "phase-2")
        for row in lines(finished / name / "metrics.jsonl")
        if "learning_rate" in row
    ]
    assert rates == pytest.approx([0.0] + [1e-4 * (1 - step / 110) for step in range(1, 110)])


@pytest.mark.slow
def test_run_killed_in_either_phase_resumes_to_identical_files(
    folder, finished, root, random_moment
):
    output_dir = folder / "killed"
    for phase in ("phase-1", "phase-2"):
        process = subprocess.Popen(
            command(folder, output_dir=output_dir),
            cwd=root,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 600
        step = f'"step": {random_moment.randrange(4, 35)},'
        metrics = output_dir / phase / "metrics.jsonl"
        checkpoints = output_dir / phase / "checkpoints"
        while not any(checkpoints.glob("step-*")) or step not in metrics.read_text():
            assert process.poll() is None, f"ended before {step} of {phase}"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (output_dir / phase / "results.json").exists()
    renamed = shutil.copy(folder / "own.toml", folder / "renamed.toml")
    again = run(root, command(folder, output_dir=output_dir, recipe=renamed))
    assert again.returncode == 0, again.stderr
    assert "phase-1 is finished" in again.stderr
    assert "Training resumed at step" in again.stderr
    for name in ("phase-1/model/model.safetensors", "model/model.safetensors", "results.json"):
        assert (output_dir / name).read_bytes() == (finished / name).read_bytes(), name


@pytest.mark.slow
def test_dry_run_prints_the_cost_of_each_phase_and_writes_no_files(folder, root):
    flags = {"recipe": "recipes/bert-base.toml", "recipe_scale": 0.001, "train_batch_size": 8}
    flags |= {"dry_run": "true", "input_file": "", "bert_config_file": "base"}
    done = run(root, command(folder, output_dir=folder / "dry", **flags))
    assert done.returncode == 0, done.stderr
    assert not (folder / "dry").exists()
    first, second = done.stdout.split("recipes/bert-base.toml: phase ")[1:]
    assert "--max_seq_length=128" in first
    assert "--max_seq_length=512" in second
    assert "  steps       900 of 8 sequences" in first
    assert "  tokens      921,600, including padding" in first
    for name in ("parameters", "FLOP", "memory"):
        assert re.search(rf"^  {name} ", first, re.MULTILINE), done.stdout
    assert re.search(r"^[\d.]+ hours at 1 TFLOP/s", second, re.MULTILINE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "recipes/none.toml"}, r"recipes/none\.toml: cannot be read"),
        ({"input_file": "one"}, r"--input_file=one: .*own\.toml.*16, 32"),
        ({"recipe": None, "recipe_scale": 0.1}, r"--recipe_scale: has no effect without --recipe"),
        ({"recipe_scale": "inf"}, r"--recipe_scale=inf: expected a finite number"),
        ({"do_train": "false"}, r"--recipe: has no effect without --do_train"),
        (
            {"dry_run": "true", "distribution_strategy": "multi_worker_mirrored"},
            r"--dry_run uses only this machine",
        ),
        (
            {"objective": "ltr", "export": "true"},
            r"--export: left-to-right models cannot be exported",
        ),
    ],
)
def test_invalid_input_exits_with_code_1_and_one_line(folder, root, changes, message):
    done = run(root, command(folder, **{"output_dir": folder / "bad"} | changes))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert not (folder / "bad").exists()


def test_folder_of_the_records_of_a_phase_is_rejected(folder, root, tmp_path):
    records = tmp_path / "16"
    records.mkdir()
    flags = {"input_file": tmp_path / "{max_seq_length}", "output_dir": records}
    done = run(root, command(folder, **flags))
    assert done.returncode == 1
    assert f"--output_dir={records}: is the folder of the input {records}" in done.stderr
    assert not list(records.iterdir())
