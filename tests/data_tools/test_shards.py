"""Tests of making a shard: from documents to records of the kind given by the settings."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.settings import Settings
from data_tools.shards import make_examples, tokenize
from keras_bert.text.tokenizer import BertTokenizer

WORDS = [f"word{number}" for number in range(200)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", *(f"##{n}" for n in range(200))]
CLS, SEP = 2, 3

STATIC = {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}
ALWAYS = {"input_ids", "input_mask", "segment_ids", "next_sentence_labels"}
PACKED = {"position_ids", "example_ids", "next_sentence_positions", "next_sentence_weights"}

KINDS = [
    {"next_sentence": next_sentence, "dynamic": dynamic, "pack": pack}
    for next_sentence in ("random", "order", "none")
    for dynamic in (False, True)
    for pack in (False, True)
]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCAB)


def texts(num_documents=40, seed=0, longest=8):
    """Returns documents whose sentences consist of words of two tokens."""
    rng = np.random.default_rng(seed)
    return [
        [
            " ".join(rng.choice(WORDS, rng.integers(1, longest))).encode()
            for _ in range(rng.integers(1, 12))
        ]
        for _ in range(num_documents)
    ]


def settings_of(**kind):
    values = {"max_seq_length": 32, "max_predictions_per_seq": 8, "dupe_factor": 3, "num_shards": 2}
    return Settings(**values | kind)


def all_features(documents, tokenizer, settings, index=0):
    batches = list(make_examples(documents, tokenizer, settings, index))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_features_of_every_kind(tokenizer, kind):
    settings = settings_of(**kind)
    features = all_features(tokenize(texts(), tokenizer), tokenizer, settings)
    expected = ALWAYS | (set() if settings.dynamic else STATIC)
    assert features.keys() == expected | (PACKED if settings.pack else set())
    ids, mask, segment = (features[n] for n in ("input_ids", "input_mask", "segment_ids"))
    example_ids = features.get("example_ids", mask)

    assert (np.diff(mask.astype(int), axis=1) <= 0).all()  # real tokens, then padding
    assert not ids[mask == 0].any()
    assert not segment[mask == 0].any()
    np.testing.assert_array_equal(example_ids > 0, mask > 0)
    assert (ids[:, 0] == CLS).all()
    if settings.next_sentence == "none":
        assert not segment.any()
        assert not features["next_sentence_labels"].any()
    else:
        assert set(np.unique(features["next_sentence_labels"])) == {0, 1}

    for row in range(0, len(ids), 7):
        for number in range(1, example_ids[row].max() + 1):
            inside = np.flatnonzero(example_ids[row] == number)
            assert (np.diff(inside) == 1).all()
            assert ids[row, inside[-1]] == SEP
            # Static masking may draw [SEP] as a random token.
            if settings.next_sentence != "none" and settings.dynamic:
                seps = inside[ids[row, inside] == SEP]
                assert len(seps) == 2
                np.testing.assert_array_equal(segment[row, inside] == 1, inside > seps[0])
            if settings.pack:
                np.testing.assert_array_equal(
                    features["position_ids"][row, inside], np.arange(len(inside))
                )
                assert features["next_sentence_positions"][row, number - 1] == inside[0]
    if settings.pack:
        weights = features["next_sentence_weights"]
        np.testing.assert_array_equal(weights.sum(axis=1), example_ids.max(axis=1))
        assert weights.shape == (len(ids), 8)
        assert not features["position_ids"][mask == 0].any()
        empty = weights == 0
        assert not features["next_sentence_labels"][empty].any()
        assert not features["next_sentence_positions"][empty].any()
    if not settings.dynamic:
        chosen = features["masked_lm_positions"][features["masked_lm_weights"] > 0]
        assert (chosen > 0).all()


@pytest.mark.parametrize("next_sentence", ["random", "order", "none"])
def test_packing_keeps_the_examples_and_uses_fewer_rows(tokenizer, next_sentence):
    """Checks that packed rows hold exactly the examples of unpacked rows."""
    documents = tokenize(texts(200, longest=3), tokenizer)
    examples = []
    for pack in (False, True):
        settings = settings_of(
            next_sentence=next_sentence, pack=pack, dynamic=True, short_seq_prob=0.5
        )
        features = all_features(documents, tokenizer, settings)
        example_ids = features.get("example_ids", features["input_mask"])
        found = []
        for row, ids in enumerate(features["input_ids"]):
            for number in range(1, example_ids[row].max() + 1):
                inside = example_ids[row] == number
                label = int(features["next_sentence_labels"][row, number - 1])
                segments = features["segment_ids"][row, inside]
                found.append((ids[inside].tolist(), segments.tolist(), label))
        examples.append((len(features["input_ids"]), sorted(found)))
    (unpacked_rows, unpacked), (packed_rows, packed) = examples
    assert packed == unpacked
    assert packed_rows < 0.9 * unpacked_rows


# --- the King James Bible ---


# tests/golden/make_data_golden.py counted Google's examples for two seeds, with five copies of
# 1,189 documents. Examples of one document are not independent, so the bound is the noise between
# seeds. The largest distance between two cumulative distributions (Kolmogorov-Smirnov) was up to
# 0.0127 between Google's two runs, and up to 0.0167 between four of our runs and Google's.
BOUND = 0.02
NAMES = ("length", "a_length", "b_length_next", "b_length_random")
NAMES += ("masked", "random_next", "position", "fate")


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
        values = (
            *(length, length - 3 - b_length, b_length[is_random == 0], b_length[is_random == 1]),
            *(predicted.sum(axis=1), is_random, positions[predicted], fate),
        )
        for name, array in zip(NAMES, values, strict=True):
            histograms[name].update(map(str, array.tolist()))
    return histograms


def cumulative(histogram, keys):
    counts = np.array([histogram.get(key, 0) for key in keys])
    return np.cumsum(counts) / counts.sum()


@pytest.mark.parametrize("name", NAMES)
def test_distribution_matches_google(google, ours, name):
    for run in google:
        keys = sorted(run[name].keys() | ours[name].keys(), key=lambda key: key.zfill(6))
        distance = np.abs(cumulative(run[name], keys) - cumulative(ours[name], keys)).max()
        assert distance < BOUND


def test_number_of_examples_matches_google(google, ours):
    for run in google:
        ratio = sum(ours["length"].values()) / sum(run["length"].values())
        assert abs(ratio - 1) < 0.02
