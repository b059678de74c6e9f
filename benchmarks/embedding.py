"""Compares Spearman's correlation and speed on STS-B: keras_bert, and sentence-transformers.

    .venv/bin/python benchmarks/embedding.py [--rounds=3] [--epochs=4] [--work_dir=/tmp/embedding]

Both contenders start from MiniLM (6 layers, hidden size 384), and train with the CoSENT loss, mean
pooling, dropout 0.1 and the settings in whole_runs.py. keras_bert runs run_embedding.py with its
defaults (batches by length, the fastest compute type of the machine, XLA). The other contender
trains a model of sentence-transformers with its loss in the torch loop, and computes in float32.
Both are scored on the development set after each epoch; the table has the best epoch's score.
Each round is one seed. `--steps=20 --rounds=1` only checks that the benchmark runs.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import app, flags
from whole_runs import (
    CONTENDERS,
    LENGTH,
    do_runs,
    in_turn,
    mean_and_spread,
    run_ours,
    run_torch,
    train_torch,
)
from workers import MODEL, ROOT

sys.path.insert(0, str(ROOT))
BATCH, LARGEST_SCORE = 16, 5.0

flags.DEFINE_integer("rounds", 3, "number of seeds, one run of each contender per seed", 1)
flags.DEFINE_integer("epochs", 4, "passes over the training pairs", 1)
flags.DEFINE_integer("steps", 0, "training steps instead of whole epochs; 0 for --epochs", 0)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data/glue/STS-B"), "folder of STS-B")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_embedding", "folder of the runs and runs.jsonl")
flags.DEFINE_integer("worker", None, "internal: the seed of a run of the peer")
FLAGS = flags.FLAGS


def read_pairs(name: str) -> list[dict]:
    """Reads a file of STS-B; with --steps, only as many pairs as the steps take."""
    lines = (Path(FLAGS.data_dir) / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    places = [header.index(column) for column in ("sentence1", "sentence2", "score")]
    pairs = []
    for line in lines[1:]:
        first, second, score = (line.split("\t")[place] for place in places)
        pairs.append({"text_a": first, "text_b": second, "score": float(score)})
    return pairs[: FLAGS.steps * BATCH or None]


def run(job: Mapping) -> dict:
    """Trains with a job's contender and seed; returns "spearman" in points, and the speed."""
    seed, epochs = job["seed"], 1 if FLAGS.steps else FLAGS.epochs
    if job["contender"] == "torch":
        data_dir, steps = FLAGS.data_dir, FLAGS.steps
        return run_torch(__file__, worker=seed, data_dir=data_dir, steps=steps, epochs=epochs)
    files = {}
    for name in ("train", "dev"):
        files[name] = Path(FLAGS.work_dir) / f"{name}-{FLAGS.steps}.jsonl"
        rows = "".join(json.dumps(pair) + "\n" for pair in read_pairs(name))
        files[name].write_text(rows, encoding="utf-8")
    output_dir = Path(FLAGS.work_dir) / "ours" / f"{epochs}-{FLAGS.steps}-{seed}"
    figures = run_ours(
        "run_embedding.py",
        output_dir,
        seed,
        train_file=files["train"],
        eval_file=files["dev"],
        loss="cosent",
        score_range=f"0,{LARGEST_SCORE:g}",
        num_train_epochs=epochs,
        log_steps=5,
    )
    results = json.loads((output_dir / "results.json").read_text())
    return {"spearman": 100 * results["spearman"], **figures}


def work(seed: int) -> dict:
    """Trains a model of sentence-transformers; returns the best epoch's score, and the speed."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    from keras_bert.tasks.classification.metrics import spearman

    class Trained(torch.nn.Module):
        """Returns the loss of a batch, as the models of transformers do."""

        def __init__(self, model: SentenceTransformer):
            super().__init__()
            self.model, self.loss_of = model, CoSENTLoss(model)

        def forward(self, features: list, labels: torch.Tensor) -> "Trained":
            self.loss = self.loss_of(features, labels)
            return self

    torch.manual_seed(seed)
    model = SentenceTransformer(str(MODEL), device="cpu")
    model.max_seq_length = LENGTH
    dev, best = read_pairs("dev"), [-100.0]

    def collate(pairs: list[dict]) -> dict:
        sides = [[pair[side] for pair in pairs] for side in ("text_a", "text_b")]
        scores = torch.tensor([pair["score"] / LARGEST_SCORE for pair in pairs])
        return {"features": [model.preprocess(side) for side in sides], "labels": scores}

    def keep_best() -> None:
        vectors = [
            model.encode([pair[side] for pair in dev], normalize_embeddings=True)
            for side in ("text_a", "text_b")
        ]
        scores = np.array([pair["score"] for pair in dev])
        best.append(100 * spearman(np.sum(vectors[0] * vectors[1], axis=1), scores))

    rate = train_torch(Trained(model), read_pairs("train"), collate, FLAGS.epochs, keep_best)
    return {"spearman": max(best), "examples_per_second": rate}


def report(runs: list[dict]) -> None:
    """Prints the scores with their spread, and the speeds with their ratio."""
    print(f"\nSTS-B, {FLAGS.rounds} seeds, mean ± std")
    print("| | Spearman | examples/s |\n| --- | --- | --- |")
    rates = {}
    for contender in CONTENDERS:
        own = [run for run in runs if run["contender"] == contender]
        scores, rates[contender] = (
            np.array([run[key] for run in own]) for key in ("spearman", "examples_per_second")
        )
        print(f"| {contender} | {mean_and_spread(scores)} | {mean_and_spread(rates[contender])} |")
    ratios = rates["ours"] / rates["torch"]
    print(f"speed ratio: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def main(_: list[str]) -> None:
    """Runs all contenders in turn, or one run of the peer as a worker."""
    if FLAGS.worker is not None:
        print(json.dumps(work(FLAGS.worker)))
        return
    jobs = [
        {"contender": contender, "seed": seed, "epochs": FLAGS.epochs, "steps": FLAGS.steps}
        for seed, contenders in in_turn(range(FLAGS.rounds))
        for contender in contenders
    ]
    report(do_runs(FLAGS.work_dir, jobs, run))


if __name__ == "__main__":
    app.run(main)
