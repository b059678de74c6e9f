"""Words of texts, windows of words, and examples for a tagger."""

import re
from itertools import groupby, pairwise

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks import prepared
from keras_bert.tasks.ner.data import read_conll
from keras_bert.tasks.ner.processor import (
    TaggerSettings,
    TaggingProcessor,
    TextWords,
    labeled,
    prepare_sentences,
)
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import word_windows
from tests.tasks.ner.conftest import CHARACTER_VOCAB

# --- texts to words ---


def listed(words, spans):
    """Returns the first and last character of each word, as a list per text."""
    starts, ends = (words.with_values(values).to_list() for values in (spans.starts, spans.ends))
    return [[*zip(*row, strict=True)] for row in zip(starts, ends, strict=True)]


# Texts, and their words.
WORDS = {
    "a b\tc\nd": "a|b|c|d",
    "London. (York)": "London|.|(|York|)",
    "Jean-Paul at AT&T, AC/DC": "Jean-Paul|at|AT&T|,|AC/DC",
    "U.S. and N.E.R.D.": "U.S.|and|N.E.R.D.",
    "@user #tag a@b.de snake_case": "@user|#tag|a@b.de|snake_case",
    "1,000 at 7:30, a,b c:d": "1,000|at|7:30|,|a|,|b|c|:|d",
    "it costs 3.5.": "it|costs|3.5|.",
    "Smith's l'Italie": "Smith|'|s|l|'|Italie",
    "a - b -c d- . e": "a|-|b|-|c|d|-|.|e",
    "end...next --": "end|.|.|.|next|-|-",
    "中国-a a-中国": "中|国|-|a|a|-|中|国",
    "A\u0301l-b\u00e9": "A\u0301l-b\u00e9",
    "ßx-a": "ßx-a",  # a word of unknown characters
    "ß-a": "ß|-|a",  # one unknown character may be anything
    "a-": "a|-",
    "": "",
    " \u200b\x01 ": "",
}


@pytest.mark.slow
def test_words_are_split_as_in_corpora():
    split = tf.function(TextWords(BertTokenizer(CHARACTER_VOCAB)).split)
    found, spans = split(tf.constant([*WORDS]))
    of_bytes = listed(found, spans._replace(starts=spans.byte_starts, ends=spans.byte_ends))
    of_characters = listed(found, spans)
    for (text, words), in_text, in_bytes in zip(
        WORDS.items(), of_characters, of_bytes, strict=True
    ):
        assert "|".join(text[start:end] for start, end in in_text) == words
        assert "|".join(text.encode()[start:end].decode() for start, end in in_bytes) == words


@pytest.mark.slow
def test_most_entities_of_a_real_corpus_match_word_boundaries(shared_data):
    # Joins the corpus to running text: closing punctuation and clitics follow without a space.
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    texts, gold = [], []
    for path in sorted((shared_data / "ner" / "wnut17").iterdir()):
        for sentence in read_conll(path):
            text, spans = "", []
            for word in sentence.words:
                is_joined = word in ".,;:!?)]}%…" or re.fullmatch(
                    r"['’](s|m|re|ve|ll|d|t)|n'?t", word
                )
                text += "" if not text or is_joined or text[-1] in "([{" else " "
                spans.append((len(text), len(text) + len(word)))
                text += word
            texts.append(text)
            tags = [tag.partition(",")[0] for tag in sentence.tags]
            gold.append([spans[first:last] for _, first, last in entities(tags)])
    words = listed(*tf.function(TextWords(BertTokenizer(vocab)).split)(tf.constant(texts)))
    hits = [set(w) <= set(row) for row, spans in zip(words, gold, strict=True) for w in spans]
    assert len(hits) == 3891
    assert round(100 * np.mean(hits), 1) == 98.5  # The figure in processor.py.


# --- words to windows ---

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##x", *"abcdefghijklmnop"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCAB)


def windows_of(sentences, tokenizer, max_seq_length, documents=None):
    """Returns the windows of sentences, given as lists of words or texts with spaces."""
    words = [text.split(" ") if isinstance(text, str) else text for text in sentences]
    tokens = tokenizer.tokenize(tf.constant([word for row in words for word in row], tf.string))
    tokens = tf.RaggedTensor.from_row_lengths(tokens, np.array([*map(len, words)], np.int64))
    return word_windows(tokens, tokenizer, max_seq_length, documents)


def shown(windows):
    return [" ".join(VOCAB[i] for i in row) for row in windows.input_ids.to_list()]


def labeled_tokens(windows):
    """Returns the labeled tokens of each window."""
    tokens, first_tokens = windows.input_ids, windows.first_tokens.numpy()
    return [
        "".join(VOCAB[tokens.values[i]] for i in first_tokens if start <= i < end)
        for start, end in pairwise(tokens.row_splits.numpy())
    ]


def test_word_without_tokens_becomes_unk(tokenizer):
    windows = windows_of(["axx b", "c \u200b \x01 d"], tokenizer, 16)
    assert shown(windows) == ["[CLS] a ##x ##x b [SEP]", "[CLS] c [UNK] [UNK] d [SEP]"]
    assert windows.first_tokens.numpy().tolist() == [1, 4, 7, 8, 9, 10]


def test_sentence_without_words_has_no_window(tokenizer):
    for sentences in ([], [[]], [[], ["a"], [], [], ["b", "c"], []]):
        for documents in (None, np.zeros([len(sentences)], np.int64)):
            windows = windows_of(sentences, tokenizer, 8, documents)
            assert windows.input_ids.nrows() == len([*filter(None, sentences)])
            assert len(windows.first_tokens) == sum(map(len, sentences))
            assert len(windows.row_splits) == len(sentences) + 1


@pytest.mark.parametrize("max_seq_length", [3, 8, 22])
def test_word_is_labeled_in_the_window_with_largest_minimum_context(max_seq_length):
    room = max_seq_length - 2
    rng = np.random.default_rng(0)
    # The first token of each word is its number; a few words are longer than a window.
    sizes = [rng.integers(1, room + 3, count).tolist() for count in range(40)]
    words = [word for row in sizes for word in row]
    names = [f"w{index}" for index in range(len(words))]
    tokenizer = BertTokenizer([*VOCAB, *names])
    texts = [name + "x" * (size - 1) for name, size in zip(names, words, strict=True)]
    splits = np.concatenate([[0], np.cumsum([len(row) for row in sizes])])
    sentences = [texts[i:j] for i, j in pairwise(splits)]
    windows = windows_of(sentences, tokenizer, max_seq_length)
    # Each window shows whole words of one sentence.
    starts = np.concatenate([[0], np.cumsum(np.minimum(words, room))])
    spans = []
    for row in windows.input_ids.to_list():
        numbers = [token - len(VOCAB) for token in row if token >= len(VOCAB)]
        spans.append((numbers[0], numbers[-1] + 1))
        assert len(row) - 2 == starts[numbers[-1] + 1] - starts[numbers[0]] <= room
        assert len({np.searchsorted(splits, number, "right") for number in numbers}) == 1
    assert [place for place, _ in groupby(sorted(spans))] == spans

    def context(word, span):
        sentence = np.searchsorted(splits, word, "right") - 1
        left = np.inf if span[0] == splits[sentence] else starts[word] - starts[span[0]]
        right = np.inf if span[1] == splits[sentence + 1] else starts[span[1]] - starts[word + 1]
        return min(left, right)

    window_of = np.searchsorted(windows.input_ids.row_splits, windows.first_tokens, "right") - 1
    for word, window in enumerate(window_of):
        assert windows.input_ids.values[windows.first_tokens[word]] == len(VOCAB) + word
        contexts = [context(word, span) for span in spans if span[0] <= word < span[1]]
        assert context(word, spans[window]) == max(contexts)
        assert len(contexts) <= 3


def test_document_context_fills_a_window_with_words_of_neighboring_sentences(tokenizer):
    texts = ["a b c d", "e f", "g h i j", "k l", "axxx", "b", "cxxx"]
    windows = windows_of(texts, tokenizer, 8, [0, 0, 0, 1, 2, 2, 2])
    assert shown(windows) == [
        "[CLS] a b c d e f [SEP]",  # nothing before it, so all context comes from the other side
        "[CLS] c d e f g h [SEP]",
        "[CLS] e f g h i j [SEP]",
        "[CLS] k l [SEP]",  # another document
        "[CLS] a ##x ##x ##x b [SEP]",
        "[CLS] b c ##x ##x ##x [SEP]",
        "[CLS] b c ##x ##x ##x [SEP]",
    ]
    assert labeled_tokens(windows) == ["abcd", "ef", "ghij", "kl", "a", "b", "c"]


# --- examples ---

SENTENCES = [["a", "bxx", "c"], ["d", "e"], ["f", "g", "h"], ["a"]]


@pytest.mark.parametrize("documents", [None, [0, 0, 0, 1]])
def test_first_tokens_have_the_labels_of_their_words_in_any_chunk(
    monkeypatch, tokenizer, documents
):
    """A document may be longer than a chunk, so document context needs a single one."""
    processor = TaggingProcessor(tokenizer, TaggerSettings(("O",), 8))
    whole = labeled(prepare_sentences(processor, SENTENCES, documents), np.arange(9)).examples
    monkeypatch.setattr(prepared, "_CHUNK_CHARACTERS", 4)
    parts = prepare_sentences(processor, SENTENCES, documents)
    assert len(parts.chunks) == (3 if documents is None else 1)
    examples = labeled(parts, np.arange(9)).examples
    assert examples.sha256 == whole.sha256
    tags = examples.token_labels["tags"]
    words = [VOCAB[token] for token in examples.input_ids[tags >= 0]]
    assert words == [word[0] for sentence in SENTENCES for word in sentence]
    assert tags[tags >= 0].tolist() == [*range(9)]
