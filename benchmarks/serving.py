"""Measures how fast exported classifiers answer, from text to label, compared with other libraries.

    .venv/bin/python benchmarks/serving.py --model_dir=OUT/model [--texts=mrpc] [--rounds=10]

Each contender gets the same fine-tuned MRPC classifier (six layers, hidden size 384;
run_classifier.py on MiniLM) and the same strings, and returns labels:

- `ours_ENGINE_PRECISION`: the signature of the export on an engine, called from Python;
- `torch_PRECISION`: transformers with its fast tokenizer and dynamic padding;
- `onnxruntime_PRECISION` and `openvino_PRECISION`: our `--format=onnx` file in the library's own
  call behind Hugging Face's tokenizers, with dynamic padding;
- `keras_hub`: `predict` of KerasHub's text classifier.

A turn consists of 50 calls with one text or 2 calls with 64 texts. The texts are the pairs of
MRPC's development set, truncated to 128 tokens, or XQuAD's questions and contexts, truncated to
384. Each contender has its default number of threads.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags
from serving_contenders import CONTENDERS, IN_PEERS, export, make
from workers import ROOT, answer, start_worker

SHARED = ROOT.parent / "shared" / "data"
BASELINE = "torch_float32"
LENGTHS = {"mrpc": 128, "xquad": 384}
CALLS = {1: 50, 64: 2}  # Batch size -> calls per turn.
SLOW = {"keras_hub": {1: 3, 64: 1}}  # A call of predict builds a tf.data pipeline.

flags.DEFINE_string(
    "model_dir", "", "model directory of an MRPC classifier, written by run_classifier.py"
)
flags.DEFINE_enum("texts", "mrpc", list(LENGTHS), "texts to classify")
flags.DEFINE_integer("rounds", 10, "rounds of each contender and batch size", lower_bound=1)
flags.DEFINE_list("contenders", list(CONTENDERS), f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_list("batches", ["1", "64"], "batch sizes")
flags.DEFINE_string("worker", None, "internal: contender,texts,folder")
FLAGS = flags.FLAGS


def pairs(texts: str) -> tuple[list[str], list[str], np.ndarray | None]:
    """Reads the first and second texts of all examples, and the labels; None for XQuAD."""
    if texts == "xquad":
        articles = json.loads((SHARED / "squad" / "xquad.en.json").read_text("utf-8"))["data"]
        rows = [
            (answered["question"], paragraph["context"])
            for article in articles
            for paragraph in article["paragraphs"]
            for answered in paragraph["qas"]
        ]
        first, second = zip(*rows, strict=True)
        return list(first), list(second), None
    lines = (SHARED / "glue" / "MRPC" / "dev.tsv").read_text("utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    labels = np.array([int(row[0]) for row in rows])
    return [row[3] for row in rows], [row[4] for row in rows], labels


def work(contender: str, texts: str, folder: Path) -> None:
    """Runs a turn for each line on stdin, a batch size; prints the seconds of each call as JSON."""
    length = LENGTHS[texts]
    classify = make(contender, folder, length)
    first, second, labels = pairs(texts)
    ready = {}
    if labels is not None:
        found = [classify(first[i : i + 64], second[i : i + 64]) for i in range(0, len(first), 64)]
        ready["accuracy"] = 100 * float((np.concatenate(found) == labels).mean())
    for batch in CALLS:  # Warm-up.
        classify(first[:batch], second[:batch])
    print(json.dumps(ready), flush=True)
    place = 0
    for line in sys.stdin:
        batch, seconds = int(line), []
        for _ in range(SLOW.get(contender, CALLS)[batch]):
            place = place % (len(first) - batch)
            start = time.perf_counter()
            classify(first[place : place + batch], second[place : place + batch])
            seconds.append(time.perf_counter() - start)
            place += batch
        print(json.dumps({"seconds": seconds}), flush=True)


def report(times: dict[str, dict[int, list[list[float]]]], ready: dict[str, dict]) -> None:
    """Prints a row for each contender and batch size.

    `times` is {contender: {batch size: [the seconds of each call in a turn]}}; `ready` is
    {contender: {"accuracy": percent}}, without accuracy if the texts have no labels.
    """
    print(
        f"\n{FLAGS.texts}, texts truncated to {LENGTHS[FLAGS.texts]} tokens; {FLAGS.rounds} rounds"
    )
    print(
        f"{os.cpu_count()} processors, {len(os.sched_getaffinity(0))} of them for these processes"
    )
    print("| contender | batch | p50 ms | p99 ms | texts/s | x torch | accuracy |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for batch in map(int, FLAGS.batches):
        for name, rounds in times.items():
            seconds = np.concatenate(rounds[batch])
            totals = [np.mean(turn) for turn in rounds[batch]]
            ratio = ""
            if BASELINE in times:
                theirs = [np.mean(turn) for turn in times[BASELINE][batch]]
                ratio = f"{np.median(np.array(theirs) / totals):.2f}"
            accuracy = ready[name].get("accuracy")
            cells = [
                name,
                str(batch),
                f"{1e3 * np.median(seconds):.1f}",
                f"{1e3 * np.percentile(seconds, 99):.1f}" if len(seconds) >= 100 else "",
            ]
            cells += [f"{batch / np.median(seconds):.0f}", ratio]
            cells += [f"{accuracy:.2f}" if accuracy is not None else ""]
            print(f"| {' | '.join(cells)} |")


def main(_) -> None:
    """Exports the model, warms up the contenders, runs their turns and prints the table."""
    if FLAGS.worker:
        contender, texts, folder = FLAGS.worker.split(",")
        return work(contender, texts, Path(folder))
    unknown = set(FLAGS.contenders) - set(CONTENDERS)
    if unknown or not FLAGS.model_dir:
        sys.exit(f"expected --model_dir=DIR, and --contenders from {', '.join(CONTENDERS)}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model_dir").write_text(str(Path(FLAGS.model_dir).absolute()))
        export(FLAGS.model_dir, Path(folder), LENGTHS[FLAGS.texts])
        workers, ready = {}, {}
        for name in FLAGS.contenders:
            environment = ".peers" if name in IN_PEERS else ".venv"
            workers[name] = start_worker(environment, __file__, f"{name},{FLAGS.texts},{folder}")
            ready[name] = answer(workers[name])
            print(f"{name} is warmed up: {ready[name]}", file=sys.stderr, flush=True)
        times = {name: {int(batch): [] for batch in FLAGS.batches} for name in workers}
        for _ in range(FLAGS.rounds):
            for batch in map(int, FLAGS.batches):
                for name, worker in workers.items():
                    worker.stdin.write(f"{batch}\n")
                    worker.stdin.flush()
                    times[name][batch].append(answer(worker)["seconds"])
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
    return report(times, ready)


if __name__ == "__main__":
    app.run(main)
