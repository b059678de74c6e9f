"""Texts to tokenized examples: the layout of BERT's inputs, and what is cut."""

import numpy as np
import pytest
from keras_bert.tasks.classification.features import LINES, tokenize_texts

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.texts import Texts
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.classification.conftest import VOCAB


def texts(first, second=None):
    n = len(first)
    return Texts("a.tsv", first, second, None, list(range(n)), [str(i) for i in range(n)])


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCAB)


def pieces(examples, index):
    rows = list(examples.rows(examples.input_ids))
    return " ".join(VOCAB[piece] for piece in rows[index])


def test_one_text_and_a_pair(tokenizer):
    one = tokenize_texts(texts(["Good films"]), None, tokenizer, 16)
    assert pieces(one, 0) == "[CLS] good film ##s [SEP]"
    assert one.segment_ids.tolist() == [0] * 5
    pair = tokenize_texts(texts(["it is"], ["a book"]), np.array([1]), tokenizer, 16)
    assert pieces(pair, 0) == "[CLS] it is [SEP] a book [SEP]"
    assert pair.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert pair.labels["labels"].tolist() == [1]


def test_a_pair_loses_pieces_from_the_end_of_its_longer_side(tokenizer):
    pair = texts(["it is a very good book ."], ["bad film"])
    cut = tokenize_texts(pair, None, tokenizer, 8)
    assert pieces(cut, 0) == "[CLS] it is a [SEP] bad film [SEP]"


def test_many_texts_keep_their_order_and_their_labels(tokenizer):
    n = 2 * LINES + 7
    words = ["good", "bad", "film"]
    many = tokenize_texts(
        texts([words[i % 3] for i in range(n)]), np.arange(n, dtype=np.int32), tokenizer, 8
    )
    assert len(many) == n
    assert many.input_ids.reshape(n, 3)[:, 1].tolist() == [
        VOCAB.index(words[i % 3]) for i in range(n)
    ]
    assert many.labels["labels"].tolist() == list(range(n))


def test_half_a_character_of_json_is_no_obstacle(tokenizer):
    assert pieces(tokenize_texts(texts(["good \ud800"]), None, tokenizer, 8), 0).startswith(
        "[CLS] good"
    )


def test_a_length_without_room_for_a_pair_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"max_seq_length: expected at least 5 for a pair, got 4"):
        tokenize_texts(texts(["a"], ["a"]), None, tokenizer, 4)
