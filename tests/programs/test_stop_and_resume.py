"""A run that is stopped or killed at any time resumes with the same command to the same bits."""

import json
import os
import shutil
import signal
import threading
import time
from unittest import mock

import pytest

from keras_bert.tasks import fine_tuning as fine_tuning_run
from keras_bert.training import loop
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.loop import Stopping
from tests import processes
from tests.programs.conftest import FLAGS

pytestmark = pytest.mark.slow
STEPS = 16
AGAIN = "run the same command again to resume"


def arguments(program, output_dir, **changes):
    flags = {"num_train_steps": STEPS, "output_dir": output_dir} | FLAGS[program] | changes
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return ["--nojit_compile", *given]


def start(root, place, program, output_dir, **changes):
    """Starts a program in a process of its own."""
    name = ["-m", "keras_bert", "adapt"] if program == "adapt.py" else [root / program]
    return processes.start(
        [*name, *arguments(program, output_dir, **changes)], cwd=place, stderr=processes.PIPE
    )


def assert_same_files(one, two, names):
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


# --- SIGKILL ---


def metrics(folder):
    """Returns the complete rows of metrics.jsonl without the rates."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in row.items() if "per_second" not in k and k != "mfu"} for row in rows]


EACH_STEP = {"log_steps": 1, "save_checkpoints_steps": 7}
MODEL = ("model/model.safetensors", "results.json")
RECIPE = {"recipe": "recipe.toml", "input_file": "records/{max_seq_length}.tfrecord"}
RECIPE |= EACH_STEP | {"save_checkpoints_steps": 3, "eval_file": RECIPE["input_file"]}
RECIPE |= {"eval_batch_size": 25}
RECIPE |= {"num_warmup_steps": None, "num_train_steps": None, "train_batch_size": None}
# name: (program, flags, folders in which the run is killed, steps of the kills, files to compare)
KILLED = {
    "recipe": (
        "run_pretraining.py",
        RECIPE,
        ("phase-1", "phase-2"),
        (4, 15),
        ("phase-1/model/model.safetensors", *MODEL),
    ),
    "classifier": (
        "run_classifier.py",
        EACH_STEP | {"num_train_steps": 48},
        ("",),
        (8, 32),
        (*MODEL, "predictions.tsv", "predictions.jsonl"),
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_run_killed_at_a_random_step_ends_with_the_same_bits(
    root, place, tmp_path, random_moment, name
):
    program, flags, parts, moments, files = KILLED[name]
    flags = dict(flags)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = start(root, place, program, whole, **flags)  # In parallel: startup is slow.
    for part in parts:
        process = start(root, place, program, killed, **flags)
        step, folder, deadline = random_moment.randrange(*moments), killed / part, time.time() + 600
        # At least one checkpoint exists by then, and enough steps remain.
        while not any((folder / "checkpoints").glob("step-*")) or step > max(
            (row["step"] for row in metrics(folder)), default=0
        ):
            assert process.poll() is None, f"ended before step {step}: {process.stderr.read()}"
            assert time.time() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (folder / "results.json").exists()
    if "recipe" in flags:  # The name of the recipe may change.
        flags["recipe"] = shutil.copy(place / flags["recipe"], tmp_path / "renamed.toml")
    resumed = start(root, place, program, killed, **flags)
    for process in (undisturbed, resumed):
        error = process.communicate()[1]
        assert process.returncode == 0, error
    assert "Training resumed at step" in error
    assert ("phase-1 is finished" in error) == (name == "recipe")
    assert_same_files(whole, killed, files)
    for part in parts:
        assert metrics(whole / part) == metrics(killed / part), f"killed at step {step}"


# --- Ctrl-C and SIGTERM ---


@pytest.fixture
def go(run_program, place):
    """Returns a function: (program, output folder) -> exit code, last line of stderr."""

    def run(program, output_dir):
        done = run_program(program, *arguments(program, output_dir), cwd=place)
        return done.returncode, done.stderr.splitlines()[-1]

    return run


def sends(number, function, call=1):
    """Wraps a function so that the process receives a signal at the start of a call."""
    calls = iter(range(1, 1000))

    def wrapped(*arguments, **options):
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    return wrapped


def at_first_step(number):
    """Makes the process receive a signal at the start of the call that compiles the first step."""
    make = loop.make_train_steps
    return mock.patch.object(
        loop, "make_train_steps", lambda *arguments: sends(number, make(*arguments))
    )


def test_classifier_that_is_stopped_at_any_time_ends_with_the_same_bits(go, tmp_path):
    program = "run_classifier.py"
    assert go(program, tmp_path / "whole")[0] == 0
    out = tmp_path / "stopped"
    with mock.patch.object(loop, "restore_latest", sends(signal.SIGINT, loop.restore_latest)):
        code, line = go(program, out)
    lost = "work that is not saved yet is lost"
    assert (code, line) == (130, f"{program}: interrupted: {lost}: {AGAIN}")
    assert not (out / "checkpoints").exists()
    evaluate, save = Stopping.evaluate, CheckpointWriter.save
    moments = [
        (1, signal.SIGTERM, at_first_step(signal.SIGTERM)),
        (8, signal.SIGINT, mock.patch.object(Stopping, "evaluate", sends(signal.SIGINT, evaluate))),
        # After the last agreement: the run is complete except for the predictions.
        (16, signal.SIGINT, mock.patch.object(CheckpointWriter, "save", sends(2, save))),
    ]
    for step, number, moment in moments:
        with moment:
            code, line = go(program, out)
        saved = f"after step {step}; the checkpoint is saved: {AGAIN}"
        if number == signal.SIGINT:
            assert (code, line) == (130, f"{program}: interrupted: stopped {saved}")
        else:
            assert (code, line) == (75, f"{program}: ended early: stopped by SIGTERM {saved}")
        assert checkpoints(out) == [f"step-{step:08d}"]
        assert not (out / "results.json").exists()
    with mock.patch.object(fine_tuning_run, "_last_and_best_step", side_effect=KeyboardInterrupt):
        code, line = go(program, out)
    saved = f"the checkpoint of step 16 is saved in {out / 'checkpoints'}"
    assert (code, line) == (130, f"{program}: interrupted: {saved}: {AGAIN}")
    assert go(program, out)[0] == 0
    assert_same_files(out, tmp_path / "whole", (*MODEL, "predictions.jsonl"))


def test_ctrl_c_in_the_first_step_of_an_adaptation_saves_a_checkpoint(go, tmp_path):
    with at_first_step(signal.SIGINT):
        code, line = go("adapt.py", tmp_path)
    saved = "stopped after step 1 of train; the checkpoint is saved"
    assert (code, line) == (130, f"adapt.py: interrupted: {saved}: {AGAIN}")
    assert checkpoints(tmp_path / "train") == ["step-00000001"]


def interrupt_at(process, text):
    """Sends SIGINT when a line of stderr contains a text."""
    for line in process.stderr:
        if text in line:
            process.send_signal(signal.SIGINT)
            return


def test_second_ctrl_c_ends_the_compilation_at_once(place, tmp_path):
    """A step that takes a minute stands for a long compilation: neither returns to Python."""
    code = """if True:
        import sys, tensorflow as tf
        from keras_bert.training import loop
        from keras_bert.programs.command import start
        @tf.function
        def wait():
            return tf.while_loop(lambda i: i < 2**62, lambda i: i + 1, [tf.constant(0, tf.int64)])
        loop.make_train_steps = lambda *_: lambda *_: wait()
        start("keras_bert.programs.pretrain", ["run_pretraining.py", *sys.argv[1:]])
    """
    process = processes.start(
        ["-c", code, *arguments("run_pretraining.py", tmp_path / "out")],
        cwd=place,
        stderr=processes.PIPE,
    )
    killer = threading.Timer(120, process.kill)
    killer.start()
    interrupt_at(process, "Compiling the training step: ")
    interrupt_at(process, "Ctrl-C: saving a checkpoint after the current step")
    lines = process.communicate()[1].splitlines()
    killer.cancel()
    assert process.returncode == 130
    assert lines[-1] == "run_pretraining.py: interrupted: unsaved work is lost"
