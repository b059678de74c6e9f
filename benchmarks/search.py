"""Measures the stages of search with one's own encoder on passages of SQuAD: which of them help?

    .venv/bin/python -m pip install bm25s matplotlib
    .venv/bin/python benchmarks/search.py --output_dir=DIR [--stages=bm25,minilm] [--seeds=0,1,2]

The passages are parts of about 60 words, at ends of sentences, of the English paragraphs of XQuAD
and of the SQuAD 2.0 file of ../shared/data. The passage with the start of a question's answer is
relevant. Questions of a quarter of the articles are the test; the search is always over all
passages. DIR/data is a BEIR directory with them.

stage      what it does
bm25       bm25s, the library's defaults with English stop words
minilm     all-MiniLM-L6-v2 without training
adapted    `keras_bert.adapt` on all passages, from minilm
pairs      minilm, trained on the questions and passages of the other articles
both       the same from adapted
negatives  the same from minilm, on triplets with negatives that `pairs` mined
reranker   the 50 nearest passages of `pairs`, sorted by a cross-encoder that was trained, from
           minilm, on triplets of a question, its passage and a negative that `pairs` mined

A stage and seed run in a process of their own. Their scores are a file in DIR; the same command
runs those that are missing, prints the table, and draws DIR/search.png.
"""

import json
import multiprocessing
import re
import time
from pathlib import Path
from statistics import mean, stdev

from absl import app, flags
from texts import DATA
from workers import MODEL

import keras_bert
from keras_bert.tasks.retrieval import RetrievalData, evaluate_rankings, read_beir

FLAGS = flags.FLAGS
LENGTH, TOP = 128, 50  # tokens of a text, passages that the reranker sorts
FIT = {"epochs": 1, "batch_size": 32, "learning_rate": 3e-5, "mixed_precision": "bfloat16"}
RERANK = {**FIT, "epochs": 2, "batch_size": 16, "learning_rate": 1e-4}
ADAPT = {"num_train_epochs": 2}
MINE = {"margin": 0.05}
METRICS = ("ndcg_at_10", "recall_at_10", "mrr_at_10")
STAGES = {  # name: whether it depends on the seed
    "bm25": False,
    "minilm": False,
    "adapted": True,
    "pairs": True,
    "both": True,
    "negatives": True,
    "reranker": True,
}


# --- data ---


def read_passages(files: list[Path]) -> tuple[list[tuple[str, str]], list[tuple[str, int]]]:
    """Returns (article, passage) and (question, index of its passage) of files of SQuAD."""
    passages: list[tuple[str, str]] = []
    questions: dict[str, int] = {}
    first: dict[str, int] = {}  # The index of the first passage of each paragraph.
    for file in files:
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                parts = split_paragraph(paragraph["context"])
                if paragraph["context"] not in first:
                    first[paragraph["context"]] = len(passages)
                    passages += [(article["title"], part) for part in parts]
                for question in paragraph["qas"]:
                    if not question["answers"]:
                        continue
                    start, index = question["answers"][0]["answer_start"], 0
                    while start >= len(parts[index]):
                        start, index = start - len(parts[index]), index + 1
                    text = question["question"].strip()
                    questions.setdefault(text, first[paragraph["context"]] + index)
    return passages, [*questions.items()]


def split_paragraph(text: str, words: int = 60) -> list[str]:
    """Splits a paragraph at ends of sentences into passages of about `words` words."""
    parts = [""]
    for sentence in re.findall(r".+?(?:[.!?][\"')\]]*\s+(?=[A-Z\"'(])|$)", text, re.DOTALL):
        if len(parts[-1].split()) >= words / 2 and len((parts[-1] + sentence).split()) > words:
            parts.append("")
        parts[-1] += sentence
    return parts


def write_data(folder: Path) -> None:
    """Writes a BEIR directory, and documents.txt: a passage per line, a blank line per article."""
    names = ("xquad.en.json", "squad2_cs224n_dev.json")
    passages, questions = read_passages([DATA / "squad" / name for name in names])
    articles = sorted({article for article, _ in passages})
    test = set(articles[::4])
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    rows = {
        "corpus": [{"_id": f"p{i}", "text": text} for i, (_, text) in enumerate(passages)],
        "queries": [{"_id": f"q{i}", "text": text} for i, (text, _) in enumerate(questions)],
    }
    for name, items in rows.items():
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    for split in ("train", "test"):
        lines = ["query-id\tcorpus-id\tscore"]
        for i, (_, passage) in enumerate(questions):
            if (passages[passage][0] in test) == (split == "test"):
                lines.append(f"q{i}\tp{passage}\t1")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        print(f"{split}: {len(lines) - 1} questions")
    print(f"{len(passages)} passages of {len(articles)} articles, {len(test)} of them the test")
    documents = {article: [] for article in articles}
    for article, text in passages:
        documents[article].append(" ".join(text.split()))
    text = "\n\n".join("\n".join(lines) for lines in documents.values())
    (folder / "documents.txt").write_text(text + "\n", encoding="utf-8")


# --- stages ---


def run_stage(name: str, seed: int, folder: str) -> dict[str, float]:
    """Runs a stage, and returns its metrics on the questions of the test."""
    output = Path(folder)
    train, test = (read_beir(output / "data", split) for split in ("train", "test"))
    model = output / f"{name}-{seed}"

    def embedder(path: str | Path) -> keras_bert.TextEmbedder:
        return keras_bert.TextEmbedder.from_pretrained(path, max_seq_length=LENGTH)

    def train_embedder(path: str | Path, examples: tuple) -> keras_bert.TextEmbedder:
        task = embedder(path)
        task.fit(examples, seed=seed, verbose=0, **FIT)
        task.save_pretrained(model)
        return task

    if name == "bm25":
        return evaluate_rankings(test.relevance, bm25_scores(test))
    if name == "minilm":
        return embedder(MODEL).evaluate(test)
    if name == "adapted":
        keras_bert.adapt(
            output / "data/documents.txt",
            MODEL,
            output_dir=model,
            random_seed=seed,
            input_format="sentences",
            **ADAPT,
        )
        return embedder(model).evaluate(test)
    if name in ("pairs", "both"):
        start = MODEL if name == "pairs" else output / f"adapted-{seed}"
        return train_embedder(start, train.pairs).evaluate(test)
    miner = embedder(output / f"pairs-{seed}")
    if name == "negatives":
        return train_embedder(MODEL, miner.mine_negatives(train, num_negatives=1, **MINE)).evaluate(
            test
        )
    reranker = keras_bert.TextClassifier.from_pretrained(
        MODEL, problem_type="reranking", max_seq_length=LENGTH + 32
    )
    triplets = miner.mine_negatives(train, num_negatives=1, **MINE)
    reranker.fit(triplets, seed=seed, verbose=2, **RERANK)
    reranker.save_pretrained(model)
    nearest, _ = miner.search(*test.columns, top_k=TOP)
    return reranker.evaluate(test, candidates=nearest)


def bm25_scores(data: RetrievalData) -> dict[str, dict[str, float]]:
    """Returns {query id: {document id: score}} of the 1000 best documents by BM25."""
    import bm25s

    queries, corpus = data.columns
    index = bm25s.BM25()
    index.index(bm25s.tokenize(corpus, stopwords="en", show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(queries, stopwords="en", show_progress=False)
    results, scores = index.retrieve(tokens, k=min(1000, len(corpus)), show_progress=False)
    ids = [*data.corpus]
    return {
        query: {ids[i]: float(score) for i, score in zip(row, values, strict=True)}
        for query, row, values in zip(data.relevance, results, scores, strict=True)
    }


# --- report ---


def report(output: Path) -> None:
    """Prints a table of the mean and standard deviation of the seeds, and draws them."""
    scores = {
        name: [json.loads(f.read_text()) for f in sorted(output.glob(f"{name}-*.json"))]
        for name in STAGES
    }
    scores = {name: runs for name, runs in scores.items() if runs}
    print("| stage | " + " | ".join(METRICS) + " | seconds |\n| --- |" + " --- |" * 4)
    for name, runs in scores.items():
        cells = []
        for metric in METRICS:
            values = [100 * run[metric] for run in runs]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}")
        seconds = mean(run["seconds"] for run in runs)
        print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")

    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for i, runs in enumerate(scores.values()):
        values = [100 * run["ndcg_at_10"] for run in runs]
        axes.barh(i, mean(values), color="#c5cae9")
        axes.plot(values, [i] * len(values), ".", color="#1a237e")
        axes.text(1, i, f"{mean(values):.1f}", va="center")
    axes.set_yticks(range(len(scores)), scores)
    axes.invert_yaxis()
    axes.set_xlabel("nDCG@10 in percent, questions of unseen articles (dots: seeds)")
    figure.savefig(output / "search.png", dpi=150)


def main(_) -> None:
    """Runs the missing stages, and reports all."""
    output = Path(FLAGS.output_dir)
    if not (output / "data").exists():
        write_data(output / "data")
    spawn = multiprocessing.get_context("spawn")
    for seed in FLAGS.seeds:
        for name in FLAGS.stages:
            path = output / f"{name}-{seed}.json"
            if path.exists() or (seed != FLAGS.seeds[0] and not STAGES[name]):
                continue
            started = time.monotonic()
            with spawn.Pool(1) as pool:
                scores = pool.apply(run_stage, (name, int(seed), str(output)))
            scores["seconds"] = time.monotonic() - started
            path.write_text(json.dumps(scores))
            print(path.stem, {m: round(scores[m], 4) for m in METRICS}, flush=True)
    report(output)


if __name__ == "__main__":
    flags.DEFINE_string("output_dir", None, "folder of the data, models and scores", required=True)
    flags.DEFINE_list("stages", [*STAGES], "the stages to run")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "the seeds")
    app.run(main)
