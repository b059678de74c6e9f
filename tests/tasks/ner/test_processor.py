"""Tests tagging in the graph: entities of each scheme, and invalid window lengths."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor, entity_words
from keras_bert.tasks.ner.tag_schemes import entities, iob2_tags
from keras_bert.text.tokenizer import BertTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##x", *"abcdefghijklmnop"]
SCHEMES = {
    "iob2": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"],
    "iob1": ["I-PER", "O", "B-PER", "I-creative-work", "B-creative-work"],
    "bioes": ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("LOC", "PER"))],
    "untyped": ["B", "I", "O"],
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_any_scheme_equal_conlleval(scheme):
    labels = SCHEMES[scheme]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.integers(0, len(labels) - 1), max_size=8), max_size=6))
    def check(rows):
        tags = tf.RaggedTensor.from_row_lengths(
            tf.constant([tag for row in rows for tag in row], tf.int32),
            tf.constant([len(row) for row in rows], tf.int64),
        )
        inside, starts = (tags.with_values(v).to_list() for v in entity_words(labels, tags))
        for row, *found in zip(rows, inside, starts, strict=True):
            expected = iob2_tags(entities([labels[tag] for tag in row]), len(row))
            assert [tag != "O" for tag in expected] == found[0]
            assert [tag[0] == "B" for tag in expected] == found[1]

    check()


def test_texts_and_words_of_one_sentence_give_the_same_entities():
    labels = SCHEMES["bioes"]
    processor = TaggingProcessor(BertTokenizer(VOCAB), TaggerSettings(tuple(labels), 8))
    words = ["axx", "b", "c", "dxxx", "e", "f"] * 3
    text = processor.preprocess(tf.constant([" ".join(words)]))
    sentence = processor.preprocess_words(tf.ragged.constant([words]))
    assert text.input_ids.to_list() == sentence.input_ids.to_list()
    size = len(text.input_ids.values)
    logits = np.random.default_rng(0).normal(size=[size, len(labels)]).astype(np.float32)
    found = processor.decode({"logits": logits}, text)
    tagged = processor.decode({"logits": logits}, sentence)
    tags = [tag.decode() for tag in tagged["tags"].to_list()[0]]
    expected = [
        (
            kind,
            " ".join(words[first:last]),
            pytest.approx(tagged["scores"][0, first:last].numpy().mean()),
        )
        for kind, first, last in entities(tags)
    ]
    columns = (found[name].to_list()[0] for name in ("types", "texts", "scores"))
    assert [
        (kind.decode(), text.decode(), score) for kind, text, score in zip(*columns, strict=True)
    ] == expected


def test_windows_without_room_for_a_token_are_rejected():
    with pytest.raises(InputError, match=r"^max_seq_length=2: expected at least 3"):
        TaggerSettings(("O",), 2)
