"""Compares GLUE scores and speed of keras_bert and of a plain transformers + torch loop.

    .venv/bin/python benchmarks/glue.py [--tasks=MRPC,RTE] [--seeds=0,1,2] [--work_dir=/tmp/glue]

Both contenders start from MiniLM (6 layers, hidden size 384) and train for 3 epochs with the
settings in whole_runs.py and dropout 0.1, and compute in float32. keras_bert runs
run_classifier.py with its defaults (batches by length, XLA).

SST-2 trains on `--sst2_examples` of its rows, drawn once. All tasks are scored on the whole
development set, with the weights after the last epoch, so the scored set selects no weights.
"""

import json
import shutil
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
EPOCHS = 3

flags.DEFINE_list("tasks", ["MRPC", "RTE", "CoLA", "STS-B", "SST-2"], "GLUE tasks")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run each")
flags.DEFINE_integer("sst2_examples", 4000, "number of SST-2 training examples", lower_bound=100)
flags.DEFINE_string("glue_dir", str(ROOT.parent / "shared/data/glue"), "GLUE's folder")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_glue", "folder of the runs and of runs.jsonl")
flags.DEFINE_string("worker", None, "internal: TASK,SEED of a run of the peer")
FLAGS = flags.FLAGS


def task_folder(name: str) -> Path:
    """Returns the folder of a task; for SST-2, a folder with a subset of the training rows."""
    folder = Path(FLAGS.glue_dir) / name
    if name != "SST-2":
        return folder
    subset = Path(FLAGS.work_dir) / f"SST-2-{FLAGS.sst2_examples}"
    if not (subset / "train.tsv").exists():
        header, *rows = (folder / "train.tsv").read_text(encoding="utf-8").splitlines(True)
        chosen = np.random.default_rng(0).permutation(len(rows))[: FLAGS.sst2_examples]
        subset.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "dev.tsv", subset / "dev.tsv")
        text = header + "".join(rows[row] for row in sorted(chosen))
        (subset / "train.tsv").write_text(text, encoding="utf-8")
    return subset


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's task, contender and seed; returns the scores, and the speed."""
    name, seed = job["task"], job["seed"]
    if job["contender"] == "torch":
        flags = {flag: FLAGS[flag].value for flag in ("glue_dir", "work_dir", "sst2_examples")}
        return run_torch(__file__, worker=f"{name},{seed}", **flags)
    output_dir = Path(FLAGS.work_dir) / "ours" / f"{name}-{seed}"
    own = {"task_name": name, "data_dir": task_folder(name), "num_train_epochs": EPOCHS}
    figures = run_ours("run_classifier.py", output_dir, seed, do_predict=False, **own)
    rows = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    scored = [row for row in rows if "eval_score" in row][-1]
    return {
        "figures": {key.removeprefix("eval_"): scored[key] for key in scored if key != "step"},
        "best_score": json.loads((output_dir / "results.json").read_text())["score"],
        **figures,
    }


def work(name: str, seed: int) -> dict:
    """Fine-tunes with transformers and torch; returns the last epoch's scores, and the speed."""
    import torch
    import transformers

    from keras_bert.tasks.classification.data import label_array
    from keras_bert.tasks.classification.glue import find_task, read_glue
    from keras_bert.tasks.classification.metrics import compute_metrics
    from keras_bert.tasks.classification.tables import Texts

    task = find_task(name)
    problem = "single_label" if task.labels else "regression"
    splits = read_glue(task, task_folder(name), train=True, dev=True, test=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

    def tokenized(texts: Texts) -> list[dict]:
        sides = [texts.first] if texts.second is None else [texts.first, texts.second]
        encoded = tokenizer(*sides, truncation="longest_first", max_length=LENGTH)
        labels = label_array(texts, problem, task.labels).tolist()
        return [
            {key: encoded[key][i] for key in encoded} | {"labels": labels[i]}
            for i in range(len(texts))
        ]

    train, dev = tokenized(splits.train), tokenized(splits.dev[""])
    torch.manual_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        MODEL, num_labels=len(task.labels) or 1, dtype=torch.float32
    )
    collate = transformers.DataCollatorWithPadding(tokenizer)
    rate = train_torch(model, train, collate, EPOCHS)
    model.eval()
    with torch.no_grad():
        batches = torch.utils.data.DataLoader(dev, 32, collate_fn=collate)
        logits = torch.cat([model(**batch).logits for batch in batches]).numpy()
    labels = label_array(splits.dev[""], problem, task.labels)
    predictions = logits.argmax(axis=1) if task.labels else logits[:, 0]
    figures = compute_metrics(task.metrics, predictions, labels)
    figures["score"] = float(np.mean([figures[metric] for metric in task.metrics]))
    return {"figures": figures, "examples_per_second": rate}


def report(runs: dict[tuple, dict]) -> None:
    """Prints the scores of each task with their spread and difference, and the speed ratios.

    `runs` is {(task, seed, contender): result of `run`}.
    """
    print("\nmean ± standard deviation over seeds, in points; x: speedup over the peer")
    columns = ("task", "seeds", "metric", "ours", "torch", "difference")
    columns += ("ours ex/s", "torch ex/s", "x", "program x")
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for name in FLAGS.tasks:
        seeds = [s for s in FLAGS.seeds if all((name, int(s), c) in runs for c in CONTENDERS)]
        if not seeds:
            continue
        own = {c: [runs[name, int(seed), c] for seed in seeds] for c in CONTENDERS}
        metrics = [key for key in own["torch"][0]["figures"] if key not in ("loss", "score")]
        for metric in metrics:
            values = {
                c: 100 * np.array([run["figures"][metric] for run in own[c]]) for c in CONTENDERS
            }
            cells = [name, str(len(seeds)), metric]
            cells += [mean_and_spread(v) for v in values.values()]
            cells.append(f"{values['ours'].mean() - values['torch'].mean():+.1f}")
            rates, times = (
                {c: np.array([run[key] for run in own[c]]) for c in CONTENDERS}
                for key in ("examples_per_second", "program_seconds")
            )
            cells += [f"{np.median(rates[c]):.1f}" for c in CONTENDERS]
            cells.append(f"{np.median(rates['ours'] / rates['torch']):.2f}")
            cells.append(f"{np.median(times['torch'] / times['ours']):.2f}")
            print("| " + " | ".join(cells) + " |")
    found = sorted({run["precision"] for run in runs.values() if "precision" in run})
    print(f"ours computes in {' and '.join(found)}; torch computes in float32")


def main(_) -> None:
    """Runs the jobs that are not in runs.jsonl yet, and prints the table."""
    if FLAGS.worker:
        name, seed = FLAGS.worker.split(",")
        print(json.dumps(work(name, int(seed))))
        return
    subset = {"SST-2": {"settings": {"sst2_examples": FLAGS.sst2_examples}}}
    jobs = [
        {"task": name, "seed": seed, "contender": contender} | subset.get(name, {})
        for seed, contenders in in_turn([int(seed) for seed in FLAGS.seeds])
        for name in FLAGS.tasks
        for contender in contenders
    ]
    done = do_runs(FLAGS.work_dir, jobs, run)
    report({(each["task"], each["seed"], each["contender"]): each for each in done})


if __name__ == "__main__":
    app.run(main)
