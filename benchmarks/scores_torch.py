"""Fine-tunes with transformers or sentence-transformers for scores.py; runs in `.peers`.

    .peers/bin/python benchmarks/scores_torch.py JOB

JOB is a JSON object with task, contender, seed, epochs and the flags of keras_bert's program, which
name the files. The last line of the output has the scores and the training speed as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.stats
import sklearn.metrics
import torch
import transformers
from texts import GLUE, read_questions, read_sentences, read_tsv
from workers import MODEL, ROOT

sys.path.insert(0, str(ROOT))
BATCH, LEARNING_RATE, WARMUP = 16, 5e-5, 0.1

METRICS = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": sklearn.metrics.f1_score,
    "matthews_corrcoef": sklearn.metrics.matthews_corrcoef,
    "pearson": lambda labels, values: float(scipy.stats.pearsonr(labels, values).statistic),
    "spearman": lambda labels, values: float(scipy.stats.spearmanr(labels, values).statistic),
}


def train(model: torch.nn.Module, data: Sequence, collate: Callable, job: dict) -> float:
    """Trains a model in a plain loop; returns the training examples per second."""
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for p in model.parameters() if not any(p is value for value in plain)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-6)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, collate_fn=collate)
    steps = max(1, round(len(loader) * job["epochs"]))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    model.train()
    done, start = 0, time.perf_counter()
    while done < steps:
        for batch in loader:
            with autocast(job):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break
    model.eval()
    return steps * BATCH / (time.perf_counter() - start)


def autocast(job: dict) -> torch.autocast:
    """Returns the context in which the products of the contender are computed."""
    return torch.autocast("cpu", torch.bfloat16, enabled=job["contender"] == "torch_bfloat16")


@torch.no_grad()
def outputs_of(
    model: torch.nn.Module, data: Sequence[dict], collate: Callable, job: dict
) -> Iterator:
    """Yields the outputs of the model for batches of 32 examples."""
    for batch in torch.utils.data.DataLoader(data, 32, collate_fn=collate):
        with autocast(job):
            yield model(**batch)


def classify(job: dict) -> tuple[dict, float]:
    """Fine-tunes for a task of GLUE."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    folder = Path(job["flags"]["data_dir"])
    regression = job["task"] == "STS-B"
    splits = [read_tsv(folder / f"{name}.tsv", GLUE[job["task"]]) for name in ("train", "dev")]
    classes = [] if regression else sorted(set(splits[0][-1]))

    def tokenized(columns: list[list[str]]) -> tuple[list[dict], list]:
        encoded = tokenizer(*columns[:-1], truncation="longest_first", max_length=128)
        labels = [float(label) if regression else classes.index(label) for label in columns[-1]]
        names = list(encoded)
        rows = [
            {name: encoded[name][i] for name in names} | {"labels": label}
            for i, label in enumerate(labels)
        ]
        return rows, labels

    (rows, _), (dev_rows, labels) = map(tokenized, splits)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        MODEL, num_labels=len(classes) or 1, dtype=torch.float32
    )
    collate = transformers.DataCollatorWithPadding(tokenizer)
    rate = train(model, rows, collate, job)
    logits = [out.logits.float() for out in outputs_of(model, dev_rows, collate, job)]
    logits = torch.cat(logits).numpy()
    values = logits[:, 0] if regression else logits.argmax(axis=1)
    names = {"CoLA": ["matthews_corrcoef"], "MRPC": ["accuracy", "f1"]}
    names = ["pearson", "spearman"] if regression else names.get(job["task"], ["accuracy"])
    return {name: float(METRICS[name](labels, values)) for name in names}, rate


def tag(job: dict) -> tuple[dict, float]:
    """Fine-tunes for WNUT-17, with tags on the first token of each word."""
    from keras_bert.tasks.ner.tag_schemes import entity_scores

    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    sentences, dev = (read_sentences(job["flags"][f"{name}_file"]) for name in ("train", "eval"))
    labels = ["O", *sorted({tag for _, tags in sentences for tag in tags} - {"O"})]

    def tokenized(sentences: list) -> list[dict]:
        words = [words for words, _ in sentences]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=128)
        rows = []
        for index, (_, tags) in enumerate(sentences):
            ids = encoded.word_ids(index)
            firsts = [word is not None and word != ids[i - 1] for i, word in enumerate(ids)]
            targets = [
                labels.index(tags[word]) if first and tags[word] in labels else -100
                for word, first in zip(ids, firsts, strict=True)
            ]
            row = {name: encoded[name][index] for name in encoded}
            rows.append(row | {"labels": targets, "words": ids, "firsts": firsts})
        return rows

    model = transformers.AutoModelForTokenClassification.from_pretrained(
        MODEL, num_labels=len(labels), dtype=torch.float32
    )
    padded = transformers.DataCollatorForTokenClassification(tokenizer)

    def collate(rows: list[dict]) -> dict:
        return padded([{n: v for n, v in r.items() if n not in ("words", "firsts")} for r in rows])

    rate = train(model, tokenized(sentences), collate, job)
    rows, pairs = tokenized(dev), []
    predicted = [p for o in outputs_of(model, rows, collate, job) for p in o.logits.argmax(-1)]
    for (_, gold), row, best in zip(dev, rows, predicted, strict=True):
        tags = ["O"] * len(gold)  # Of truncated words and of words without tokens.
        for word, first, label in zip(row["words"], row["firsts"], best.tolist(), strict=False):
            if first:
                tags[word] = labels[label]
        pairs.append((gold, tags))
    return {"f1": entity_scores(pairs)["f1"]}, rate


def answer_questions(job: dict) -> tuple[dict, float]:
    """Fine-tunes for SQuAD, as transformers' run_qa does."""
    from keras_bert.tasks.question_answering.data import load_questions
    from keras_bert.tasks.question_answering.metrics import score_v1

    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(MODEL, dtype=torch.float32)
    questions, dev = (read_questions(job["flags"][f"{name}_file"]) for name in ("train", "eval"))
    names = ("input_ids", "attention_mask", "token_type_ids")

    def collate(windows: list[dict]) -> dict:
        batch = tokenizer.pad([{n: w[n] for n in names} for w in windows], return_tensors="pt")
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor([window[name] for window in windows])
        return dict(batch)

    rate = train(model, list(windows_of(tokenizer, questions, job)), collate, job)
    windows, answers = list(windows_of(tokenizer, dev, job)), {}
    logits = [
        pair
        for out in outputs_of(model, windows, collate, job)
        for pair in zip(
            out.start_logits.float().numpy(), out.end_logits.float().numpy(), strict=True
        )
    ]
    for window, (start, end) in zip(windows, logits, strict=True):
        question, span = dev[window["question"]], best_span(window["offsets"], start, end)
        if span and span[0] > answers.get(question["id"], (-np.inf,))[0]:
            answers[question["id"]] = span[0], question["context"][span[1] : span[2]]
    texts = {name: text for name, (_, text) in answers.items()}
    return score_v1(load_questions(job["flags"]["eval_file"]), texts), rate


def windows_of(tokenizer, questions: list[dict], job: dict) -> Iterator[dict]:
    """Yields tokenized windows; the positions are 0 if the answer is not wholly in the window."""
    encoded = tokenizer(
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=job["flags"]["max_seq_length"],
        stride=job["flags"]["doc_stride"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    for i, index in enumerate(encoded["overflow_to_sample_mapping"]):
        offsets = encoded["offset_mapping"][i]
        context = [p for p, side in enumerate(encoded.sequence_ids(i)) if side == 1]
        answer = questions[index]["answers"][0]
        begin, start, end = answer["answer_start"], 0, 0
        stop = begin + len(answer["text"])
        if offsets[context[0]][0] <= begin and stop <= offsets[context[-1]][1]:
            start = max(p for p in context if offsets[p][0] <= begin)
            end = min(p for p in context if offsets[p][1] >= stop)
        yield {
            **{n: encoded[n][i] for n in ("input_ids", "attention_mask", "token_type_ids")},
            "start_positions": start,
            "end_positions": end,
            "question": index,
            "offsets": {p: offsets[p] for p in context},
        }


def best_span(offsets: dict, start: np.ndarray, end: np.ndarray) -> tuple[float, int, int] | None:
    """Returns the score, and the first and last character, of the best span of up to 30 tokens."""
    spans = [
        (float(start[first] + end[last]), offsets[first][0], offsets[last][1])
        for first in np.argsort(-start)[:20].tolist()
        for last in np.argsort(-end)[:20].tolist()
        if first in offsets and last in offsets and 0 <= last - first < 30
    ]
    return max(spans, default=None)


def embed(job: dict) -> tuple[dict, float]:
    """Trains sentence-transformers' model with its CoSENT loss on scored pairs."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedder = SentenceTransformer(str(MODEL), device="cpu")
            self.embedder.max_seq_length = 128
            self.loss = losses.CoSENTLoss(self.embedder, scale=20.0)

        def forward(self, first, second, scores) -> SimpleNamespace:
            return SimpleNamespace(loss=self.loss([first, second], scores))

    model = Trained()

    def collate(rows: list[tuple]) -> dict:
        first, second, scores = zip(*rows, strict=True)
        tokenize = model.embedder.tokenize
        scores = torch.tensor(list(map(float, scores)))
        return {"first": tokenize(list(first)), "second": tokenize(list(second)), "scores": scores}

    columns, dev = (
        read_tsv(Path(job["flags"][f"{name}_file"]), GLUE["STS-B"]) for name in ("train", "eval")
    )
    rate = train(model, list(zip(*columns, strict=True)), collate, job)
    with autocast(job):
        a, b = (model.embedder.encode(dev[side], normalize_embeddings=True) for side in (0, 1))
    scores = list(map(float, dev[2]))
    return {"spearman": METRICS["spearman"](scores, (a * b).sum(axis=1))}, rate


def main() -> None:
    """Runs the job, and prints its figures."""
    job = json.loads(sys.argv[1])
    torch.manual_seed(job["seed"])
    runs = {"WNUT-17": tag, "SQuAD": answer_questions, "embeddings": embed}
    scores, rate = runs.get(job["task"], classify)(job)
    print(json.dumps({"scores": scores, "examples_per_second": rate}))


if __name__ == "__main__":
    main()
