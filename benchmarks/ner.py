"""Compares entity F1 and speed on WNUT-17: keras_bert, and a transformers + torch loop.

    .venv/bin/python benchmarks/ner.py [--seeds=0,1,2] [--epochs=3] [--work_dir=/tmp/ner]

Both contenders start from MiniLM (6 layers, hidden size 384) and use the settings in whole_runs.py,
dropout 0.1, float32, and tags on the first token of each word. keras_bert runs run_ner.py with its
defaults (batches by length, XLA). The torch loop follows transformers' token-classification
example. Both are scored with the same scorer, which gives conlleval's scores: on the development
set after each epoch, and on the test set with the weights of the best epoch.
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
FILES = {
    "train": "wnut17train.conll",
    "eval": "emerging.dev.conll",
    "test": "emerging.test.annotated",
}

flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run each")
flags.DEFINE_integer("epochs", 3, "passes over the training sentences", lower_bound=1)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data/ner/wnut17"), "WNUT-17's folder")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ner", "folder of the runs and of runs.jsonl")
flags.DEFINE_integer("worker", None, "internal: the seed of a run of the peer")
FLAGS = flags.FLAGS


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's contender and seed; returns "dev" and "test" F1, and the speed."""
    seed = job["seed"]
    if job["contender"] == "torch":
        return run_torch(__file__, worker=seed, data_dir=FLAGS.data_dir, epochs=FLAGS.epochs)
    output_dir = Path(FLAGS.work_dir) / "ours" / f"{FLAGS.epochs}-{seed}"
    files = {f"{name}_file": Path(FLAGS.data_dir) / file for name, file in FILES.items()}
    figures = run_ours("run_ner.py", output_dir, seed, num_train_epochs=FLAGS.epochs, **files)
    return {
        "dev": json.loads((output_dir / "results.json").read_text())["f1"],
        "test": json.loads((output_dir / "test_results.json").read_text())["f1"],
        **figures,
    }


def work(seed: int) -> dict:
    """Fine-tunes with transformers and torch; returns the best epoch's F1 scores, and the speed."""
    import torch
    import transformers

    from keras_bert.tasks.ner.data import read_conll
    from keras_bert.tasks.ner.metrics import entity_scores
    from keras_bert.tasks.ner.tag_schemes import Sentence

    sentences = {name: read_conll(Path(FLAGS.data_dir) / file) for name, file in FILES.items()}
    types = sorted({tag[2:] for sentence in sentences["train"] for tag in sentence.tags} - {""})
    labels = ["O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

    def tokenized(some: list[Sentence]) -> list[dict]:
        encoded = tokenizer(
            [list(sentence.words) for sentence in some],
            is_split_into_words=True,
            truncation=True,
            max_length=LENGTH,
        )
        rows = []
        for index, sentence in enumerate(some):
            words = encoded.word_ids(index)
            firsts = [word is not None and word != words[i - 1] for i, word in enumerate(words)]
            tags = [
                labels.index(sentence.tags[word]) if first else -100
                for word, first in zip(words, firsts, strict=True)
            ]
            rows.append({key: encoded[key][index] for key in encoded} | {"labels": tags})
        return rows

    data = {name: tokenized(some) for name, some in sentences.items()}
    torch.manual_seed(seed)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        MODEL, num_labels=len(labels), dtype=torch.float32
    )
    collate = transformers.DataCollatorForTokenClassification(tokenizer)

    def f1_of(name: str) -> float:
        predicted = []
        model.eval()
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(data[name], 32, collate_fn=collate):
                predicted += model(**batch).logits.argmax(-1).tolist()
        pairs = []
        for index, sentence in enumerate(sentences[name]):
            # Words without tokens and truncated words are predicted as O.
            tags = ["O"] * len(sentence.words)
            words = tokenizer(list(sentence.words), is_split_into_words=True).word_ids()
            row = data[name][index]["labels"]
            for place, label in enumerate(row):
                if label != -100:
                    tags[words[place]] = labels[predicted[index][place]]
            pairs.append((sentence.tags, tags))
        return entity_scores(pairs)["f1"]

    best = {"dev": -1.0}

    def keep_best() -> None:
        dev = f1_of("eval")
        if dev > best["dev"]:
            best.update(dev=dev, test=f1_of("test"))

    rate = train_torch(model, data["train"], collate, FLAGS.epochs, keep_best)
    return best | {"examples_per_second": rate}


def report(runs: dict[tuple, dict]) -> None:
    """Prints the scores with their spread and difference, and the speed ratios.

    `runs` is {(seed, contender): result of `run`}.
    """
    seeds = [s for s in map(int, FLAGS.seeds) if all((s, c) in runs for c in CONTENDERS)]
    own = {c: [runs[seed, c] for seed in seeds] for c in CONTENDERS}

    def values(key: str) -> list[np.ndarray]:
        return [np.array([run[key] for run in own[c]]) for c in CONTENDERS]

    print(f"\nWNUT-17, {FLAGS.epochs} epochs, {len(seeds)} seeds: entity F1 in points, mean ± std")
    print("| | ours | torch | difference |")
    print("| --- | --- | --- | --- |")
    for name in ("dev", "test"):
        scores = [100 * value for value in values(name)]
        cells = [mean_and_spread(score) for score in scores]
        print(f"| {name} F1 | {' | '.join(cells)} | {scores[0].mean() - scores[1].mean():+.1f} |")
    for name, key, better in (
        ("training examples/s", "examples_per_second", 0),
        ("seconds of the program", "program_seconds", 1),
    ):
        both = values(key)
        ratio = np.median(both[better] / both[1 - better])
        print(f"| {name} | {np.median(both[0]):.1f} | {np.median(both[1]):.1f} | {ratio:.2f} x |")
    found = sorted({run["precision"] for run in own["ours"]})
    print(f"ours computes in {' and '.join(found)}; torch computes in float32")


def main(_) -> None:
    """Runs the jobs that are not in runs.jsonl yet, and prints the table."""
    if FLAGS.worker is not None:
        print(json.dumps(work(FLAGS.worker)))
        return
    jobs = [
        {"seed": seed, "contender": contender, "epochs": FLAGS.epochs}
        for seed, contenders in in_turn([int(seed) for seed in FLAGS.seeds])
        for contender in contenders
    ]
    done = do_runs(FLAGS.work_dir, jobs, run)
    report({(each["seed"], each["contender"]): each for each in done})


if __name__ == "__main__":
    app.run(main)
