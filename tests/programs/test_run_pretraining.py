"""Runs run_pretraining.py as a user does: results, resume after SIGKILL, invalid input."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records):
    folder = tmp_path_factory.mktemp("run")
    write_records(folder / "train.tfrecord", 50)
    write_records(folder / "eval.tfrecord", 20, seed=1)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def command(folder, output_dir, **changes):
    values = {
        "bert_config": folder / "config.json",
        "input_file": folder / "train.tfrecord",
        "eval_file": folder / "eval.tfrecord",
        "output_dir": output_dir,
        "num_train_steps": STEPS,
        "num_warmup_steps": 4,
        "learning_rate": 1e-3,
        "train_batch_size": 8,
        "save_checkpoints_steps": 7,
        "log_steps": 1,
    } | changes
    return [sys.executable, "run_pretraining.py", *(f"--{k}={v}" for k, v in values.items())]


def run(root, arguments):
    return subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def call(run_program):
    """Returns a function: (folder, output_dir, **changes) -> result of a run in this process."""

    def call(folder, output_dir, **changes):
        _, program, *arguments = command(folder, output_dir, **changes)
        return run_program(program, *arguments)

    return call


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def finished(folder, root):
    done = run(root, command(folder, folder / "uninterrupted"))
    assert done.returncode == 0, done.stderr
    return folder / "uninterrupted", done


@pytest.mark.slow
def test_run_writes_the_documented_output_files(finished):
    output_dir, _ = finished
    assert {p.name for p in output_dir.iterdir()} == {
        "model",
        "checkpoints",
        "tensorboard",
        "metrics.jsonl",
        "results.json",
        "run.json",
    }
    assert {"config.json", "model.safetensors"} <= {
        p.name for p in (output_dir / "model").iterdir()
    }
    assert [p.name for p in sorted((output_dir / "checkpoints").iterdir())] == [
        "step-00000028",
        "step-00000035",
        "step-00000040",
    ]


@pytest.mark.slow
def test_results_have_the_official_names(finished):
    results = json.loads((finished[0] / "results.json").read_text())
    assert results.keys() >= {
        "loss",
        "masked_lm_loss",
        "next_sentence_loss",
        "masked_lm_accuracy",
        "next_sentence_accuracy",
        "unigram_masked_lm_loss",
        "unigram_masked_lm_accuracy",
        "unigram_next_sentence_accuracy",
    }
    assert results["loss"] == pytest.approx(
        results["masked_lm_loss"] + results["next_sentence_loss"]
    )


@pytest.mark.slow
def test_metrics_have_one_line_per_step_and_per_evaluation(finished):
    rows = [json.loads(line) for line in lines(finished[0] / "metrics.jsonl")]
    trained = [row for row in rows if "loss" in row]
    assert [row["step"] for row in trained] == list(range(1, STEPS + 1))
    assert trained[-1].keys() >= {
        "loss",
        "masked_lm_accuracy",
        "next_sentence_accuracy",
        "learning_rate",
        "gradient_norm",
        "examples_per_second",
        "tokens_per_second",
    }
    evaluated = [row["step"] for row in rows if "eval_loss" in row]
    assert evaluated == [7, 14, 21, 28, 35, 40]
    # Linear warm-up over 4 steps from step 0, then lr * (1 - step / total).
    assert [row["learning_rate"] for row in trained[:6]] == pytest.approx(
        [0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3 * (1 - 4 / 40), 1e-3 * (1 - 5 / 40)]
    )


@pytest.mark.slow
def test_tensorboard_folder_contains_the_scalars(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished[0] / "tensorboard"))
    events.Reload()
    assert {"loss", "masked_lm_accuracy", "learning_rate", "eval_loss"} <= set(
        events.Tags()["tensors"]
    )


@pytest.mark.slow
def test_repeating_a_finished_command_reports_nothing_to_do(finished, folder, call):
    before = (finished[0] / "model" / "model.safetensors").stat().st_mtime_ns
    again = call(folder, finished[0])
    assert again.returncode == 0
    assert "is finished; nothing to do" in again.stderr
    assert (finished[0] / "model" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_changed_setting_is_rejected_with_the_difference(finished, folder, call):
    again = call(folder, finished[0], learning_rate=0.002)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert "learning_rate was 0.001 and is now 0.002" in again.stderr


@pytest.mark.slow
def test_run_killed_at_a_random_step_resumes_to_identical_weights(
    finished, folder, root, random_moment
):
    output_dir = folder / "killed"
    # At least one checkpoint exists by then, and enough steps remain that the run cannot end before
    # the kill.
    step = random_moment.randrange(8, STEPS - 12)
    checkpoints = output_dir / "checkpoints"
    process = subprocess.Popen(
        command(folder, output_dir), cwd=root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not any(checkpoints.glob("step-*")) or not any(
        f'"step": {step},' in line for line in lines(output_dir / "metrics.jsonl")
    ):
        assert process.poll() is None, f"ended before step {step}"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (output_dir / "results.json").exists()
    again = run(root, command(folder, output_dir))
    assert again.returncode == 0, again.stderr
    assert "Training resumed at step" in again.stderr
    uninterrupted = load_file(finished[0] / "model" / "model.safetensors")
    resumed = load_file(output_dir / "model" / "model.safetensors")
    assert uninterrupted.keys() == resumed.keys()
    for name, value in uninterrupted.items():
        assert value.tobytes() == resumed[name].tobytes(), f"{name} differs; killed at step {step}"
    drop = ("examples_per_second", "tokens_per_second")
    rows = [
        [
            {k: v for k, v in json.loads(line).items() if k not in drop}
            for line in lines(path / "metrics.jsonl")
        ]
        for path in (finished[0], output_dir)
    ]
    assert rows[0] == rows[1], f"killed at step {step}"


@pytest.mark.slow
def test_training_starts_from_a_model_directory(finished, folder, call):
    changes = {"init_checkpoint": finished[0] / "model", "bert_config": "", "num_train_steps": 2}
    done = call(folder, folder / "warm", **changes)
    assert done.returncode == 0, done.stderr
    first = json.loads(lines(folder / "warm" / "metrics.jsonl")[0])
    last = [json.loads(line) for line in lines(finished[0] / "metrics.jsonl")]
    cold = next(row for row in last if row["step"] == 1)
    assert first["masked_lm_loss"] < cold["masked_lm_loss"]


@pytest.mark.slow
def test_run_with_the_former_default_warm_up_resumes_with_that_flag(folder, run_program):
    """The default was 10,000 steps for any number of steps; it is 10% of the steps."""
    output_dir = folder / "warm-up"

    def go(**given):
        (output_dir / "results.json").unlink(missing_ok=True)
        _, program, *arguments = command(folder, output_dir, num_train_steps=100, **given)
        if not given:
            arguments.remove("--num_warmup_steps=4")
        return run_program(program, *arguments)

    assert go().returncode == 0
    record = json.loads((output_dir / "run.json").read_text())
    assert record["settings"]["num_warmup_steps"] == 10
    record["settings"]["num_warmup_steps"] = 10_000
    (output_dir / "run.json").write_text(json.dumps(record))
    done = go()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "other settings: num_warmup_steps was 10000 and is now 10; expected the same" in line
    assert go(num_warmup_steps=10_000).returncode == 0


@pytest.mark.slow
def test_non_finite_loss_stops_the_run_and_keeps_the_last_checkpoint(folder, call):
    output_dir = folder / "diverged"
    changes = {"learning_rate": 1e30, "num_warmup_steps": 30}
    done = call(folder, output_dir, **changes, save_checkpoints_steps=1)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert "run_pretraining.py: error: step " in message
    assert "last good checkpoint" in message
    kept = sorted((output_dir / "checkpoints").iterdir())[-1]
    assert str(kept) in message
    assert not (output_dir / "results.json").exists()


def test_utilization_of_a_known_peak_rate_is_logged_and_in_the_results(folder, tmp_path, call):
    done = call(folder, tmp_path / "out", num_train_steps=4, log_steps=2, peak_tflops=2e-3)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in lines(tmp_path / "out" / "metrics.jsonl")]
    last = next(row for row in rows if row["step"] == 4)
    # 16 tokens and 3 predictions a row; three times the forward pass.
    products = 2 * 16 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 16 * 32), 3 * (32 * 50 + 32 * 32)
    flops = 3 * 2 * (products[0] + products[1])
    assert last["mfu"] == pytest.approx(last["examples_per_second"] * flops / 2e9, rel=1e-5)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    figures = {name: results[name] for name in ("tokens_per_second", "mfu")}
    assert min(figures.values()) > 0
    line = next(line for line in done.stderr.splitlines() if "without compilation: " in line)
    assert all(f"{name}={value:.4g}" in line for name, value in figures.items())


class JaxRuntimeError(Exception):
    """Stands for the exception of JAX."""


@pytest.mark.parametrize(
    ("reason", "code", "line"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
            1,
            "error: --train_batch_size=8: the memory is exhausted (RESOURCE_EXHAUSTED: Out of "
            "memory while trying to allocate 9 bytes.); the activations of 4 rows of 16 tokens "
            "need at least 0.0 GB; expected a smaller batch, or more "
            "--gradient_accumulation_steps, or --gradient_checkpointing",
        ),
        (
            "INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access",
            75,
            "ended early: a GPU or a connection between GPUs failed (INTERNAL: CUDA error: "
            "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access): run the same command again to "
            "resume",
        ),
    ],
)
def test_failure_of_a_gpu_during_a_step_ends_the_run_in_one_line(
    folder, tmp_path, call, monkeypatch, reason, code, line
):
    def failing(*_):
        raise JaxRuntimeError(f"{reason}\nat")

    monkeypatch.setattr("keras_bert.training.loop.make_train_steps", lambda *_: failing)
    done = call(folder, tmp_path / "out", gradient_accumulation_steps=2)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"run_pretraining.py: {line}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixed_precision": "float8"}, "--mixed_precision=float8.*float32.*bfloat16"),
        ({"distribution_strategy": "cluster"}, "--distribution_strategy=cluster"),
        ({"train_batch_size": 0}, "train_batch_size"),
        ({"nonsense": 1}, "nonsense"),
        ({"output_dir": ""}, "--output_dir is required"),
        ({"random_seed": -1}, "random_seed"),
        ({"learning_rate": "nan"}, "--learning_rate=nan: expected a finite number"),
        ({"input_file": "/nowhere/*.tfrecord"}, "no record files match '/nowhere/"),
        ({"output_dir": "setup.cfg/out"}, "setup.cfg/out.*cannot be written"),
        ({"max_seq_length": 128}, "max_seq_length is 16; expected 128, as in --max_seq_length"),
        ({"bert_config": "gigantic"}, "gigantic"),
        ({"bert_config": ""}, "--bert_config is missing"),
        ({"train_batch_size": 9, "gradient_accumulation_steps": 2}, "9.*2"),
    ],
)
def test_invalid_input_exits_with_code_1_and_one_line(folder, call, changes, message):
    output_dir = folder / "bad"
    done = call(folder, **{"output_dir": output_dir} | changes)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("run_pretraining.py: error: ")
    assert re.search(message, done.stderr), done.stderr
    assert not output_dir.exists()
