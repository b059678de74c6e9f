"""Tests of the corpus made from the docstrings of the Python installation."""

import csv

import pytest

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.python_corpus import PACKAGES, PROGRAM, sentences_of
from keras_bert.programs.program import call

DOCSTRING = """foo(bar, baz=None) -> int

    Return the :class:`Foo` of *bar*.  It must be a string, e.g. an
    absolute path.

    >>> foo("It is not one either.")
    'Nor is the answer of the call.'

    See also.

    x = foo(the_bar)  # That is it.

    The {a: b, c: d} = [e] | <f> of it.

    Not finished because there is no
"""


def test_sentences_of_a_docstring():
    assert sentences_of(DOCSTRING) == [
        "Return the Foo of bar.",
        "It must be a string, e.g. an absolute path.",
    ]


@pytest.mark.slow
def test_corpus_and_labelled_sentences(tmp_path):
    assert call(PROGRAM, ["keras-bert python-corpus", f"--output_dir={tmp_path}"]) == 0
    train, held_out = (
        list(read_documents(str(tmp_path / f"{name}.txt"), Reading(), OddInput()))
        for name in ("train", "eval")
    )
    assert 0.02 < len(held_out) / (len(held_out) + len(train)) < 0.09
    sentences = {sentence for document in train for sentence in document}
    assert len(sentences) > 10_000
    assert not any(sentence in sentences for document in held_out for sentence in document)
    rows = []
    for name in ("train", "eval"):
        with open(tmp_path / f"labelled_{name}.csv", newline="", encoding="utf-8") as file:
            header, *part = csv.reader(file)
        assert header == ["text", "label"]
        assert {label for _, label in part} == {*PACKAGES}
        rows.append({text for text, _ in part})
    assert not rows[0] & rows[1]
    assert 0.1 < len(rows[1]) / len(rows[0] | rows[1]) < 0.3
