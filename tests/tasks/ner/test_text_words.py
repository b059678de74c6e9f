"""Tests splitting running text into words as corpora do, with character positions."""

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.tasks.ner.text_words import TextWords
from keras_bert.text.offsets import byte_to_char_offsets
from keras_bert.text.tokenizer import BertTokenizer

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(*CHARACTERS, *".,:;-&@#_/'中国"),
    *(f"##{character}" for character in CHARACTERS),
]


def listed(words, spans):
    """Returns the first and last character of each word, as a list per text."""
    starts, ends = (words.with_values(values).to_list() for values in (spans.starts, spans.ends))
    return [[*zip(*row, strict=True)] for row in zip(starts, ends, strict=True)]


@pytest.fixture(scope="module")
def words_of():
    """Returns a function that splits texts into words."""
    split = tf.function(
        TextWords(BertTokenizer(VOCAB)).split, input_signature=[tf.TensorSpec([None], tf.string)]
    )

    def words(*texts):
        found, spans = split(tf.constant(texts))
        of_bytes = listed(found, spans._replace(starts=spans.byte_starts, ends=spans.byte_ends))
        of_characters = listed(found, spans)
        words = [
            [text[start:end] for start, end in row]
            for text, row in zip(texts, of_characters, strict=True)
        ]
        assert words == [
            [text.encode()[start:end].decode() for start, end in row]
            for text, row in zip(texts, of_bytes, strict=True)
        ]
        return words

    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\tc\nd", "a|b|c|d"),
        ("London. (York)", "London|.|(|York|)"),
        ("Jean-Paul at AT&T, AC/DC", "Jean-Paul|at|AT&T|,|AC/DC"),
        ("U.S. and N.E.R.D.", "U.S.|and|N.E.R.D."),
        ("@user #tag a@b.de snake_case", "@user|#tag|a@b.de|snake_case"),
        ("1,000 at 7:30, a,b c:d", "1,000|at|7:30|,|a|,|b|c|:|d"),
        ("it costs 3.5.", "it|costs|3.5|."),
        ("Smith's l'Italie", "Smith|'|s|l|'|Italie"),
        ("a - b -c d- . e", "a|-|b|-|c|d|-|.|e"),
        ("end...next --", "end|.|.|.|next|-|-"),
        ("中国-a a-中国", "中|国|-|a|a|-|中|国"),
        ("A\u0301l-b\u00e9", "A\u0301l-b\u00e9"),
        ("ßx-a", "ßx-a"),  # a word of unknown characters
        ("ß-a", "ß|-|a"),  # one unknown character may be anything
        ("", ""),
        (" \u200b\x01 ", ""),
    ],
)
def test_words_are_split_as_in_corpora(words_of, text, words):
    assert words_of(text) == [words.split("|") if words else []]


@pytest.mark.slow
def test_words_are_not_joined_across_texts(words_of):
    assert words_of("a-", "b", "@", "c", "", ".", "d") == [
        *(["a", "-"], ["b"], ["@"], ["c"], [], ["."], ["d"]),
    ]


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
    tokenizer = BertTokenizer(vocab)
    ids, *places = tokenizer.tokenize_with_offsets(texts)
    of_bert_words = []
    for tokens, starts, ends in zip(
        *(x.to_list() for x in (ids, *(byte_to_char_offsets(texts, place) for place in places))),
        strict=True,
    ):
        first = [i for i, token in enumerate(tokens) if not tokenizer.vocab[token].startswith("##")]
        last = [i - 1 for i in [*first, len(tokens)][1:]]
        of_bert_words.append([(starts[i], ends[j]) for i, j in zip(first, last, strict=True)])
    joined = listed(*tf.function(TextWords(tokenizer).split)(tf.constant(texts)))
    of_white_space = [[word.span() for word in re.finditer(r"\S+", text)] for text in texts]

    def share(words):
        """Returns the percentage of entities whose words are all among those found."""
        hits = [set(w) <= set(row) for row, spans in zip(words, gold, strict=True) for w in spans]
        assert len(hits) == 3891
        return round(100 * np.mean(hits), 1)

    # The figures that text_words.py documents.
    assert share(joined) == 98.5
    assert share(of_bert_words) == 96.3
    assert share(of_white_space) == 75.6
