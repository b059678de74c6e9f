"""Tests that tokens from the cache of words are those of the tokenizer's graph."""

import itertools
import lzma
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert.errors import InputError
from keras_bert.tasks.text_processor import TextProcessor
from keras_bert.text import word_cache
from keras_bert.text.settings import UserToken
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS

VOCAB = [
    *SPECIAL_TOKENS,
    *("the", "a", "b", "##b", "##the", "x", "##x", "σ", "ς", "##σ", "##ς", "α", "##α", "e", "é"),
    *(".", ",", "'", "-", "[", "]", "#", "漢", "url", "mask", "\u0301", "T", "##T", "Σ", "##Σ"),
    *("[URL]", "x.y", "<e>", "é,", "’", "—", "‾"),
]
TOKENIZERS = {
    "uncased": {},
    "cased": {"do_lower_case": False},
    "accents": {"strip_accents": False},
    "ideographs": {"tokenize_chinese_chars": False},
    "special": {"keep_special_tokens": True},
    "letters": {"user_tokens": ["url"]},
    "exact": {"user_tokens": ["[URL]", "x.y", "é,"]},
    "normalized": {"user_tokens": [UserToken("[URL]", normalized=True), "<e>"]},
    "short": {"max_input_chars_per_word": 5},
}
# Parts that may depend on their neighbors: white space, punctuation, accents, characters that are
# dropped, sigmas, bytes that are not UTF-8, tokens that stay whole, and words of 15 to 17 bytes.
PARTS = [
    *(" ", "  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u2028", "\u3000"),
    *(".", ",", "'", "-", "#", "[", "]", "’", "—", "¿", "\u0301", "\u0483", "\u0903", "\u200d"),
    *("‐", "‧", "‰", "‾", "‿", "\u200f", "\u202a", "\u202f", "—\u0301", "’,"),
    *(
        "\0",
        "\x01",
        "\x7f",
        "\ufffd",
        "\u00ad",
        "Σ",
        "σ",
        "α",
        "Α",
        "漢",
        "字",
        "가",
        "İ",
        "ß",
        "é",
    ),
    *("the", "The", "a", "b", "x", "thethe", "xx", "[URL]", "[url]", "url", "<e>", "[MASK]", "x.y"),
    *("é,", "e\u0301", "😀", "thexthexthexthe", "thexthexthexthex", "thexthexthexthexb", "x" * 300),
    *("\ufdd5", "\ufdd6", "\ufdd7"),
]
BYTES = [
    *(part.encode() for part in PARTS),
    b"\xff",
    b"\xce",
    b"\xa3",
    b"\xe6\xbc",
    b"\xed\xa0\x80",
    b"\xe2\x80",
    b"\x80\x99",
]


def tokenizer_of(name):
    return BertTokenizer(VOCAB, **TOKENIZERS[name])


def in_graph(function, *specs):
    specs = specs or [tf.TensorSpec([None], tf.string)]
    return tf.function(function, input_signature=specs, autograph=False)


def assert_equal(ragged, expected, texts):
    for array, other in zip(ragged, expected, strict=True):
        assert array.dtype == other.dtype
        wrong = np.flatnonzero(np.diff(array.row_splits) != np.diff(other.row_splits))
        if not wrong.size:
            wrong = np.flatnonzero(array.values.numpy() != other.values.numpy())
            wrong = np.searchsorted(other.row_splits, wrong, side="right") - 1
        assert [texts[row] for row in wrong[:3]] == []


def check(tokenizer, batches):
    ids = in_graph(tokenizer.tokenize)
    offsets = in_graph(tokenizer.tokenize_with_offsets)
    for batch in batches:
        strings = [text.decode("utf-8", "ignore") for text in batch]
        is_valid = [text.encode() for text in strings] == batch
        expected = offsets(batch)
        assert_equal([ids(batch)], expected[:1], batch)
        for texts in (batch, strings):
            if texts is strings and not is_valid:
                expected = offsets(strings)
            assert_equal([tokenizer.tokenize(texts)], expected[:1], texts)
            assert_equal(tokenizer.tokenize_with_offsets(texts), expected, texts)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_of_parts_that_depend_on_their_neighbors(name):
    rng = np.random.default_rng(0)
    # One capital sigma prevents the separation of punctuation from the texts around it.
    without_sigma = [part for part in BYTES if part != "Σ".encode()]
    batches = []
    for parts in (without_sigma, BYTES):
        lengths = rng.integers(1, 12, 10_000)
        texts = [b"".join(rng.choice(np.array(parts, object), length)) for length in lengths]
        texts += [b"".join(pair) for pair in itertools.product(parts, repeat=2)]
        batches.append(texts)
    check(tokenizer_of(name), batches)


@given(st.lists(st.lists(st.sampled_from(BYTES) | st.text().map(str.encode)).map(b"".join)))
@settings(max_examples=100, deadline=None)
def test_generated_texts(texts):
    expected = UNCASED_OFFSETS(tf.constant(texts, tf.string))
    assert_equal(UNCASED.tokenize_with_offsets(texts), expected, texts)


UNCASED = tokenizer_of("uncased")
UNCASED_OFFSETS = in_graph(UNCASED.tokenize_with_offsets)
SUFFIXES = (".txt", ".tsv", ".json", ".conll")
VOCABULARIES = {
    "bert-base-uncased": True,
    "bert-base-cased": False,
    "bert-base-chinese": True,
    "bert-base-multilingual-cased": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", VOCABULARIES)
def test_real_text(shared_data, folder):
    """Compares a quarter of the lines of each file with each vocabulary, all lines with one."""
    vocab = shared_data / "vocab" / folder / "vocab.txt"
    tokenizer = BertTokenizer(vocab, do_lower_case=VOCABULARIES[folder])
    paths = [path for path in sorted(shared_data.rglob("*")) if path.suffix in SUFFIXES]
    batches = [[line for line in path.read_bytes().split(b"\n") if line] for path in paths]
    batches.append(lzma.decompress(min(shared_data.rglob("*.txt.xz")).read_bytes()).split(b"\n"))
    assert sum(map(len, batches)) > 200_000
    first = [*VOCABULARIES].index(folder)
    check(tokenizer, (lines[first::4] for lines in batches))


def test_pairs_become_the_inputs_of_the_graph():
    processor = TextProcessor(UNCASED, SimpleNamespace(max_seq_length=8))
    texts = ["The cat, a Σ.", "x", "", "b b b b b b b"], ["a.b", "the the the", "é", "e e e e e e"]
    spec = tf.TensorSpec([None], tf.string)
    expected = in_graph(processor.preprocess, spec, spec)(*texts)
    rows = processor.preprocess(*map(tf.constant, texts))
    assert_equal(rows[:2], expected[:2], texts[0])
    np.testing.assert_array_equal(rows.truncated, expected.truncated)


def test_punctuation_divides_units():
    calls = []

    def tokenize(units):
        calls.extend(units)
        return [np.arange(len(units), dtype=np.int32)], np.ones(len(units), np.int64)

    cache = word_cache.WordCache(tokenize, 1, do_lower_case=True, has_user_tokens=False)
    _, splits = cache(["A’b — c,”", "d…", "é’é", "d", "d—"])
    assert sorted(unit.decode() for unit in calls) == sorted([*"a’b—c,”d…", "é’é"])
    assert [*np.diff(splits)] == [7, 2, 1, 1, 2]


def test_size_is_bounded(monkeypatch):
    monkeypatch.setattr(word_cache, "_MAX_UNITS", 100)
    monkeypatch.setattr(word_cache, "_MAX_LONG_BYTES", 10_000)
    calls = []

    def tokenize(units):
        calls.extend(units)
        return [np.array([len(unit) for unit in units], np.int32)], np.ones(len(units), np.int64)

    cache = word_cache.WordCache(tokenize, 1, do_lower_case=True, has_user_tokens=False)
    for number in itertools.count():
        words = [b"%d" % word for word in range(number, number + 10)]
        (lengths,), splits = cache([b" ".join(words), b"long" * number])
        assert [*lengths[:10]] == [*map(len, words)]
        assert [*np.diff(splits)] == [10, number > 0]
        assert cache._num_slots <= 120
        if len(calls) > 1000:
            break
    calls.clear()
    cache([b" ".join(words)] * 2)
    assert calls == []  # Words that are in the cache are not tokenized again.


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_cache_is_correct_after_a_failure(error):
    tokenizer = tokenizer_of("uncased")
    texts = ["the a b, " + "thethe" * 9, "x b", "the x"]
    expected = in_graph(tokenizer.tokenize)(texts)
    insert, tokenize = word_cache.WordCache._insert, word_cache.WordCache._tokenize_new
    for name, function in (("_insert", insert), ("_tokenize_new", tokenize)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(word_cache.WordCache, name, raising(function, error))
            with pytest.raises(error):
                tokenizer.tokenize(texts)
        assert_equal([tokenizer.tokenize(texts)], [expected], texts)


def raising(function, error):
    def call(*args):
        function(*args)
        raise error

    return call


@pytest.mark.parametrize(
    ("texts", "problem"),
    [("text", "has the shape []"), (["a", 1], "contains 1"), ([b"a", None], "contains None")],
)
def test_other_values_are_rejected(texts, problem):
    with pytest.raises(InputError, match=f"^text {re.escape(problem)}.*; expected "):
        UNCASED.tokenize(texts)


def test_lone_surrogates_are_ignored():
    ids = UNCASED.tokenize(["the\ud800 é,", "\udfffa"])
    assert ids.to_list() == UNCASED.tokenize(["the é,", "a"]).to_list()


def test_threads_share_a_tokenizer():
    tokenizer = tokenizer_of("uncased")
    texts = [[f"{'the' * (i % 7)} a{i},b{j} x" for i in range(200)] for j in range(40)]
    with ThreadPoolExecutor(4) as pool:
        rows = [*pool.map(tokenizer.tokenize, texts)]
    graph = in_graph(tokenizer.tokenize)
    for ids, batch in zip(rows, texts, strict=True):
        assert_equal([ids], [graph(batch)], batch)
