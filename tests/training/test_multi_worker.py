"""Workers as separate processes on this machine: equality with one device, and failures."""

import json
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.pretraining.records import evaluation_batches, find_records, training_batches
from keras_bert.training.evaluate import make_evaluate
from keras_bert.training.loop import train
from keras_bert.training.objective import TrainingRun, TrainState
from keras_bert.training.optimizers import AdamWeightDecay, LinearWarmupDecay
from tests.training import worker_tasks, workers
from tests.training.worker_tasks import (
    BATCH,
    CONFIG,
    FINE_TUNING,
    RATE,
    SEED,
    STEPS,
    TRAINING,
)

pytestmark = pytest.mark.slow  # Starts workers.

ONE = tf.distribute.get_strategy()
SECONDS_TO_END = 60  # docs/guides/several_machines.md; at most 14 were measured.


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_records, make_checkpoint):
    folder = tmp_path_factory.mktemp("data")
    for index in range(3):
        write_records(folder / "records" / f"part-{index}.tfrecord", 20 + index, seed=index)
    write_records(folder / "eval.tfrecord", 17, seed=9)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    make_checkpoint(folder / "model", [f"w{index}" for index in range(45)])
    return folder


SESSION = ["plain", "stopped", "tuned", "rejected", "drifted", "pipelines"]


@pytest.fixture(scope="module")
def session(data, tmp_path_factory):
    """Runs a session on two workers and returns its folder; worker_tasks.py has the tasks."""
    folder = tmp_path_factory.mktemp("session")
    workers.run(folder, 2, "session", data, folder, *SESSION)
    return folder


def results_of(folder, name):
    """Returns the results of each worker after checking that their digests are equal."""
    first, second = (json.loads((folder / f"{name}-{i}.json").read_text()) for i in range(2))
    assert first["digests"] == second["digests"]
    return first, second


def weights(output_dir, step=STEPS):
    return load_file(output_dir / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def metrics(output_dir):
    """Returns the lines of metrics.jsonl without throughput values."""
    rows = [json.loads(row) for row in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith("_per_second")} for row in rows]


def assert_close(first, second, tolerance=1e-6):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=tolerance, err_msg=name)


def one_device(data, output_dir):
    """Trains in this process on the same global batches, which are both workers' shares joined."""
    records = find_records(str(data / "records"))
    keras.utils.set_random_seed(SEED)
    model = BertPretrainer(BertConfig.from_dict(CONFIG))
    optimizer = AdamWeightDecay(LinearWarmupDecay(RATE, STEPS, 2))
    optimizer.build(model.trainable_variables)

    def batches_from(step):
        shares = [
            training_batches(records, CONFIG["vocab_size"], BATCH, SEED, step, share=(index, 2))
            for index in range(2)
        ]
        return tf.data.Dataset.zip(tuple(shares)).map(
            lambda *parts: {name: tf.concat([p[name] for p in parts], 0) for name in parts[0]}
        )

    state = TrainState(model, optimizer, PretrainingObjective())
    train(TrainingRun(TRAINING, ONE, output_dir), state, batches_from)
    return model


def test_two_workers_are_bit_identical_and_match_one_device(data, session, tmp_path):
    """Uses micro-batches, clipping, dropout, and an evaluation of 17 records in batches of 6."""
    (first, _) = results_of(session, "plain")
    assert [step for step, _ in first["digests"]] == [5, 10, 12]
    assert first["warnings"] == []
    model = one_device(data, tmp_path)
    assert_close(weights(session / "plain"), weights(tmp_path))
    norms = [row["gradient_norm"] for row in metrics(session / "plain") if "gradient_norm" in row]
    assert max(norms) > TRAINING.max_grad_norm  # Gradients were really clipped.
    held_out = evaluation_batches(find_records(str(data / "eval.tfrecord")), 50, 6)
    score = make_evaluate(ONE, model, PretrainingObjective(), jit_compile=False)
    results = json.loads((session / "plain" / "results.json").read_text())
    for name, value in score(held_out).items():
        assert results[name] == pytest.approx(value, abs=1e-6), name


def test_first_worker_writes_the_same_files_as_a_single_process(session):
    names = {path.name for path in (session / "plain").iterdir()}
    assert names == {
        "model",
        "checkpoints",
        "tensorboard",
        "metrics.jsonl",
        "results.json",
        "run.json",
    }
    rows = metrics(session / "plain")
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "eval_loss" in row] == [5, 10, 12]


def test_sigterm_to_one_worker_stops_all_and_the_run_resumes_bit_identical(session):
    """Stops in training after step 4, then in the evaluation of step 5, which is then repeated."""
    for found in results_of(session, "stopped"):
        assert found["result"] == [
            "EndedEarly: stopped by SIGTERM after step 4; the checkpoint is saved",
            "EndedEarly: stopped by SIGTERM after step 5; the checkpoint is saved",
            "finished",
        ]
    assert_close(weights(session / "stopped"), weights(session / "plain"), tolerance=0)
    assert metrics(session / "stopped") == metrics(session / "plain")


def test_fine_tuning_on_two_workers_stops_early_and_matches_one_device(data, session, tmp_path):
    """20 examples in batches of 12, two micro-batches each: an epoch's last batch is uneven."""
    (first, _) = results_of(session, "tuned")
    assert [step for step, _ in first["digests"]] == [2, 4, 6]
    alone = worker_tasks.fine_tuning(ONE, data, tmp_path)
    assert (first["result"]["step"], first["result"]["best_step"]) == (6, 6)
    assert first["result"] == pytest.approx(alone, abs=1e-6)
    for step in (2, 6):
        assert_close(weights(session / "tuned", step), weights(tmp_path, step))
    norms = [row["gradient_norm"] for row in metrics(tmp_path) if "gradient_norm" in row]
    assert max(norms) > FINE_TUNING.max_grad_norm


def test_differences_between_workers_are_rejected_on_all_workers(session):
    for found in results_of(session, "rejected"):
        settings, files, folder, evaluations, steps, finished, changed = found["result"]
        assert "learning_rate is 1.0 on worker 0 and 0.5 on worker 1" in settings
        assert "found 1 files with records; expected at least 2, one per worker" in files
        where = f"is {session / 'apart-0'} on worker 0 and {session / 'apart-1'} on worker 1"
        assert f"--output_dir {where}" in folder
        assert "checkpoints of steps [5, 5] and [0, 1] evaluations" in evaluations
        assert "checkpoints of steps [5, 6] and [1, 1] evaluations" in steps
        assert (
            f"and {session / 'done-1'} on worker 1, where the files of worker 0 are not visible"
            in finished
        )
        assert "done-0: contains a run with other settings: a was null and is now 1" in changed
    assert not (session / "rejected").exists()


def test_worker_whose_weights_have_diverged_is_named(session):
    for found in results_of(session, "drifted"):
        (warning,) = found["warnings"]
        assert "step 7: the weights of workers [1] differ from those of worker 0" in warning


def test_endless_pipeline_needs_no_collective_for_the_next_batch(session):
    assert [found["result"] for found in results_of(session, "pipelines")] == [[True, False]] * 2


def flags(data, output_dir, **changes):
    values = {
        "bert_config": data / "config.json",
        "input_file": data / "records",
        "eval_file": data / "eval.tfrecord",
        "output_dir": output_dir,
        "num_train_steps": STEPS,
        "num_warmup_steps": 2,
        "learning_rate": RATE,
        "train_batch_size": BATCH,
        "gradient_accumulation_steps": 2,
        "eval_batch_size": 6,
        "save_checkpoints_steps": 5,
        "random_seed": SEED,
        "log_steps": 1,
        "mixed_precision": "float32",
        "nojit_compile": None,
        "distribution_strategy": "multi_worker_mirrored",
    } | changes
    return [f"--{k}" if v is None else f"--{k}={v}" for k, v in values.items()]


def last_checkpoint(output_dir):
    """Returns the step of the last checkpoint; 0 if there is none."""
    steps = [int(path.name[5:]) for path in output_dir.glob("checkpoints/step-*")]
    return max(steps, default=0)


def check_end(processes, killed):
    """Checks the exit codes and logs of two workers of which one was killed."""
    processes[killed].wait()
    processes[1 - killed].wait(SECONDS_TO_END)
    log = processes[1 - killed].log.read_text()
    assert processes[killed].returncode == -signal.SIGKILL
    assert processes[1 - killed].returncode == 75, log
    assert "Traceback" not in log, log
    expected = (
        f"run_pretraining.py: ended early: lost the connection to worker {killed}: "
        "run the same command again"
    )
    assert log.splitlines()[-1].startswith(expected), log


def test_killed_worker_ends_the_others_and_the_run_resumes_bit_identical(
    data, session, root, tmp_path, random_moment
):
    """Kills worker 0 while models are built, which leaves no files, and in training.

    test_cluster_files.py kills the other worker.
    """
    run, nothing = tmp_path / "run", tmp_path / "nothing"

    def start(name, output_dir, *task):
        program = (*task, root / "run_pretraining.py", *flags(data, output_dir))
        return workers.start(tmp_path / name, 2, *program)

    building = start("building", nothing, "signalled", "SIGKILL", 0, 0)
    step = random_moment.randint(1, STEPS)
    check_end(start("training", run, "signalled", "SIGKILL", 0, step), 0)
    check_end(building, 0)
    assert not nothing.exists()
    step = last_checkpoint(run)
    again = start("again", run, "program")
    assert [worker.wait() for worker in again] == [0, 0]
    assert (f"Training resumed at step {step}" in again[0].log.read_text()) == (step > 0)
    assert_close(weights(run), weights(session / "plain"), tolerance=0)


def test_worker_that_does_not_answer_ends_the_other(data, root, tmp_path, random_moment):
    """Stops a worker in the middle of a step; as in a partition, its connections stay open."""
    frozen, step = random_moment.randrange(2), random_moment.randrange(1, STEPS)
    program = root / "run_pretraining.py", *flags(data, tmp_path / "run", worker_timeout=60)
    both = workers.start(tmp_path, 2, "signalled", "SIGSTOP", frozen, step, *program)
    while Path(f"/proc/{both[frozen].pid}/stat").read_text().split()[2] != "T":
        assert both[frozen].poll() is None, both[frozen].log.read_text()
        time.sleep(0.05)
    assert both[1 - frozen].wait(SECONDS_TO_END) == 75
    log = both[1 - frozen].log.read_text()
    assert "ended early: lost the connection to" in log
    assert "Traceback" not in log
    both[frozen].kill()


def test_wait_for_a_worker_that_never_joins_ends(data, root, tmp_path):
    arguments = flags(data, tmp_path / "run", worker_timeout=3)
    task = ("first_alone", root / "run_pretraining.py", *arguments)
    (first, _) = workers.start(tmp_path, 2, *task)
    assert first.wait() == -signal.SIGALRM
    waiting = "Waiting up to 3 s (--worker_timeout) for all of Cluster(workers=('127.0.0.1:"
    assert waiting in first.log.read_text()


def test_two_workers_evaluate_and_predict_as_one_process_does(root, data, tmp_path):
    """Evaluates 20 examples and predicts 2 in batches of 6: the last batches are uneven."""
    glue = tmp_path / "SST-2"
    glue.mkdir()
    texts = [f"{'w1 ' * (i % 4)}w{2 + i % 2} w4 .\t{i % 2}\n" for i in range(64)]
    for name, some in (("train", texts), ("dev", texts[:20])):
        (glue / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(some))
    (glue / "test.tsv").write_text("index\tsentence\n0\tw2 w4 .\n1\tw3 .\n")
    given = {
        "task_name": "SST-2",
        "data_dir": tmp_path,
        "init_checkpoint": data / "model",
        "max_seq_length": 16,
        "num_train_epochs": 1,
        "train_batch_size": 12,
        "eval_batch_size": 6,
        "mixed_precision": "float32",
    }
    program = "program", root / "run_classifier.py"
    one, two = tmp_path / "one", tmp_path / "two"
    values = [f"--{name}={value}" for name, value in given.items()] + ["--nojit_compile"]
    several = [f"--output_dir={two}", "--distribution_strategy=multi_worker_mirrored", "--export"]
    (alone,) = workers.start(one, 1, *program, *values, f"--output_dir={one}")
    logs = workers.run(two, 2, *program, *values, *several)
    assert alone.wait() == 0
    assert [text.count("accuracy = ") for text in logs] == [1, 0]
    assert (two / "export" / "1" / "saved_model.pb").exists()
    first, second = (json.loads((path / "results.json").read_text()) for path in (one, two))
    assert second == pytest.approx(first, abs=1e-5)
    assert (one / "SST-2.tsv").read_text() == (two / "SST-2.tsv").read_text()
