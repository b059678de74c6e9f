"""Workers as processes of their own, on this machine: the numbers of one device, and faults."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.schedules import LinearWarmupDecay
from keras_bert.tasks.pretraining.batches import training_batches
from keras_bert.tasks.pretraining.records import find_records
from keras_bert.tasks.pretraining.task import pretraining_task
from keras_bert.training.loop import TrainingSettings, train

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
STEPS, BATCH, SEED, RATE = 12, 12, 7, 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records):
    folder = tmp_path_factory.mktemp("workers")
    for index in range(3):
        write_records(folder / "records" / f"part-{index}.tfrecord", 20 + index, seed=index)
    write_records(folder / "eval.tfrecord", 17, seed=9)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def command(folder, output_dir, **changes):
    values = {
        "bert_config": folder / "config.json",
        "input_file": folder / "records",
        "eval_file": folder / "eval.tfrecord",
        "output_dir": output_dir,
        "num_train_steps": STEPS,
        "num_warmup_steps": 2,
        "learning_rate": RATE,
        "train_batch_size": BATCH,
        "eval_batch_size": 6,
        "save_checkpoints_steps": 5,
        "random_seed": SEED,
        "log_steps": 1,
        "mixed_precision": "float32",
        "nojit_compile": None,
        "distribution_strategy": "multi_worker_mirrored",
    } | changes
    flags = [f"--{k}" if v is None else f"--{k}={v}" for k, v in values.items()]
    return [sys.executable, "run_pretraining.py", *flags]


def supervised(arguments, workers, **flags):
    own = [f"--{name}={value}" for name, value in flags.items()]
    module = [sys.executable, "-m", "keras_bert.training.supervise", f"--num_workers={workers}"]
    return [*module, *own, "--", *arguments]


def run(root, arguments):
    return subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)


def weights(output_dir):
    return load_file(output_dir / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors")


@pytest.fixture(scope="module")
def two_workers(folder, root):
    done = run(root, supervised(command(folder, folder / "two"), 2, max_restarts=0))
    assert done.returncode == 0, done.stderr
    return folder / "two"


def one_device(folder, output_dir, workers, **settings):
    """Trains on the same global batches in this process: the workers' shares, side by side."""
    data = find_records(str(folder / "records"))
    keras.utils.set_random_seed(SEED)
    model = BertPretrainer(BertConfig.from_dict(CONFIG), dtype="float32")
    optimizer = AdamWeightDecay(LinearWarmupDecay(RATE, STEPS, 2))
    optimizer.build(model.trainable_variables)

    def batches_from(step):
        shares = [
            training_batches(data, BATCH, CONFIG["vocab_size"], SEED, step, share=(index, workers))
            for index in range(workers)
        ]
        return tf.data.Dataset.zip(tuple(shares)).map(
            lambda *parts: {name: tf.concat([p[name] for p in parts], 0) for name in parts[0]}
        )

    chosen = TrainingSettings(STEPS, BATCH, jit_compile=False, **settings)
    one = tf.distribute.get_strategy()
    train(one, model, optimizer, pretraining_task(), batches_from, chosen, output_dir)
    return weights(output_dir)


def assert_close(first, second, tolerance=1e-6):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=tolerance, err_msg=name)


def test_two_workers_end_at_the_weights_of_one_device(folder, two_workers, tmp_path):
    assert_close(weights(two_workers), one_device(folder, tmp_path, 2))


def test_the_first_worker_writes_what_one_process_would(two_workers):
    names = {path.name for path in two_workers.iterdir()}
    assert names == {
        "model",
        "checkpoints",
        "tensorboard",
        "metrics.jsonl",
        "results.json",
        "run.json",
    }
    rows = [json.loads(row) for row in (two_workers / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "eval_loss" in row] == [5, 10, 12]


def test_an_evaluation_counts_every_record_once(folder, root, two_workers):
    """17 records in batches of 6, cut in two: the last batch is uneven."""
    flags = {"init_checkpoint": two_workers, "nodo_train": None, "output_dir": folder / "scored"}
    alone = command(folder, **flags, distribution_strategy="default", bert_config="")
    done = run(root, alone)
    assert done.returncode == 0, done.stderr
    first, second = (
        json.loads((path / "results.json").read_text()) for path in (two_workers, folder / "scored")
    )
    for name in ("loss", "masked_lm_accuracy", "next_sentence_accuracy"):
        assert first[name] == pytest.approx(second[name], abs=1e-6)


def test_three_workers_with_micro_batches_equal_one_device(folder, root, tmp_path):
    flags = {"output_dir": tmp_path / "three", "gradient_accumulation_steps": 2}
    done = run(root, supervised(command(folder, **flags), 3, max_restarts=0))
    assert done.returncode == 0, done.stderr
    alone = one_device(folder, tmp_path / "one", 3, gradient_accumulation_steps=2)
    assert_close(weights(tmp_path / "three"), alone)


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def workers_of(process):
    """The processes that a supervisor started."""
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(children, encoding="ascii") as file:
        return [int(number) for number in file.read().split()]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_is_restarted_with_all_others_to_the_same_bits(
    folder, root, two_workers, tmp_path, killed
):
    arguments = supervised(command(folder, tmp_path / "run"), 2, backoff=0.1)
    process = subprocess.Popen(arguments, cwd=root, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "run/checkpoints/step-00000005").exists, process)
    os.kill(workers_of(process)[killed], signal.SIGKILL)
    _, log = process.communicate(timeout=240)
    assert process.returncode == 0, log
    assert f"worker {killed} is gone: the same command again goes on" in log
    ended = [75, 75]
    ended[killed] = -signal.SIGKILL
    assert f"ended with {ended}; restart 1 of 10" in log
    assert_close(weights(tmp_path / "run"), weights(two_workers), tolerance=0)


def test_sigterm_to_one_worker_saves_and_ends_all(folder, root, two_workers, tmp_path):
    flags = {"save_checkpoints_steps": 1000, "num_train_steps": STEPS, "eval_file": ""}
    arguments = supervised(command(folder, tmp_path / "run", **flags), 2, max_restarts=0)
    process = subprocess.Popen(arguments, cwd=root, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run/metrics.jsonl"
    wait_for(metrics.exists, process)
    os.kill(workers_of(process)[1], signal.SIGTERM)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 75, log
    assert "told to stop after step" in log
    (saved,) = (tmp_path / "run/checkpoints").iterdir()
    assert 0 < int(saved.name[-8:]) < STEPS
    done = run(root, supervised(command(folder, tmp_path / "run", **flags), 2))
    assert done.returncode == 0, done.stderr
    assert_close(weights(tmp_path / "run"), weights(two_workers), tolerance=0)


def start_pair(root, folder, tmp_path, *changes):
    """Starts two workers by hand, each with flags of its own."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(f"127.0.0.1:{free.getsockname()[1]}")
    started = []
    for index, own in enumerate(changes):
        config = {"cluster": {"worker": ports}, "task": {"type": "worker", "index": index}}
        started.append(
            subprocess.Popen(
                command(folder, tmp_path / "run", **own),
                cwd=root,
                env=os.environ | {"TF_CONFIG": json.dumps(config)},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def test_workers_with_other_settings_are_refused_at_the_start(folder, root, tmp_path):
    started = start_pair(root, folder, tmp_path, {}, {"learning_rate": 5e-4})
    for process in started:
        _, log = process.communicate(timeout=120)
        assert process.returncode == 1, log
        message = "learning_rate is 0.001 on worker 0 and 0.0005 on worker 1"
        assert message in log.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_worker_that_never_joins_is_named(folder, root, tmp_path):
    (process,) = start_pair(root, folder, tmp_path, {"worker_timeout": 3})
    _, log = process.communicate(timeout=120)
    assert process.returncode == 75, log
    assert "worker 0 of 2 waited 3 s (--worker_timeout); not there: 127" in log.splitlines()[-1]


def test_fewer_files_than_workers_are_refused(folder, root, tmp_path):
    flags = {"input_file": folder / "records/part-0.tfrecord"}
    done = run(root, supervised(command(folder, tmp_path / "run", **flags), 2, max_restarts=0))
    assert done.returncode == 1
    assert "1 files with records, but 2 workers need 2 at least, one each" in done.stderr
    assert not (tmp_path / "run").exists()
