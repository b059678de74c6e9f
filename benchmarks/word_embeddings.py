"""Measures what the word embeddings of pre-trained models know about the sentiment of words.

    .peers/bin/python benchmarks/word_embeddings.py MODEL ...

MODEL is a Hugging Face directory of a BERT, such as model/ of a pre-training run. The script prints
the nearest words of some words by cosine, without the mean of all embeddings, and the accuracy on
the development set of SST-2 of a logistic regression that sees only the mean word embedding of a
sentence. It is trained on 8,000 random training sentences, with the best of four regularizations.
"""

import argparse
import csv
import random
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from transformers import BertModel, BertTokenizerFast, logging

WORDS = ("good", "terrible", "charming", "dull", "brother", "quickly")
NEIGHBORS = 5
SENTENCES = 8000
REGULARIZATIONS = (1e-3, 1e-2, 1e-1, 1.0)
DATA = Path(__file__).resolve().parents[2] / "shared/data/glue/SST-2"


def nearest_words(embeddings: torch.Tensor, tokenizer: BertTokenizerFast, word: str) -> list[str]:
    """Returns the words with the nearest embeddings; `embeddings` is float32 [V, H]."""
    centered = torch.nn.functional.normalize(embeddings - embeddings.mean(0), dim=1)
    cosines = centered @ centered[tokenizer.convert_tokens_to_ids(word)]
    return tokenizer.convert_ids_to_tokens(cosines.topk(NEIGHBORS + 1).indices[1:].tolist())


def read_sentences(path: Path) -> tuple[list[str], np.ndarray]:
    """Returns the sentences of a file of SST-2, and their labels, int64 [n]."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    random.Random(0).shuffle(rows)
    return [row[0] for row in rows[:SENTENCES]], np.array([int(row[1]) for row in rows[:SENTENCES]])


def mean_embeddings(
    embeddings: torch.Tensor, tokenizer: BertTokenizerFast, sentences: list[str]
) -> np.ndarray:
    """Returns the mean word embedding of each sentence, float32 [n, H]."""
    ids = tokenizer(sentences, add_special_tokens=False)["input_ids"]
    return torch.stack([embeddings[some].mean(0) for some in ids]).numpy()


def sentiment_accuracy(embeddings: torch.Tensor, tokenizer: BertTokenizerFast) -> float:
    """Returns the accuracy of the logistic regression in percent."""
    splits = [read_sentences(DATA / f"{name}.tsv") for name in ("train", "dev")]
    train, dev = (mean_embeddings(embeddings, tokenizer, sentences) for sentences, _ in splits)
    scaler = StandardScaler().fit(train)
    scores = [
        LogisticRegression(C=strength, max_iter=2000)
        .fit(scaler.transform(train), splits[0][1])
        .score(scaler.transform(dev), splits[1][1])
        for strength in REGULARIZATIONS
    ]
    return 100 * max(scores)


def main() -> None:
    """Prints the figures of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for path in parser.parse_args().models:
        tokenizer = BertTokenizerFast.from_pretrained(path)
        model = BertModel.from_pretrained(path)
        embeddings = model.get_input_embeddings().weight.detach()
        print(f"{path}: SST-2 {sentiment_accuracy(embeddings, tokenizer):.1f} %")
        for word in WORDS:
            print(f"  {word}: {', '.join(nearest_words(embeddings, tokenizer, word))}", flush=True)


if __name__ == "__main__":
    main()
