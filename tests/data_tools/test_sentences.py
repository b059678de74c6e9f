"""Splitting prose into sentences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed in.", "Nobody came!", "Why?"],
        ["Mr. Bennet said no to Dr. J. R. Smith.", "He left at 3.15 p.m. on Jan. 5 for St. Ives."],
        ["See Fig. 3 and pp. 7 f., e.g. the U.S. Senate.", "It cost $3.50."],
        ['"Is it?" she asked.', '"It is!"', "“My dear.”", "He went (at last.)", "Done."],
        ["Really?!", "Yes... perhaps.", "Well…", "No.", "Oh no. 5 it is."],
        ["It works with None, etc. and so on.", "Call foo.bar() first.", "1990 was a good year."],
        ["I did it for you and I.", "They did not."],
    ],
)
def test_english(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["今天天气很好。", "我们去公园吧！", "你来吗？！", "“好的。”", "他说。"],
        ["吾輩は猫である。", "名前はまだ無い。", "「行こう。」と言った。"],
    ],
)
def test_chinese_and_japanese_need_no_space(sentences):
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences", [["यह एक वाक्य है।", "यह दूसरा है।"], ["هل أنت بخير؟", "نعم."], ["Où est-il ?", "Là."]]
)
def test_other_stops(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_blank_text_has_no_sentence():
    assert split_sentences("") == split_sentences(" \n ") == []


@given(st.text(alphabet="aAb1 .!?…。」\"')(,\n", max_size=60))
@settings(deadline=None)
def test_nothing_but_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
