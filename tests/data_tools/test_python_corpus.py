"""Tests of the corpus made from the docstrings of the Python installation."""

import csv

import pytest

from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.python_corpus import (
    PACKAGES,
    prose_sentences,
    reads_as_english,
    write_labelled_sentences,
    write_python_corpus,
)

DOCSTRING = """foo(bar, baz=None) -> int

    Return the :class:`~a.Foo` of *bar*, see `the docs <http://x>`_ or ``None``

    The bar is opened first [1]_.  It must be a string, e.g. an
    absolute path.

    Example::

        This is code, not a sentence of the text.
        foo(1)

    >>> foo("It is not one either.")
    'Nor is the answer of the call.'

    Notes
    -----
    * baz is the number of the bars
      that are to be opened.
    * Give None to open all of them.

    :param bar: the bar
    Not finished because there is no
"""


def test_sentences_of_a_docstring():
    assert prose_sentences(DOCSTRING) == [
        "Return the a.Foo of bar, see the docs or None.",
        "The bar is opened first.",
        "It must be a string, e.g. an absolute path.",
        "baz is the number of the bars that are to be opened.",
        "Give None to open all of them.",
    ]


@pytest.mark.parametrize(
    "fragment",
    [
        "x = foo(the_bar)  # That is it.",
        "See also.",
        "the rest of a sentence.",
        "A heading without a stop",
        "Foo bar baz qux.",
        'An open "quote of the text.',
        "The {a: b, c: d} = [e] | <f> of it.",
    ],
)
def test_fragments_and_code_are_skipped(fragment):
    assert not reads_as_english(fragment)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_python_corpus(str(folder))
    return {
        name: list(read_documents(str(folder / f"{name}.txt"), Reading(), OddInput()))
        for name in ("train", "eval")
    }


@pytest.mark.slow
def test_about_a_twentieth_is_held_out_without_shared_sentences(corpus):
    share = len(corpus["eval"]) / (len(corpus["train"]) + len(corpus["eval"]))
    assert 0.02 < share < 0.09
    train = {sentence for document in corpus["train"] for sentence in document}
    assert not any(sentence in train for document in corpus["eval"] for sentence in document)


def test_labelled_sentences_have_their_package_and_are_in_one_file_only(tmp_path):
    counts = write_labelled_sentences(str(tmp_path))
    rows = {}
    for name in counts:
        with open(tmp_path / name, newline="", encoding="utf-8") as file:
            header, *rows[name] = csv.reader(file)
        assert header == ["text", "label"]
        assert len(rows[name]) == counts[name]
    train, held_out = rows["labelled_train.csv"], rows["labelled_eval.csv"]
    assert {label for _, label in train} == {label for _, label in held_out} == {*PACKAGES}
    texts = [text for text, _ in train + held_out]
    assert len(set(texts)) == len(texts) > 1000
    assert 0.1 < len(held_out) / len(texts) < 0.3
