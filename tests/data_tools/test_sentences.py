"""Tests of splitting prose into sentences."""

import csv
import time
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools import sentences as splitter
from data_tools.corpus import Reading, read_documents
from data_tools.lines import OddInput
from data_tools.python_corpus import PACKAGES, PROGRAM, sentences_of
from data_tools.sentences import LANGUAGES, split_sentences
from keras_bert.programs.program import call


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed in.", "Nobody came!", "Why?"],
        ["Mr. Bennet said no to Dr. J. R. Smith.", "He left at 3.15 p.m. on Jan. 5 for St. Ives."],
        ["See Fig. 3 and pp. 7 f., e.g. the U.S. Senate.", "It cost $3.50."],
        ['"Is it?" she asked.', '"It is!"', "“My dear.”", "He went at last.", "Done."],
        ["Really?!", "Yes... perhaps.", "Well.", "It is 5."],
        ["It works with None, etc. and so on.", "Call foo.bar() first.", "1990 was a good year."],
        ["I did it for you and I.", "They did not."],
    ],
)
def test_english(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("language", "space", "sentences"),
    [
        ("hi", " ", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("ar", " ", ["هل أنت بخير؟", "نعم.", "حسنا."]),
        ("fr", " ", ["Où est-il ?", "Là."]),
        ("de", " ", ["Das ist z.B. Dr. Müller bzw. Frau Meier.", "Am 3. Oktober kam er."]),
        ("zh", "", ["今天天气很好。", "我们去公园吧！", "你来吗？！", "“好的。”", "他说。"]),
        ("ja", "", ["吾輩は猫である。", "名前はまだ無い。", "「行きますか？」", "と彼は聞いた。"]),
        ("en", "", ["今天天气很好。", "名前はまだ無い。"]),
    ],
)
def test_stops_and_abbreviations_of_other_languages(language, space, sentences):
    assert split_sentences(space.join(sentences), language) == sentences


def test_line_ends_become_spaces_and_nul_bytes_are_kept():
    assert split_sentences("It\nrai\0ned. We\nstayed.") == ["It rai\0ned.", "We stayed."]


@pytest.mark.slow
@given(
    st.text(alphabet="aAb1 .!?…。」\"')(,\n\0“é", max_size=60) | st.text(max_size=60),
    st.sampled_from(sorted(LANGUAGES)),
    st.sampled_from([7, 1000]),
)
@settings(deadline=None)
def test_only_white_space_is_lost(text, language, length):
    # Longer texts are split part by part.
    with mock.patch.object(splitter, "_MAX_SEGMENT_LENGTH", length):
        sentences = split_sentences(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
    assert not any("\n" in sentence for sentence in sentences)


def test_long_text_is_split_like_a_short_one():
    sentences = ["Mr. Bennet said no.", "He left at 3.15 p.m. on a Sunday.", "“Why?”"] * 5000
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.slow
@pytest.mark.parametrize("text", ["“a. ", "a"])
def test_splitting_time_is_linear_in_the_text_length(text):
    """An open quote takes sentencex quadratic time; here a megabyte takes about a second."""
    start = time.process_time()
    split_sentences(text * (1_000_000 // len(text)))
    assert time.process_time() - start < 20


# --- the docstrings of the Python installation ---


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
