"""Tests the detection of a file's tag scheme, and the sequences that each scheme allows."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.ner.scheme_detection import check_tags, detect_scheme

SAME = {
    "iob1": "I-PER I-PER O I-LOC B-LOC I-ORG I-ORG I-ORG",
    "iob2": "B-PER I-PER O B-LOC B-LOC B-ORG I-ORG I-ORG",
    "bioes": "B-PER E-PER O S-LOC S-LOC B-ORG I-ORG E-ORG",
}


def sentence(tags, line=1):
    tags = tuple(tags.split())
    return Sentence(("w",) * len(tags), tags, line)


@pytest.mark.parametrize("scheme", SAME)
def test_scheme_of_a_file_is_detected(scheme):
    assert detect_scheme([sentence("O O"), sentence(SAME[scheme])]) == scheme
    assert check_tags([sentence(SAME[scheme])], "f", strict=True) == (scheme, 0)


@pytest.mark.parametrize(
    ("scheme", "tags", "line", "tag"),
    [
        ("iob2", "B-PER O I-PER", 12, "'I-PER' between O and its end"),
        ("iob2", "B-PER I-LOC", 11, "'I-LOC' between B-PER and its end"),
        ("iob1", "O B-PER", 11, "'B-PER' between O and its end"),
        ("iob1", "I-LOC B-PER O", 11, "'B-PER' between I-LOC and O"),
        ("bioes", "B-PER O", 11, "'O' between B-PER and its end"),
        ("bioes", "O E-PER", 11, "'E-PER' between O and its end"),
        ("bioes", "B-PER E-LOC", 11, "'E-LOC' between B-PER and its end"),
        ("bioes", "S-PER B-PER", 11, "'B-PER' between S-PER and its end"),
        ("bioes", "I-PER E-PER", 10, "'I-PER' between the sentence's start and E-PER"),
    ],
)
def test_invalid_sequence_is_counted_or_rejected_with_strict(scheme, tags, line, tag):
    sentences = [sentence("O"), sentence(tags, line=10)]
    assert check_tags(sentences, "f", scheme) == (scheme, 1)
    with pytest.raises(InputError, match=f"f, line {line}: {scheme} does not allow {tag}"):
        check_tags(sentences, "f", scheme, strict=True)


@pytest.mark.parametrize(
    "tag", ["PER", "X-PER", "O-PER", "-PER", "BI-PER", "b-PER", "B-", "I-", "O-"]
)
def test_tag_of_no_scheme_is_rejected(tag):
    with pytest.raises(InputError, match=f"f, line 8: tag '{tag}'; expected O, or B, I, E or S"):
        check_tags([sentence(f"O {tag}", line=7)], "f")
