"""Ctrl-C and SIGTERM save a checkpoint, and the same command resumes to the same bits."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest

from keras_bert.tasks.fine_tuning import run as fine_tuning_run
from keras_bert.training import loop
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.loop import Stopping
from tests.programs.test_adapt import write_documents
from tests.programs.test_run_pretraining import CONFIG

pytestmark = pytest.mark.slow
STEPS = 16
AGAIN = "run the same command again to resume"


@pytest.fixture(scope="module")
def place(pretrained, make_checkpoint, write_records, tmp_path_factory):
    """Creates a model and training files of each program."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "bert").symlink_to(pretrained)
    words = ["who", "swore", "##?", "rollo", "film", "good", "bad", "very", "x", "b", "i", "o"]
    make_checkpoint(folder / "words", words)
    rows = [f"{'very ' * (i % 4)}{('bad', 'good')[i % 2]} film\t{i % 2}" for i in range(64)]
    (folder / "texts.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (folder / "words.conll").write_text("good B-X\nfilm O\n\nbad O\nfilm O\n\n" * 32)
    pairs = [f"good {'very ' * i}\tfilm {'bad ' * i}" for i in range(32)]
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    answers = [{"text": "Rollo", "answer_start": 0}]
    questions = [{"id": str(i), "question": "Who swore?", "answers": answers} for i in range(64)]
    paragraphs = [{"context": "Rollo swore.", "qas": questions}]
    data = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(data))
    write_records(folder / "records" / "train.tfrecord", 50)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_documents(folder / "documents")
    return folder


FINE_TUNING = {"init_checkpoint": "words", "max_seq_length": 16, "num_train_steps": STEPS}
FINE_TUNING |= {"train_batch_size": 8}
CLASSIFY = {"task_name": "custom", "train_file": "texts.tsv", "eval_file": "texts.tsv"}
PRETRAIN = {"bert_config": "config.json", "input_file": "records", "train_batch_size": 4}
PRETRAIN |= {"num_train_steps": STEPS, "num_warmup_steps": 4}
# {program: its flags}
PROGRAMS = {
    "run_classifier.py": FINE_TUNING | CLASSIFY,
    "run_ner.py": FINE_TUNING | {"train_file": "words.conll"},
    "run_squad.py": FINE_TUNING | {"train_file": "squad.json", "max_query_length": 8},
    "run_embedding.py": FINE_TUNING | {"train_file": "pairs.tsv"},
    "run_pretraining.py": PRETRAIN,
    "adapt.py": {
        **{"input_file": "documents", "init_checkpoint": "bert", "num_train_steps": STEPS},
        **{"max_seq_length": 16, "min_frequency": 1000, "input_format": "mixed"},
    },
}


@pytest.fixture
def go(run_program, place):
    """Returns a function: (program, output folder) -> exit code, last line of stderr."""

    def run(program, output_dir):
        flags = PROGRAMS[program] | {"output_dir": output_dir, "mixed_precision": "float32"}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        done = run_program(program, "--nojit_compile", *arguments, cwd=place)
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


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


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
        (1, signal.SIGINT, at_first_step(signal.SIGINT)),
        (2, signal.SIGTERM, at_first_step(signal.SIGTERM)),
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
    for name in ("model/model.safetensors", "results.json", "predictions.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_in_the_first_step_saves_a_checkpoint(go, tmp_path, program):
    with at_first_step(signal.SIGINT):
        code, line = go(program, tmp_path)
    part, folder = ("", tmp_path)
    if program == "adapt.py":
        part, folder = " of train", tmp_path / "train"
    saved = f"stopped after step 1{part}; the checkpoint is saved"
    assert (code, line) == (130, f"{program}: interrupted: {saved}: {AGAIN}")
    assert checkpoints(folder) == ["step-00000001"]


def start(root, place, output_dir, backend):
    flags = PRETRAIN | {"output_dir": output_dir, "mixed_precision": "float32"}
    return subprocess.Popen(
        [sys.executable, root / "run_pretraining.py", *(f"--{k}={v}" for k, v in flags.items())],
        cwd=place,
        env=os.environ | {"KERAS_BACKEND": backend},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupt_at(process, text):
    """Sends SIGINT when a line of stderr contains a text."""
    for line in process.stderr:
        if text in line:
            process.send_signal(signal.SIGINT)
            return


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_pretraining_that_is_stopped_while_it_compiles_ends_with_the_same_bits(
    root, place, tmp_path, backend_python, backend
):
    backend_python(backend)
    whole = start(root, place, tmp_path / "whole", backend)
    stopped = start(root, place, tmp_path / "stopped", backend)
    interrupt_at(stopped, "Compiling the training step")
    *_, line = stopped.communicate()[1].splitlines()
    assert stopped.returncode == 130
    (step,) = re.findall(r"interrupted: stopped after step (\d+); the checkpoint is saved", line)
    assert checkpoints(tmp_path / "stopped") == [f"step-{int(step):08d}"]
    resumed = start(root, place, tmp_path / "stopped", backend)
    for process in (whole, resumed):
        error = process.communicate()[1]
        assert process.returncode == 0, error
    assert f"Training resumed at step {step} " in error
    for name in ("model/model.safetensors", "results.json"):
        first, second = ((tmp_path / run / name).read_bytes() for run in ("whole", "stopped"))
        assert first == second


def test_second_ctrl_c_ends_the_compilation_at_once(place, tmp_path):
    """A step that takes a minute stands for a long compilation: neither returns to Python."""
    code = """if True:
        import sys, tensorflow as tf
        from keras_bert.training import loop
        from keras_bert.programs.start import start
        @tf.function
        def wait():
            return tf.while_loop(lambda i: i < 2**62, lambda i: i + 1, [tf.constant(0, tf.int64)])
        loop.make_train_steps = lambda *_: lambda *_: wait()
        start("keras_bert.programs.pretrain", ["run_pretraining.py", *sys.argv[1:]])
    """
    flags = PRETRAIN | {"output_dir": tmp_path / "out"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *(f"--{name}={value}" for name, value in flags.items())],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    killer = threading.Timer(120, process.kill)
    killer.start()
    interrupt_at(process, "Compiling the training step: ")
    interrupt_at(process, "Ctrl-C: saving a checkpoint after the current step")
    lines = process.communicate()[1].splitlines()
    killer.cancel()
    assert process.returncode == 130
    assert lines[-1] == "run_pretraining.py: interrupted: unsaved work is lost"
