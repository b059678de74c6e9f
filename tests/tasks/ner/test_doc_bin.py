"""Tests of reading the DocBin files of spaCy."""

import contextlib
import random
import zlib

import pytest
import spacy
from spacy.tokens import DocBin

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner import doc_bin
from keras_bert.tasks.ner.data import NerSettings, read_data
from keras_bert.tasks.ner.doc_bin import read_doc_bin
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS


@pytest.fixture
def path(tmp_path):
    """Returns a DocBin file: entities, no entities, no annotation."""
    blank = spacy.blank("en")
    docs = [blank(text) for text in ("Ann met 😀 Bo Li.", "Nobody.", "Not annotated.")]
    docs[0].ents = [docs[0].char_span(0, 3, "PER"), docs[0].char_span(10, 15, "PER")]
    docs[1].ents = []
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    return tmp_path / "train.spacy"


def test_texts_and_entities(path):
    first, second, third = read_doc_bin(path)
    assert (first.text, first.spans) == ("Ann met 😀 Bo Li.", [("PER", 0, 3), ("PER", 10, 15)])
    assert (second.spans, third.spans) == ([], None)
    assert third.where == f"{path}, text 3"


def test_entities_become_tags(path):
    tokenizer = BertTokenizer([*SPECIAL_TOKENS, "ann", "met", "bo", "li", "nobody", "."])
    settings = NerSettings(train_file=str(path))
    do = {"do_train": True, "do_eval": False, "do_predict": False}
    train = read_data(settings, new_tokenizer=lambda: tokenizer, **do).train
    assert train.sentences[0].words == ("Ann", "met", "😀", "Bo", "Li", ".")
    assert train.tags == [["B-PER", "O", "O", "B-PER", "I-PER", "O"], ["O", "O"]]
    assert train.counts["misaligned_spans"] == 0


def test_tokens_without_annotation_have_unknown_labels(tmp_path):
    doc = spacy.blank("en")("Ann met Bo Li.")
    doc.set_ents([doc.char_span(0, 3, "PER")], missing=[doc[2:4]])
    DocBin(docs=[doc]).to_disk(tmp_path / "a.spacy")
    tokenizer = BertTokenizer([*SPECIAL_TOKENS, "ann", "met", "bo", "li", "."])
    do = {"do_train": True, "do_eval": False, "do_predict": False}
    settings = NerSettings(train_file=str(tmp_path / "a.spacy"))
    train = read_data(settings, new_tokenizer=lambda: tokenizer, **do).train
    assert train.tags == [["B-PER", "O", "-", "-", "O"]]


def test_spans_of_span_groups_are_counted(tmp_path, caplog):
    docs = [spacy.blank("en")(text) for text in ("Bo.", "Ann met Bo Li.")]
    docs[0].ents = []
    docs[1].ents = [docs[1].char_span(0, 3, "PER")]
    docs[1].spans["sc"] = [docs[1].char_span(0, 3, "PER"), docs[1].char_span(8, 13, "PER")]
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    assert read_doc_bin(tmp_path / "a.spacy")[1].spans == [("PER", 0, 3)]
    assert (
        "a.spacy: ignored spans with a label: 2 in the span group 'sc'; the first is in text 2"
        in (caplog.text)
    )


def test_other_files_are_rejected(path, monkeypatch):
    content = path.read_bytes()
    cases = [b"", b"text", content[:50], zlib.compress(b"text"), zlib.compress(b"\x80")]
    rng = random.Random(0)
    for _ in range(20):
        damaged = bytearray(zlib.decompress(content))
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(zlib.compress(bytes(damaged)))
        with contextlib.suppress(InputError):  # Any other exception fails the test.
            read_doc_bin(path)
    for case in cases:
        path.write_bytes(case)
        with pytest.raises(InputError, match=r"train\.spacy: (is not a DocBin|contains no texts)"):
            read_doc_bin(path)
    monkeypatch.setattr(doc_bin, "_MAX_BYTES", 1 << 20)
    path.write_bytes(zlib.compress(bytes(2 << 20)))
    with pytest.raises(InputError, match="has more than 1048576 bytes, decompressed"):
        read_doc_bin(path)
