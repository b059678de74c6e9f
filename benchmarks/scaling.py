"""Compares two workers with one process on the same cores, and times the parts of a step.

    .venv/bin/python benchmarks/scaling.py [--bert_config=medium] [--train_batch_sizes=256,32]

keras_bert's own training loop runs on random records of length 128, with dropout 0.1, in float32:
in one process on both cores, and in two workers on one core each (multi_worker_mirrored over the
loopback interface), with the same global batch size and micro-batches of the same size.

step_parts.py lists the parts. All except the arithmetic and the update are overhead of the
framework.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from absl import app, flags
from step_parts import parts_of, recording
from workers import ROOT, answer

VOCAB = 30522
# The parts that are overhead of the framework.
OWN = ("input", "sum of counts", "waiting", "all-reduce", "host loop")
TARGET = 10.0  # Percent of the step.

flags.DEFINE_string("bert_config", "medium", "bundled config")
flags.DEFINE_list("train_batch_sizes", ["256", "32"], "examples per step, over all workers")
flags.DEFINE_integer("micro_batch_size", 8, "examples per device and micro-batch")
flags.DEFINE_integer("rounds", 3, "rounds of each configuration", lower_bound=1)
flags.DEFINE_integer("steps", 2, "steps per round", lower_bound=2)
flags.DEFINE_string("folder", "", "internal: folder of the records and the runs")
flags.DEFINE_bool("worker", False, "internal: run as a worker")
FLAGS = flags.FLAGS


def write_records(folder: Path) -> None:
    """Writes two files of random records."""
    import tensorflow as tf

    folder.mkdir()

    random = np.random.default_rng(0)

    def ints(values: np.ndarray) -> "tf.train.Feature":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))

    for index in range(2):
        with tf.io.TFRecordWriter(str(folder / f"part-{index}.tfrecord")) as writer:
            for _ in range(500):
                features = {
                    "input_ids": ints(random.integers(5, VOCAB, 128)),
                    "input_mask": ints(np.ones([128], int)),
                    "segment_ids": ints(np.arange(128) // 64),
                    "masked_lm_positions": ints(np.arange(1, 121, 6)),
                    "masked_lm_ids": ints(random.integers(5, VOCAB, 20)),
                    "masked_lm_weights": tf.train.Feature(
                        float_list=tf.train.FloatList(value=[1.0] * 20)
                    ),
                    "next_sentence_labels": ints(random.integers(0, 2, 1)),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def work() -> None:
    """Trains with each batch size as one worker; each turn starts with a line on stdin."""
    from keras_bert.training.strategy import make_strategy

    kind = "multi_worker_mirrored" if "TF_CONFIG" in os.environ else "default"
    strategy = make_strategy(kind)
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.batches import RecordSource, training_batches
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.pretraining.records import find_records
    from keras_bert.training import loop
    from keras_bert.training.cluster import num_workers, share_of
    from keras_bert.training.objective import TrainingRun, TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay

    with strategy.scope():
        model = BertPretrainer(BertConfig.from_json(FLAGS.bert_config), dtype="float32")
        optimizer = AdamWeightDecay(1e-4)
        optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    folder, workers = Path(FLAGS.folder), num_workers(strategy)
    data = find_records(str(folder / "records"))
    source = RecordSource(data, VOCAB, share=share_of(strategy))
    weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)

    def noted_train_steps(make: Callable[..., Any], turn: list[dict[str, float]]) -> Any:
        """Wraps `make_train_steps` so that each step appends {moment: time} to `turn`."""

        def make_noted(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            train_steps = make(*args, **kwargs)
            warm = []

            def call(iterator: Any, count: Any) -> Any:
                if turn:
                    turn[-1]["again"] = time.time()
                if warm and len(turn) in (0, FLAGS.steps):
                    # The first line reports that this worker is warm, the others report a turn.
                    print(json.dumps({"turn": turn, "weights": weights}), flush=True)
                    turn.clear()
                    sys.stdin.readline()
                called = time.time()
                figures = train_steps(iterator, count).numpy()
                if warm:
                    times = {name: moment.numpy() for name, moment in moments.items()}
                    turn.append({"called": called, **times, "returned": time.time()})
                warm.append(True)
                return figures

            return call

        return make_noted

    with recording(len(task.metrics) + 2) as moments:
        make = loop.make_train_steps
        for size in map(int, FLAGS.train_batch_sizes):
            sys.stdin.readline()
            turn: list[dict[str, float]] = []
            loop.make_train_steps = noted_train_steps(make, turn)
            steps = 1 + FLAGS.rounds * FLAGS.steps
            settings = TrainingSettings(
                num_train_steps=steps,
                train_batch_size=size,
                gradient_accumulation_steps=max(1, size // workers // FLAGS.micro_batch_size),
                log_steps=1,
                save_checkpoints_steps=steps,
                steps_per_loop=1,
            )

            def batches_from(step: int, size: int = size) -> tf.data.Dataset:
                return training_batches(source, size, 0, step)

            run = TrainingRun(settings, strategy, folder / f"{workers}-{size}")
            loop.train(run, TrainState(model, optimizer, task), batches_from)
            ended = time.time() - turn[-1]["returned"]
            print(json.dumps({"turn": turn, "ended": ended}), flush=True)


def start(stack: contextlib.ExitStack, count: int, folder: str) -> list[Popen]:
    """Starts `count` processes: one on all cores, or two workers on one core each.

    The processes end when `stack` is closed. `folder` contains the records and the runs.
    """
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as probes:
        ports = [probes.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    names = ("bert_config", "train_batch_sizes", "micro_batch_size", "rounds", "steps")
    settings = [FLAGS[name].serialize() for name in names]
    processes = []
    for index in range(count):
        own = cores if count == 1 else [cores[index % len(cores)]]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = os.environ | ({"TF_CONFIG": json.dumps(config)} if count > 1 else {})
        command = ["taskset", "-c", ",".join(map(str, own)), ROOT / ".venv/bin/python", __file__]
        command += ["--worker", f"--folder={folder}", *settings]
        process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment)
        stack.enter_context(process)
        stack.callback(process.kill)
        processes.append(process)
    return processes


def ask(processes: list[Popen]) -> None:
    """Sends a line to all processes, which starts their next turn."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def report(size: int, weights: int, steps: dict[int, list], ended: float) -> None:
    """Prints the table of one batch size.

    `weights` is the number of weights. `steps` is {number of workers: [{part: seconds} of a step]}.
    `ended` is the number of seconds of the two workers from the last step to the end of the loop.
    """
    one, pair = ([sum(parts.values()) for parts in steps[count]] for count in (1, 2))
    print(
        f"\n{FLAGS.bert_config}, length 128, {size} examples a step, float32; "
        f"{weights / 1e6:.1f} M weights, {4 * weights / 1e6:.0f} MB of gradients"
    )
    print(f"{'':22}  one process, both cores  two workers, a core each")
    for part in [*steps[1][0], "step"]:
        line = f"{part:22}"
        for totals, split in ((one, steps[1]), (pair, steps[2])):
            values = totals if part == "step" else [parts[part] for parts in split]
            shares = [100 * value / step for value, step in zip(values, totals, strict=True)]
            line += f"  {1000 * median(values):12.1f} ms {median(shares):6.2f} %"
        print(line)
    own = [
        sum(parts[part] for part in OWN) / step for parts, step in zip(steps[2], pair, strict=True)
    ]
    share = 100 * median(own)
    print(f"examples/s: {size / median(one):.2f} and {size / median(pair):.2f}, ", end="")
    print(f"two workers / one: {median(one) / median(pair):.3f}")
    print(
        f"the framework's own ({', '.join(OWN)}): {share:.2f} % of the pair's step "
        f"({100 * min(own):.2f} to {100 * max(own):.2f}); target: under {TARGET:.0f} %: "
        f"{'reached' if share < TARGET else 'missed'}"
    )
    print(f"from the last step to the end of the run, with its checkpoint: {ended:.1f} s")


def main(_) -> None:
    """Runs one process and two workers in turn, and prints a table for each batch size."""
    sys.path.insert(0, str(ROOT))
    if FLAGS.worker:
        return work()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        write_records(Path(folder) / "records")
        groups = {count: start(stack, count, folder) for count in (1, 2)}
        for size in map(int, FLAGS.train_batch_sizes):
            for processes in groups.values():
                ask(processes)
            warm = [answer(process) for processes in groups.values() for process in processes]
            steps: dict[int, list[dict[str, float]]] = {count: [] for count in groups}
            for _ in range(FLAGS.rounds):
                for count, processes in groups.items():
                    ask(processes)
                    answers = [answer(process) for process in processes]
                    turns = zip(*(each["turn"] for each in answers), strict=True)
                    steps[count] += [parts_of(each) for each in turns if "again" in each[0]]
            report(size, warm[0]["weights"], steps, answers[0]["ended"])
    return None


if __name__ == "__main__":
    app.run(main)
