"""What do several workers cost? Two against one on the same cores, and where the time goes.

    .venv/bin/python benchmarks/scaling.py [--bert_config=small] [--train_batch_size=32]

Pre-training steps of length 128 on random records, dropout 0.1, float32, at one global batch: one
process on both cores, then two workers on one core each (multi_worker_mirrored over the loopback
interface). Both are warm; one process runs while the pair waits, and the other way round. A step is
the median of the rounds; of the pair, the slower worker's. The parts are measured on the pair:

- all-reduce: the same collectives as a step's, of zeros of the gradients' shapes, alone;
- input: the pipeline alone, a batch (in training it runs beside the step);
- host loop: a call of one step less a tenth of a call of ten, and what workers agree on after it.

What is left is the arithmetic. Ideally a pair takes as long as the one process.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE, Popen

import numpy as np
from absl import app, flags
from workers import ROOT, answer

STEPS = 10
VOCAB = 30522

flags.DEFINE_string("bert_config", "small", "bundled config")
flags.DEFINE_integer("train_batch_size", 32, "examples a step, over all workers", lower_bound=2)
flags.DEFINE_integer("rounds", 5, "calls of ten steps of each", lower_bound=1)
flags.DEFINE_string("records", "", "internal: folder of the records")
flags.DEFINE_bool("worker", False, "internal: be a worker")
FLAGS = flags.FLAGS


def write_records(folder: Path) -> None:
    """Writes two files of random records."""
    import tensorflow as tf

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


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def work() -> None:
    """One worker: what is named on stdin, its seconds as a line out."""
    sys.path.insert(0, str(ROOT))
    from keras_bert.training.strategy import make_strategy

    kind = "multi_worker_mirrored" if "TF_CONFIG" in os.environ else "default"
    strategy = make_strategy(kind)
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.optimization.adamw import AdamWeightDecay
    from keras_bert.tasks.pretraining.batches import training_batches
    from keras_bert.tasks.pretraining.records import find_records
    from keras_bert.tasks.pretraining.task import pretraining_task
    from keras_bert.training.cluster import all_sum, distribute, share_of
    from keras_bert.training.step import make_train_steps

    with strategy.scope():
        model = BertPretrainer(BertConfig.from_json(FLAGS.bert_config), dtype="float32")
        optimizer = AdamWeightDecay(1e-4)
        optimizer.build(model.trainable_variables)
    data = find_records(FLAGS.records)

    def pipeline() -> tf.data.Dataset:
        return training_batches(data, FLAGS.train_batch_size, VOCAB, 0, share=share_of(strategy))

    batches, alone = iter(distribute(strategy, pipeline(), endless=True)), iter(pipeline())
    train_steps = make_train_steps(strategy, model, optimizer, pretraining_task())
    agree = all_sum(strategy)

    def steps(count: int) -> None:
        train_steps(batches, tf.constant(count)).numpy()

    @tf.function
    def all_reduce() -> tf.Tensor:
        def of_device() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            gradients = [tf.zeros(v.shape) for v in model.trainable_variables]
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return tf.add_n([gradient[..., :1][0] for gradient in map(_flat, gradients)])

        return strategy.experimental_local_results(strategy.run(of_device))[0]

    def _flat(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [-1])

    units = {
        "step": lambda: steps(STEPS),
        "host loop": lambda: [(steps(1), agree(np.zeros([2]))) for _ in range(STEPS)],
        "input": lambda: [next(alone) for _ in range(STEPS)],
        "all-reduce": lambda: [all_reduce().numpy() for _ in range(STEPS)],
    }
    for unit in units.values():
        unit()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": timed(units[line.strip()]) / STEPS}), flush=True)


def start(count: int, records: str) -> list[Popen]:
    """Starts the one process, or the workers of a pair, each on cores of its own."""
    cores = sorted(os.sched_getaffinity(0))
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    processes = []
    for index in range(count):
        own = cores if count == 1 else [cores[index % len(cores)]]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = os.environ | ({"TF_CONFIG": json.dumps(config)} if count > 1 else {})
        command = [ROOT / ".venv/bin/python", __file__, "--worker", f"--records={records}"]
        command += [f"--{n}={FLAGS[n].value}" for n in ("bert_config", "train_batch_size")]
        processes.append(
            Popen(
                ["taskset", "-c", ",".join(map(str, own)), *command],
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                text=True,
                env=environment,
            )
        )
    return processes


def ask(processes: list[Popen], unit: str) -> float:
    """Lets all do one unit of work; returns the seconds of the slowest."""
    for process in processes:
        process.stdin.write(f"{unit}\n")
        process.stdin.flush()
    return max(answer(process)["seconds"] for process in processes)


def main(_) -> None:
    """Lets one process and a pair take turns, and prints the table."""
    if FLAGS.worker:
        return work()
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder))
        groups = {count: start(count, folder) for count in (1, 2)}
        for processes in groups.values():
            for process in processes:
                answer(process)
        steps = {count: [] for count in groups}
        parts: dict[str, list[float]] = {"all-reduce": [], "host loop": [], "input": []}
        for _ in range(FLAGS.rounds):
            for count, processes in groups.items():
                steps[count].append(ask(processes, "step"))
            for part, values in parts.items():
                values.append(ask(groups[2], part))
    one, pair = (median(values) for values in steps.values())
    parts["host loop"] = [
        max(whole - step, 0.0) for whole, step in zip(parts["host loop"], steps[2], strict=True)
    ]
    print(f"\n{FLAGS.bert_config}, length 128, {FLAGS.train_batch_size} examples a step")
    print(f"one process on both cores: {1000 * one:.0f} ms a step")
    print(f"two workers on a core each: {1000 * pair:.0f} ms a step, {pair / one:.2f} x")
    for part, values in parts.items():
        seconds = median(values)
        print(f"  {part:10} {1000 * seconds:7.1f} ms  {100 * seconds / pair:5.1f} % of the step")
    whole = sum(median(values) for values in parts.values())
    print(f"  together   {1000 * whole:7.1f} ms  {100 * whole / pair:5.1f} %")
    for processes in groups.values():
        for process in processes:
            process.kill()
    return None


if __name__ == "__main__":
    app.run(main)
