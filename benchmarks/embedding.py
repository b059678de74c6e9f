"""Compares the training of sentence embeddings on STS-B with sentence-transformers.

    .venv/bin/python benchmarks/embedding.py [--seeds=0,1,2] [--work_dir=/tmp/embedding]

All contenders start from all-MiniLM-L6-v2 and train on the 5,749 scored pairs of STS-B with the
CoSENT loss for `--epochs` epochs, with the settings in whole_runs.py and dropout 0.1. keras_bert
runs run_embedding.py (batches by length, XLA), and sentence-transformers' model and loss train in a
plain torch loop, both in float32 and in bfloat16 (autocast in torch). The score is Spearman's
correlation of cosine and score on the 1,500 pairs of the development set, after the last epoch,
computed in float32 for sentence-transformers.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from absl import app, flags
from whole_runs import LENGTH, do_runs, mean_and_spread, run_ours, run_torch, train_torch
from workers import MODEL, ROOT

sys.path.insert(0, str(ROOT))
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each contender")
flags.DEFINE_integer("epochs", 3, "passes over the training pairs", lower_bound=1)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data/glue/STS-B"), "STS-B's folder")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_embedding", "folder of the runs and runs.jsonl")
flags.DEFINE_string("worker", None, "internal: SEED,PRECISION of a run of the peer")
FLAGS = flags.FLAGS

OURS = {"keras_bert float32": "float32", "keras_bert bfloat16": "bfloat16"}
PEERS = {"torch float32": "float32", "torch bfloat16": "bfloat16"}


def run(job: Mapping) -> dict:
    """Trains with a job's contender and seed; returns the score and the speed."""
    if job["contender"] in PEERS:
        work = f"{job['seed']},{PEERS[job['contender']]}"
        return run_torch(__file__, worker=work, data_dir=FLAGS.data_dir, epochs=FLAGS.epochs)
    precision = OURS[job["contender"]]
    output_dir = Path(FLAGS.work_dir) / f"ours-{precision}-{job['seed']}"
    columns = {"text_a_column": "sentence1", "text_b_column": "sentence2", "score_column": "score"}
    figures = run_ours(
        "run_embedding.py",
        output_dir,
        job["seed"],
        train_file=Path(FLAGS.data_dir) / "train.tsv",
        eval_file=Path(FLAGS.data_dir) / "dev.tsv",
        loss="cosent",
        score_range="0,5",
        num_train_epochs=FLAGS.epochs,
        mixed_precision=precision,
        **columns,
    )
    rows = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    scored = [row for row in rows if "eval_spearman" in row][-1]
    return {"spearman": scored["eval_spearman"], **figures}


def work(seed: int, precision: str) -> dict:
    """Trains with sentence-transformers' model and loss; returns the score and the speed."""
    import scipy.stats
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    from keras_bert.tasks.classification.tables import read_rows

    def pairs(name: str) -> list[tuple[str, str, float]]:
        rows = read_rows(Path(FLAGS.data_dir) / name, ["sentence1", "sentence2", "score"])
        return [(first, second, float(score)) for first, second, score in (r.cells for r in rows)]

    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedder = SentenceTransformer(str(MODEL), device="cpu")
            self.embedder.max_seq_length = LENGTH
            self.loss = losses.CoSENTLoss(self.embedder, scale=20.0)

        def forward(self, first: Any, second: Any, scores: Any) -> SimpleNamespace:
            return SimpleNamespace(loss=self.loss([first, second], scores))

    torch.manual_seed(seed)
    model = Trained()

    def collate(batch: list[tuple]) -> dict:
        first, second, scores = zip(*batch, strict=True)
        tokenize = model.embedder.tokenize
        return {
            "first": tokenize(list(first)),
            "second": tokenize(list(second)),
            "scores": torch.tensor(scores),
        }

    rate = train_torch(
        model, pairs("train.tsv"), collate, FLAGS.epochs, bfloat16=precision == "bfloat16"
    )
    model.eval()
    first, second, scores = zip(*pairs("dev.tsv"), strict=True)
    a, b = (
        model.embedder.encode(list(texts), normalize_embeddings=True) for texts in (first, second)
    )
    spearman = scipy.stats.spearmanr((a * b).sum(axis=1), scores).statistic
    return {"spearman": float(spearman), "examples_per_second": rate}


def report(runs: list[dict]) -> None:
    """Prints the scores and speeds of the contenders."""
    names = " | ".join(f"{contender} / it" for contender in OURS)
    print(f"\n| | Spearman x 100 | each seed | examples/s | {names} |")
    print("| --- | --- | --- | --- | --- | --- |")
    of = {
        contender: [run for run in runs if run["contender"] == contender]
        for contender in (*OURS, *PEERS)
    }
    rates = {
        contender: np.mean([run["examples_per_second"] for run in own])
        for contender, own in of.items()
    }
    for contender, own in of.items():
        scores = 100 * np.array([run["spearman"] for run in own])
        each = ", ".join(f"{score:.2f}" for score in scores)
        ratios = " | ".join(f"{rates[ours] / rates[contender]:.2f}" for ours in OURS)
        print(
            f"| {contender} | {mean_and_spread(scores)} | {each} | {rates[contender]:.1f} | "
            f"{ratios} |"
        )


def main(_: list[str]) -> None:
    """Does the missing runs in turn, and prints the table; or works for another process."""
    if FLAGS.worker:
        seed, precision = FLAGS.worker.split(",")
        print(json.dumps(work(int(seed), precision)))
        return
    names = [*OURS, *PEERS]
    jobs = [
        {"contender": name, "seed": int(seed), "epochs": FLAGS.epochs}
        for place, seed in enumerate(FLAGS.seeds)
        for name in names[:: -1 if place % 2 else 1]
    ]
    report(do_runs(FLAGS.work_dir, jobs, run))


if __name__ == "__main__":
    app.run(main)
