"""Tests that examples of the King James Bible are distributed like those of Google's script.

tests/golden/make_data_golden.py counted Google's examples for two seeds, with five copies of 1,189
documents. Examples of one document are not independent, so the bound is the noise between seeds.
The largest distance between two cumulative distributions (Kolmogorov-Smirnov) was up to 0.0127
between Google's two runs, and up to 0.0167 between four of our runs and Google's.
"""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.settings import Settings
from data_tools.shards import make_examples, tokenize
from keras_bert.text.tokenizer import BertTokenizer

BOUND = 0.02


@pytest.fixture(scope="module")
def google(root):
    return json.loads((root / "tests/golden/data_google_kjv.json").read_text())["runs"]


@pytest.fixture(scope="module")
def ours(shared_data):
    tokenizer = BertTokenizer(shared_data / "vocab/bert-base-uncased/vocab.txt")
    books = sorted((shared_data / "corpus/kjv").glob("*.txt"))
    texts = [
        [sentence.encode() for sentence in text]
        for book in books
        for text in read_documents(str(book), Reading(), OddInput())
    ]
    documents = tokenize(texts, tokenizer)
    assert len(documents) == 1189
    histograms = defaultdict(Counter)
    for features in make_examples(documents, tokenizer, Settings(dupe_factor=5), 0):
        is_random = features["next_sentence_labels"][:, 0]
        length = features["input_mask"].sum(axis=1)
        b_length = features["segment_ids"].sum(axis=1) - 1
        predicted = features["masked_lm_weights"] > 0
        positions = features["masked_lm_positions"]
        now = np.take_along_axis(features["input_ids"], positions, axis=1)[predicted]
        before = features["masked_lm_ids"][predicted]
        fate = np.where(
            now == tokenizer.mask_token_id, "mask", np.where(now == before, "kept", "random")
        )
        for name, values in {
            "length": length,
            "a_length": length - 3 - b_length,
            "b_length_next": b_length[is_random == 0],
            "b_length_random": b_length[is_random == 1],
            "masked": predicted.sum(axis=1),
            "random_next": is_random,
            "position": positions[predicted],
            "fate": fate,
        }.items():
            histograms[name].update(map(str, values.tolist()))
    return histograms


def cumulative(histogram, keys):
    counts = np.array([histogram.get(key, 0) for key in keys])
    return np.cumsum(counts) / counts.sum()


@pytest.mark.parametrize(
    "name",
    [
        "length",
        "a_length",
        "b_length_next",
        "b_length_random",
        "masked",
        "random_next",
        "position",
        "fate",
    ],
)
def test_distribution_matches_google(google, ours, name):
    for run in google:
        keys = sorted(run[name].keys() | ours[name].keys(), key=lambda key: key.zfill(6))
        distance = np.abs(cumulative(run[name], keys) - cumulative(ours[name], keys)).max()
        assert distance < BOUND


def test_number_of_examples_matches_google(google, ours):
    for run in google:
        ratio = sum(ours["length"].values()) / sum(run["length"].values())
        assert abs(ratio - 1) < 0.02
