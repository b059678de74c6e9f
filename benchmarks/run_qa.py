"""Implements transformers' run_qa recipe as a plain torch loop, for squad.py.

A batch is padded to its longest window. The answer of a window is the best span of at most 30
tokens from the 20 best starts and the 20 best ends. The answer of a question is the best answer of
its windows.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from workers import MODEL, ROOT

SQUAD = ROOT.parent / "shared" / "data" / "squad"
TRAIN, DEV = SQUAD / "squad2_cs224n_dev.json", SQUAD / "xquad.en.json"
BATCH, LENGTH, STRIDE, RATE = 16, 384, 128, 5e-5

# Train runs a number of training steps and returns the number of windows in them. Predict returns
# {question id: answer} for the questions in DEV.
Train = Callable[[int], int]
Predict = Callable[[], dict[str, str]]


def make_torch(dtype: str, seed: int, steps: int, questions_asked: int) -> tuple[Train, Predict]:
    """Creates the training and prediction functions of a plain torch loop.

    Args:
        dtype: `float32`, or `bfloat16` for autocast.
        seed: seed of the new head's weights, dropout, and the order of the windows.
        steps: the number of training steps in total, after which the learning rate is 0.
        questions_asked: the number of questions in DEV to answer.
    """
    import torch
    import transformers

    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(MODEL).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, steps)
    features = list(torch_features(tokenizer, [q for q in read(TRAIN) if q["answers"]]))

    def batches() -> Iterator[list[dict]]:
        random = np.random.default_rng(seed)
        while True:
            order = random.permutation(len(features))
            for begin in range(0, len(order), BATCH):
                yield [features[i] for i in order[begin : begin + BATCH]]

    def inputs(batch: list[dict]) -> dict:
        names = ("input_ids", "attention_mask", "token_type_ids")
        return tokenizer.pad([{n: f[n] for n in names} for f in batch], return_tensors="pt")

    stream = batches()
    bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

    def train(count: int) -> int:
        windows = 0
        for _ in range(count):
            batch = next(stream)
            ends = {
                name: torch.tensor([feature[name] for feature in batch])
                for name in ("start_positions", "end_positions")
            }
            with bfloat16:
                loss = model(**inputs(batch), **ends).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            windows += len(batch)
        return windows

    @torch.no_grad()
    def predict() -> dict[str, str]:
        model.eval()
        dev_questions = read(DEV)[:questions_asked]
        windows = list(torch_features(tokenizer, dev_questions))
        spans: dict[str, tuple[float, str]] = {}
        for begin in range(0, len(windows), 32):
            batch = windows[begin : begin + 32]
            with bfloat16:
                outputs = model(**inputs(batch))
            logits = outputs.start_logits.float().numpy(), outputs.end_logits.float().numpy()
            for feature, start, end in zip(batch, *logits, strict=True):
                best = best_span(feature, start, end)
                question = dev_questions[feature["question"]]
                if best and best[0] > spans.get(question["id"], (-np.inf, ""))[0]:
                    spans[question["id"]] = best[0], question["context"][best[1] : best[2]]
        return {name: text for name, (_, text) in spans.items()}

    return train, predict


def read(path: Path) -> list[dict]:
    """Reads the questions of a SQuAD file, each with its context."""
    return [
        {**entry, "context": paragraph["context"]}
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]


def torch_features(tokenizer, questions: list[dict]) -> Iterator[dict]:
    """Yields tokenized windows; start and end position are 0 without the whole answer."""
    encoded = tokenizer(
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    for i, of in enumerate(encoded["overflow_to_sample_mapping"]):
        sides, offsets = encoded.sequence_ids(i), encoded["offset_mapping"][i]
        context = [place for place, side in enumerate(sides) if side == 1]
        answers = questions[of]["answers"]
        begin = answers[0]["answer_start"] if answers else -1
        end = begin + len(answers[0]["text"]) if answers else -1
        start_position = end_position = 0
        if offsets[context[0]][0] <= begin and end <= offsets[context[-1]][1]:
            start_position = max(p for p in context if offsets[p][0] <= begin)
            end_position = min(p for p in context if offsets[p][1] >= end)
        yield {
            "input_ids": encoded["input_ids"][i],
            "attention_mask": encoded["attention_mask"][i],
            "token_type_ids": encoded["token_type_ids"][i],
            "start_positions": start_position,
            "end_positions": end_position,
            "question": of,
            "offsets": {place: offsets[place] for place in context},
        }


def best_span(feature: dict, start: np.ndarray, end: np.ndarray) -> tuple[float, int, int] | None:
    """Finds the best span in a window with start and end logits [S].

    Returns its score, and its start and end in characters of the context; None if no span is valid.
    """
    offsets = feature["offsets"]
    spans = [
        (float(start[first] + end[last]), offsets[first][0], offsets[last][1])
        for first in np.argsort(-start)[:20].tolist()
        for last in np.argsort(-end)[:20].tolist()
        if first in offsets and last in offsets and 0 <= last - first < 30
    ]
    return max(spans, default=None)
