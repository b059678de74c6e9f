"""Tests the conversion of texts to BERT's token ids, with truncation, and of logits to labels."""

import pytest
import tensorflow as tf

from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.prepared import CHUNK_SIZE, prepare
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer
from tests.tasks.classification.conftest import VOCAB


def processor(max_seq_length=16, labels=("a", "b", "c"), problem_type="single_label"):
    settings = ClassifierSettings(labels, problem_type, max_seq_length)
    return ClassificationProcessor(BertTokenizer(VOCAB), settings)


def examples_of(*columns, max_seq_length=16):
    return prepare(processor(max_seq_length).preprocess, columns).examples


def tokens(examples, index=0):
    rows = list(examples.rows(examples.input_ids))
    return " ".join(VOCAB[token] for token in rows[index])


def decode(logits, **settings):
    inputs = Segments(None, None, tf.fill([len(logits)], False))
    return processor(**settings).decode({"logits": tf.constant(logits, tf.float32)}, inputs)


def test_single_text_and_pair():
    one = examples_of(["Good films"])
    assert tokens(one) == "[CLS] good film ##s [SEP]"
    assert one.segment_ids.tolist() == [0] * 5
    pair = examples_of(["it is"], ["a book"])
    assert tokens(pair) == "[CLS] it is [SEP] a book [SEP]"
    assert pair.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("sides", [1, 2])
def test_many_texts_keep_their_order(sides):
    n = 2 * CHUNK_SIZE + 7
    words = ["good", "bad", "film"]
    many = examples_of(*[[words[(i + side) % 3] for i in range(n)] for side in range(sides)])
    assert len(many) == n
    for side, place in enumerate((1, 3)[:sides]):
        expected = [VOCAB.index(words[(i + side) % 3]) for i in range(n)]
        assert many.input_ids.reshape(n, -1)[:, place].tolist() == expected


def test_probabilities_of_large_logits_are_finite():
    assert decode([[1e4, 0.0, 0.0]])["probabilities"].numpy().tolist() == [[1.0, 0.0, 0.0]]
    several = decode([[1e4, -1e4, 0.0]], problem_type="multi_label")["probabilities"]
    assert several.numpy().tolist() == [[1.0, 0.0, 0.5]]
