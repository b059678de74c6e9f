"""Compares the speed of fine-tuning in keras_bert and in transformers + torch.

    .venv/bin/python benchmarks/fine_tuning_step.py [--tasks=MRPC,...] [--contenders=...]

The model has MiniLM's sizes (6 layers, hidden size 384) and classifies two classes. Training uses
16 examples per step, dropout 0.1, gradients clipped to norm 1, and AdamW. The examples have random
tokens and the lengths of 1,600 training examples of a task. keras_bert uses its own batches (sorted
by length, with the default `--length_pool`) and training step. The torch contender is a plain loop
over shuffled examples that pads each batch to its longest example.

The column "first s" is the time until the end of the first epoch in seconds. keras_bert compiles a
program for each bucket of lengths during this epoch.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from workers import MODEL, ROOT, answer, start_worker

B, V, EXAMPLES, STEPS = 16, 30522, 1600, 10  # batch, vocabulary, examples, steps per turn
CONFIG = {
    "vocab_size": V,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
CONTENDERS = {
    "ours_bfloat16": "ours",
    "ours_float32": "ours",
    "ours_bfloat16_no-xla": "ours, --nojit_compile",
    "torch_float32": "transformers + torch",
    "torch_bfloat16": "transformers + torch, autocast",
}
BASELINE = "torch_float32"
NER = "WNUT-17"
# Defaults of --length_pool: POOLS in run_ner.py, POOL in run_classifier.py.
POOLS = {NER: 4}
POOL = 50

flags.DEFINE_integer("rounds", 12, "timed rounds of each contender", lower_bound=1)
flags.DEFINE_list(
    "contenders", ["ours_float32", BASELINE], f"contenders, from {', '.join(CONTENDERS)}"
)
flags.DEFINE_list("tasks", ["MRPC", "RTE", "CoLA", "STS-B", "SST-2", NER], f"GLUE tasks, or {NER}")
flags.DEFINE_string(
    "data_dir", str(ROOT.parent / "shared/data"), "folder that contains glue/ and ner/"
)
flags.DEFINE_string("worker", None, "internal: contender, length pool, file of the lengths")
FLAGS = flags.FLAGS

# Runs a number of training steps and returns a loss of the last one.
Steps = Callable[[int], float]


def lengths_of(task: str) -> np.ndarray:
    """Draws the lengths of EXAMPLES training examples of a task, in tokens, at most 128 each."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.checkpoints.open_checkpoint import open_checkpoint
    from keras_bert.tasks.classification.glue import find_task, read_glue
    from keras_bert.tasks.ner.data import read_conll
    from keras_bert.text.tokenizer import BertTokenizer

    start = open_checkpoint(MODEL)
    tokenizer = BertTokenizer(start.vocab, start.do_lower_case)
    if task == NER:
        sentences = read_conll(Path(FLAGS.data_dir) / "ner/wnut17/wnut17train.conll")
        sides = [[" ".join(sentence.words) for sentence in sentences]]
    else:
        folder = Path(FLAGS.data_dir) / "glue" / task
        texts = read_glue(find_task(task), folder, train=True, dev=False, test=False).train
        sides = [texts.first] if texts.second is None else [texts.first, texts.second]
    side_lengths = [
        tokenizer.tokenize(tf.constant(side)).row_lengths().numpy() + 1 for side in sides
    ]
    lengths = np.minimum(1 + sum(side_lengths), 128)
    return np.random.default_rng(0).choice(lengths, EXAMPLES)


def examples(lengths: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Creates an example of random tokens for each length: (token ids [length], label 0 or 1)."""
    random = np.random.default_rng(0)
    return [(random.integers(1000, V, n), int(random.integers(2))) for n in lengths]


def make_ours(
    rows: list[tuple[np.ndarray, int]], dtype: str, jit_compile: bool, length_pool: int
) -> Steps:
    """Creates a function that runs keras_bert's training steps on its own batches of the rows."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertClassifier
    from keras_bert.tasks.classification.metrics import classification_objective
    from keras_bert.tasks.fine_tuning.batches import BatchSettings, training_batches
    from keras_bert.tasks.fine_tuning.examples import Examples
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps

    policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
    model = BertClassifier(BertConfig.from_dict(CONFIG), 2, dtype=policy)
    optimizer = AdamWeightDecay(5e-5, bias_correction=True)
    optimizer.build(model.trainable_variables)

    ids = np.concatenate([ids for ids, _ in rows]).astype(np.int32)
    starts = np.cumsum([0, *(len(ids) for ids, _ in rows)])
    labels = {"labels": np.array([label for _, label in rows], np.int32)}
    data = Examples(ids, np.zeros_like(ids), starts, labels)
    task = classification_objective("single_label")
    strategy = tf.distribute.get_strategy()
    settings = TrainingSettings(1, B, jit_compile=jit_compile)
    train_steps = make_train_steps(strategy, TrainState(model, optimizer, task), settings)
    batching = BatchSettings(B, max_seq_length=128, length_pool=length_pool)
    batches = iter(training_batches(data, batching))
    return lambda count: float(train_steps(batches, tf.constant(count)).numpy().sums[-1, 0])


def make_torch(rows: list[tuple[np.ndarray, int]], dtype: str) -> Steps:
    """Creates a function that runs a plain torch loop, in which each batch has its own length."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**CONFIG, num_labels=2)
    model = transformers.BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)

    def batches():
        random = np.random.default_rng(0)
        while True:
            order = random.permutation(EXAMPLES).reshape(-1, B)
            for chosen in order:
                length = max(len(rows[i][0]) for i in chosen)
                ids, mask = torch.zeros(B, length, dtype=torch.long), torch.zeros(B, length)
                for row, i in enumerate(chosen):
                    ids[row, : len(rows[i][0])] = torch.from_numpy(rows[i][0])
                    mask[row, : len(rows[i][0])] = 1
                yield ids, mask, torch.tensor([rows[i][1] for i in chosen])

    stream = batches()

    def steps(count: int) -> float:
        for _ in range(count):
            ids, mask, labels = next(stream)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return float(loss)

    return steps


def work(contender: str, length_pool: str, lengths_file: str) -> None:
    """Runs STEPS steps for each line on stdin; prints their seconds and loss as a line of JSON."""
    library, dtype, *rest = contender.split("_")
    rows = examples(np.load(lengths_file))
    start = time.perf_counter()
    if library == "torch":
        run = make_torch(rows, dtype)
    else:
        run = make_ours(rows, dtype, not rest, int(length_pool))
    run(EXAMPLES // B)  # One epoch contains every length.
    print(json.dumps({"first": time.perf_counter() - start}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = run(STEPS)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": wall, "cpu": cpu, "loss": loss}), flush=True)


def race(task: str) -> None:
    """Warms up the contenders, runs their turns and prints a task's rows of the table."""
    workers, ready = {}, {}
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        lengths = lengths_of(task)
        np.save(file, lengths)
        file.flush()
        for name in FLAGS.contenders:
            environment = ".peers" if name.startswith("torch") else ".venv"
            work = f"{name},{POOLS.get(task, POOL)},{file.name}"
            workers[name] = start_worker(environment, __file__, work)
            ready[name] = answer(workers[name])
            first = ready[name]["first"]
            print(f"{task}: {name} warmed up in {first:.0f} s", file=sys.stderr, flush=True)
    times: dict[str, list[dict]] = {name: [] for name in workers}
    for _ in range(FLAGS.rounds):
        for name, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            times[name].append(answer(worker))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    for name, rounds in times.items():
        rate = median(B * STEPS / t["wall"] for t in rounds)
        cells = [task, f"{lengths.mean():.0f}", name, f"{ready[name]['first']:.0f}", f"{rate:.1f}"]
        if BASELINE in times:
            pairs = list(zip(rounds, times[BASELINE], strict=True))
            wall, cpu = (median(b[k] / a[k] for a, b in pairs) for k in ("wall", "cpu"))
            cells += [f"{wall:.2f}", f"{cpu:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main(_) -> None:
    """Compares the contenders on each task."""
    if FLAGS.worker:
        return work(*FLAGS.worker.split(","))
    unknown = set(FLAGS.contenders) - set(CONTENDERS)
    if unknown:
        sys.exit(
            f"--contenders: {sorted(unknown)} unknown; expected some of {', '.join(CONTENDERS)}"
        )
    columns = ("task", "tokens", "contender", "first s", "examples/s")
    columns += (f"x {BASELINE}", "by CPU time") if BASELINE in FLAGS.contenders else ()
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for task in FLAGS.tasks:
        race(task)
    return None


if __name__ == "__main__":
    app.run(main)
