"""Tasks of workers in tests: a session of several tasks, a program, a kill at a given place.

TF_CONFIG=... python -m tests.training.worker_tasks TASK ARGUMENT ...
"""

import contextlib
import functools
import itertools
import json
import os
import runpy
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from keras_bert.errors import EndedEarly, InputError
from keras_bert.files import write_json
from keras_bert.pretraining import run as pretraining_run
from keras_bert.pretraining.run import Phase, pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.tasks.fine_tuning import FineTuningRun, open_pretrained
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training import loop, run_folder
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.cluster import all_sum
from keras_bert.training.log import RunLog
from keras_bert.training.loop import check_weights
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import distribute, make_strategy
from tests.tasks.fine_tuning.conftest import LabelTask, random_examples
from tests.tasks.fine_tuning.test_run import OBJECTIVE

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
STEPS, BATCH, SEED, RATE = 12, 12, 7, 1e-3
TRAINING = TrainingSettings(
    STEPS,
    BATCH,
    gradient_accumulation_steps=2,
    jit_compile=False,
    log_steps=1,
    save_checkpoints_steps=5,
)
FINE_TUNING = TrainingSettings(
    0, 12, gradient_accumulation_steps=2, max_grad_norm=0.1, jit_compile=False, log_steps=1
)


def pretraining(strategy, data, output_dir, record=None, **changes):
    """Pre-trains on the records of a folder."""
    values = {
        "input_file": str(data / "records"),
        "eval_file": str(data / "eval.tfrecord"),
        "bert_config": str(data / "config.json"),
        "learning_rate": RATE,
        "num_warmup_steps": 2,
        "random_seed": SEED,
        "eval_batch_size": 6,
    }
    settings = PretrainingSettings(**values | changes)
    return pretrain([Phase(settings, TRAINING, record or {})], strategy, output_dir)


def fine_tuning(strategy, data, output_dir):
    """Fine-tunes a classifier on 20 examples in batches of 12; the first evaluation is the best."""
    settings = FineTuningSettings(
        str(data / "model"),
        max_seq_length=16,
        learning_rate=3e-3,
        num_train_epochs=6,
        early_stopping_patience=2,
        eval_batch_size=6,
    )
    held_out = random_examples(10, 1, 12)

    def score(outputs):
        return {"accuracy": 0.5, "mean": float(np.abs(outputs["logits"]).mean())}

    train = random_examples(20, 0, 12)
    task = LabelTask(OBJECTIVE, train, held_out, max_seq_length=16, score=score)
    run = FineTuningRun(
        training=FINE_TUNING,
        strategy=strategy,
        output_dir=output_dir,
        settings=settings,
    )
    return task.run(run, open_pretrained(settings))


@contextlib.contextmanager
def at_call(owner: object, name: str, number: int, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act` right before the given call of a function."""
    function, calls = getattr(owner, name), itertools.count(1)

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return function(*args, **kwargs)

    with mock.patch.object(owner, name, call):
        yield


def signals(number: int) -> Callable[[], None]:
    """Returns a function that sends a signal to its own process."""
    return lambda: os.kill(os.getpid(), number)


def outcome(function: Callable[[], object]) -> str:
    """Runs a function that may be rejected or stopped; returns its outcome."""
    try:
        function()
    except (InputError, EndedEarly) as error:
        return f"{type(error).__name__}: {error}"
    return "finished"


def plain(strategy, index, data, folder):
    return pretraining(strategy, data, folder / "plain")


def stopped(strategy, index, data, folder):
    """Stops worker 1 in training, then worker 0 in an evaluation."""
    go = functools.partial(pretraining, strategy, data, folder / "stopped")
    stop, no_one = signals(signal.SIGTERM), contextlib.nullcontext()
    with at_call(RunLog, "add", 3, stop) if index == 1 else no_one:
        outcomes = [outcome(go)]
    with at_call(loop._Pace, "learn", 2, stop) if index == 0 else no_one:
        outcomes.append(outcome(go))
    return [*outcomes, outcome(go)]


def tuned(strategy, index, data, folder):
    return fine_tuning(strategy, data, folder / "tuned")


def rejected(strategy, index, data, folder):
    go = functools.partial(pretraining, strategy, data)
    one_file = str(data / "records" / "part-0.tfrecord")
    done = folder / f"done-{index}"
    if index == 0:
        write_json(done / "run.json", {"settings": {}})
        write_json(done / "results.json", {})
    with mock.patch.object(run_folder, "_VISIBILITY_TIMEOUT", 0.5):
        return [
            outcome(lambda: go(folder / "rejected", record={"learning_rate": 1 / (1 + index)})),
            outcome(lambda: go(folder / "rejected", input_file=one_file)),
            outcome(lambda: go(folder / f"apart-{index}")),
            outcome(lambda: loop.check_same_start(strategy, 5, [{}] * index, folder)),
            outcome(lambda: loop.check_same_start(strategy, 5 + index, [{}], folder)),
            outcome(lambda: run_folder.is_finished(done, {}, strategy)),
            outcome(lambda: run_folder.is_finished(done, {"a": 1}, strategy)),
        ]


def drifted(strategy, index, data, folder):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    writer = CheckpointWriter(folder / "drifted")
    check_weights(strategy, model, 6, writer)
    kernel = model.trainable_variables[0]
    if index == 1:
        kernel.assign(np.nextafter(keras.ops.convert_to_numpy(kernel), np.float32(9)))
    check_weights(strategy, model, 7, writer)


def pipelines(strategy, index, data, folder):
    """Returns whether `next` of a finite and of an endless pipeline uses collectives."""

    def uses_collectives(endless):
        batches = tf.data.Dataset.range(8).repeat().filter(lambda x: x >= 0).batch(2)
        iterator = iter(distribute(strategy, batches, endless=endless))
        graph = tf.function(lambda: next(iterator)).get_concrete_function().graph
        return "Collective" in str(graph.as_graph_def())

    return [uses_collectives(endless=False), uses_collectives(endless=True)]


def session(data, folder, *names):
    """Runs several of the tasks above in turn; writes the results to FOLDER/NAME-INDEX.json."""
    data, folder, index = Path(data), Path(folder), _index()
    strategy = make_strategy("multi_worker_mirrored", worker_timeout=60)
    for name in names:
        digests = []

        check = loop.check_weights

        def digest(strategy, model, step, writer, check=check, digests=digests):
            weights = [keras.ops.convert_to_numpy(v).tobytes() for v in model.variables]
            digests.append([step, zlib.crc32(b"".join(weights))])
            check(strategy, model, step, writer)

        with (
            mock.patch.object(loop, "check_weights", digest),
            mock.patch.object(loop.logging, "warning") as warn,
        ):
            result = globals()[name](strategy, index, data, folder)
        warnings = [call.args[0] % call.args[1:] for call in warn.call_args_list]
        results = {"result": result, "digests": digests, "warnings": warnings}
        (folder / f"{name}-{index}.json").write_text(json.dumps(results))
    all_sum(strategy)(np.zeros([1]))  # No worker leaves before all others have arrived.


def program(path, *flags):
    """Runs a program."""
    sys.argv = [path, *flags]
    runpy.run_path(path, run_name="__main__")


def signalled(signal_name, worker, step, *arguments):
    """Runs a program; a worker gets a signal after a step, or while it builds its model (step 0).

    The other workers are then in the middle of the next step: they wait for its gradients.
    """
    moment = (RunLog, "add", int(step)) if int(step) else (pretraining_run, "BertPretrainer", 1)
    send = at_call(*moment, signals(getattr(signal, signal_name)))
    with send if _index() == int(worker) else contextlib.nullcontext():
        program(*arguments)


def first_alone(*arguments):
    """Runs a program as worker 0; the other workers do not start it."""
    if _index() == 0:
        program(*arguments)


def _index():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
