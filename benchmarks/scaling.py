"""Compares two workers with one process on the same cores, and times the parts of a step.

    .venv/bin/python benchmarks/scaling.py [--bert_config=medium] [--train_batch_sizes=256,32]

keras_bert's training step runs on random rows of length 128, with dropout 0.1, in float32: in one
process on both cores, and in two workers on one core each (multi_worker_mirrored over the loopback
interface), with the same global batch size and micro-batches of the same size.

Times are recorded before and after each operation in which the workers exchange values, so that the
parts add up to the step:

- input: from the call of the step until its batch is available;
- sum of counts: all-reduce of the numbers of labels, tokens and examples; the forward pass may
  begin before it ends, so that this is an upper bound;
- forward and backward: the arithmetic, which is divided between the workers;
- waiting: from the time when a worker has its gradient until the slowest worker has its own;
- all-reduce: from the slowest worker's gradient until the sum is available (with one micro-batch
  per step, also the arithmetic);
- update: norm, clipping and AdamW; each worker does all of it.

All except the arithmetic and the update is overhead of the framework.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from absl import app, flags
from training_contenders import example_batch, read_config
from workers import ROOT, Worker, table

# Recorded times of a step, in order, and the parts of which all workers' mean is taken.
MOMENTS = ("called", "batch", "counted", "computed", "summed", "returned")
OVERHEAD = ("input", "sum of counts", "waiting", "all-reduce")
TARGET = 10.0  # Percent of the step.

flags.DEFINE_string("bert_config", "medium", "bundled config")
flags.DEFINE_list("train_batch_sizes", ["256", "32"], "examples per step, over all workers")
flags.DEFINE_integer("micro_batch_size", 8, "examples per device and micro-batch")
flags.DEFINE_integer("rounds", 3, "rounds of each configuration", lower_bound=1)
flags.DEFINE_integer("steps", 2, "steps per round", lower_bound=1)
flags.DEFINE_string("worker", None, "internal: cores, global batch size, and TF_CONFIG")
FLAGS = flags.FLAGS


@contextlib.contextmanager
def recording(num_counts: int) -> Iterator[dict[str, Any]]:
    """Records the times of the collectives in a step that is traced during the block.

    `num_counts` is the number of values in the "sum of counts". Yields {moment: variable} for the
    inner MOMENTS; the variables have the times of the last step in seconds since 1970.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context().__class__
    context = next(each for each in context.__mro__ if "all_reduce" in vars(each))
    all_reduce = context.all_reduce
    moments = {name: tf.Variable(0.0, dtype=tf.float64) for name in MOMENTS[1:5]}

    def note(moment: str, value: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(value)):
            now = moments[moment].assign(tf.timestamp())
        with tf.control_dependencies([now]):
            return tf.nest.map_structure(tf.identity, value)

    @tf.autograph.experimental.do_not_convert
    def noted(self: Any, op: Any, value: Any, options: Any = None) -> Any:
        if isinstance(value, list):
            begin, end = "computed", "summed"
        elif value.shape == [num_counts]:
            begin, end = "batch", "counted"
        else:  # Sums of losses, computed just before the gradients.
            return all_reduce(self, op, value, options)
        return note(end, all_reduce(self, op, note(begin, value), options))

    context.all_reduce = noted
    try:
        yield moments
    finally:
        context.all_reduce = all_reduce


def work(cores: list[int], batch_size: int, cluster: dict) -> None:
    """Runs a round for each line on stdin; prints the moments of its steps as a line of JSON."""
    os.sched_setaffinity(0, cores)  # Before TensorFlow counts the cores.
    if cluster:  # A worker cannot start TensorFlow's cluster before the other one exists.
        os.environ["TF_CONFIG"] = json.dumps(cluster)
        print("{}", flush=True)
        sys.stdin.readline()
    sys.path.insert(0, str(ROOT))
    from keras_bert.training.strategy import distribute, make_strategy

    strategy = make_strategy("multi_worker_mirrored" if cluster else "default")
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import PretrainingObjective
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps

    with strategy.scope():
        model = BertPretrainer(BertConfig.from_dict(read_config(FLAGS.bert_config)))
        optimizer = AdamWeightDecay(1e-4)
        optimizer.build(model.trainable_variables)
    task, rows = PretrainingObjective(), batch_size // (2 if cluster else 1)
    dataset = tf.data.Dataset.from_tensors(example_batch(rows, 128, 20)).repeat()
    batches = iter(distribute(strategy, dataset, endless=True))
    settings = TrainingSettings(
        1, batch_size, gradient_accumulation_steps=max(1, rows // FLAGS.micro_batch_size)
    )
    with recording(len(task.metrics) + 2) as moments:
        train_steps = make_train_steps(strategy, TrainState(model, optimizer, task), settings)

        def step() -> dict[str, float]:
            called = time.time()
            train_steps(batches, tf.constant(1)).numpy()
            times = {name: float(moment.numpy()) for name, moment in moments.items()}
            return {"called": called, **times, "returned": time.time()}

        step()
        step()
        print("{}", flush=True)
        for _ in sys.stdin:
            print(json.dumps({"steps": [step() for _ in range(FLAGS.steps)]}), flush=True)


def parts_of(workers: tuple[dict[str, float], ...]) -> dict[str, float]:
    """Splits one step into its parts, given {moment: time in seconds} of each worker.

    Returns {part: seconds}, the means over the workers.
    """
    slowest = max(moments["computed"] for moments in workers)
    return {
        "input": mean(at["batch"] - at["called"] for at in workers),
        "sum of counts": mean(at["counted"] - at["batch"] for at in workers),
        "forward and backward": mean(at["computed"] - at["counted"] for at in workers),
        "waiting": mean(slowest - at["computed"] for at in workers),
        "all-reduce": mean(at["summed"] - slowest for at in workers),
        "update": mean(at["returned"] - at["summed"] for at in workers),
    }


def start(count: int, batch_size: int) -> list[Worker]:
    """Starts `count` processes: one on all cores, or two workers on one core each."""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as probes:
        ports = [probes.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    names = ("bert_config", "micro_batch_size", "steps")
    settings = [f"--{name}={FLAGS[name].value}" for name in names]
    python, jobs = Path(sys.executable), []
    for index in range(count):
        task = {"type": "worker", "index": index}
        cluster = {"cluster": {"worker": addresses}, "task": task} if count > 1 else {}
        process_cores = cores if count == 1 else [cores[index % len(cores)]]
        jobs.append(json.dumps([process_cores, batch_size, cluster]))
    return [Worker(__file__, job, python, *settings) for job in jobs]


def ask(workers: list[Worker]) -> list[dict]:
    """Sends a line to all workers, and returns their answers."""
    for worker in workers:
        worker.send()
    return [worker.answer() for worker in workers]


def report(batch_size: int, steps: dict[int, list[dict[str, float]]]) -> None:
    """Prints the table of a batch size; `steps` is {number of workers: [{part: seconds}]}."""
    print(f"\n{FLAGS.bert_config}, length 128, {batch_size} examples a step, float32\n")
    totals = {count: [sum(parts.values()) for parts in steps[count]] for count in steps}
    rows = []
    for part in [*steps[1][0], "step"]:
        row = [part]
        for count, splits in steps.items():
            values = totals[count] if part == "step" else [split[part] for split in splits]
            shares = [100 * v / total for v, total in zip(values, totals[count], strict=True)]
            row.append(f"{1000 * median(values):.1f} ms, {median(shares):.2f} %")
        rows.append(row)
    rates = [f"{batch_size / median(totals[count]):.2f}" for count in steps]
    table(["", "one process", "two workers"], [*rows, ["examples/s", *rates]])
    pairs = zip(steps[2], totals[2], strict=True)
    share = median(100 * sum(split[part] for part in OVERHEAD) / total for split, total in pairs)
    state = "reached" if share < TARGET else "missed"
    print(f"\noverhead of two workers: {share:.2f} %; target: below {TARGET:.0f} %: {state}")


def main(_) -> None:
    """Runs one process and two workers in turn, and prints a table for each batch size."""
    if FLAGS.worker:
        return work(*json.loads(FLAGS.worker))
    for batch_size in map(int, FLAGS.train_batch_sizes):
        groups = {count: start(count, batch_size) for count in (1, 2)}
        ask(groups[2])  # Until both are warm.
        steps: dict[int, list[dict[str, float]]] = {count: [] for count in groups}
        for _ in range(FLAGS.rounds):
            for count, workers in groups.items():
                turns = [answer["steps"] for answer in ask(workers)]
                steps[count] += map(parts_of, zip(*turns, strict=True))
        for workers in groups.values():
            for worker in workers:
                worker.close()
        report(batch_size, steps)
    return None


if __name__ == "__main__":
    app.run(main)
