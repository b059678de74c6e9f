"""Preparing sentences for a tagger: in chunks, or with document context all at once."""

import numpy as np
import pytest

from keras_bert.tasks import prepared
from keras_bert.tasks.ner.examples import prepare_sentences
from keras_bert.tasks.ner.processor import TaggerSettings, TaggingProcessor
from keras_bert.text.tokenizer import BertTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
SENTENCES = [["a", "b", "c"], ["d", "e"], ["f", "g", "h"], ["a"]]


@pytest.mark.parametrize("documents", [None, [0, 0, 0, 1]])
def test_long_corpora_have_the_same_windows(monkeypatch, documents):
    """A document may be longer than a chunk, so document context needs a single one."""
    processor = TaggingProcessor(BertTokenizer(VOCAB), TaggerSettings(("O",), 8))
    expected = prepare_sentences(processor, SENTENCES, documents)
    monkeypatch.setattr(prepared, "_CHUNK_CHARACTERS", 4)
    found = prepare_sentences(processor, SENTENCES, documents)
    assert len(expected.chunks) == 1
    assert len(found.chunks) == (3 if documents is None else 1)
    assert np.array_equal(found.examples.input_ids, expected.examples.input_ids)
    assert np.array_equal(found.examples.starts, expected.examples.starts)
