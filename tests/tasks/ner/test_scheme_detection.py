"""Tests the detection of a file's tag scheme, and the sequences that each scheme allows."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import Sentence
from keras_bert.tasks.ner.scheme_detection import check_tags
from keras_bert.tasks.ner.tag_schemes import to_iob2

SAME = {
    "iob1": "I-PER I-PER O I-LOC B-LOC I-ORG I-ORG I-ORG",
    "iob2": "B-PER I-PER O B-LOC B-LOC B-ORG I-ORG I-ORG",
    "bioes": "B-PER E-PER O S-LOC S-LOC B-ORG I-ORG E-ORG",
    "bilou": "B-PER L-PER O U-LOC U-LOC B-ORG I-ORG L-ORG",
    "bmes": "B-PER E-PER O S-LOC S-LOC B-ORG M-ORG E-ORG",
    "bmewo": "B-PER E-PER O W-LOC W-LOC B-ORG M-ORG E-ORG",
}


NO_TAGS = ["X-PER", "O-PER", "-PER", "b-PER", "B-", "I-", "O-", "B_PER", "PER-B", "PER_I", "o", "0"]
# Tags of a scheme, but not beside B-PER and E-PER.
MISPLACED = ["PER", "BI-PER", "U-PER", "L-PER"]


def sentence(tags, line=1):
    tags = tuple(tags.split())
    return Sentence(("w",) * len(tags), tags, line)


@pytest.mark.parametrize("scheme", SAME)
def test_scheme_of_a_file_is_detected(scheme):
    sentences = [sentence("O O"), sentence(SAME[scheme])]
    rows, *found = check_tags(sentences, "f", strict=True)
    assert found == [scheme, 0]
    assert [to_iob2(row) for row in rows] == [["O", "O"], SAME["iob2"].split()]


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
    assert check_tags(sentences, "f", scheme)[1:] == (scheme, 1)
    with pytest.raises(InputError, match=f"f, line {line}: {scheme} does not allow {tag}"):
        check_tags(sentences, "f", scheme, strict=True)


@pytest.mark.parametrize(
    "tag",
    [*NO_TAGS, *MISPLACED],
)
def test_tag_of_no_scheme_is_rejected(tag):
    message = f"f, line 8: tag '{tag}'; expected O, or B, I, E or S "
    with pytest.raises(InputError, match=message):
        check_tags([sentence(f"O {tag}", line=7), sentence("B-PER E-PER")], "f")
    if tag not in MISPLACED:
        with pytest.raises(InputError, match=message):
            check_tags([sentence(f"O {tag}", line=7), sentence("MISC MISC")], "f")


def scheme_of(tags, **settings):
    (row,), scheme, _ = check_tags([sentence(tags)], "f", **settings)
    return scheme, " ".join(to_iob2(row))


def test_scheme_of_ambiguous_tags():
    # Types without a prefix, if no tag has one.
    assert scheme_of("PER PER O LOC BI-PER") == ("io", "B-PER I-PER O B-LOC B-BI-PER")
    assert scheme_of("O person-actor B person-actor") == (
        "io",
        "O B-person-actor B-B B-person-actor",
    )
    # The word outside of entities must be O; parts of speech are no types.
    with pytest.raises(InputError, match=r"line 1: tag 'NN'; .* set --tag_scheme=io"):
        scheme_of("NN VBZ NN")
    assert scheme_of("NN T-cell NN", scheme="io") == ("io", "B-NN B-T-cell B-NN")
    # Prefixes without a type, and of one word.
    assert scheme_of("B I O I") == ("iob2", "B I O B")
    assert scheme_of("B M E S") == ("bmes", "B I I B")
    assert scheme_of("O S-PER") == ("bioes", "O B-PER")
    assert scheme_of("O U-PER") == ("bilou", "O B-PER")
    assert scheme_of("O I-PER I-PER") == ("iob1", "O B-PER I-PER")
    assert scheme_of("B-PER L-PER", scheme="bilou", strict=True) == ("bilou", "B-PER I-PER")
    with pytest.raises(InputError, match="line 2: bilou does not allow 'I-PER' between O and"):
        scheme_of("O I-PER O", scheme="bilou", strict=True)


def test_unknown_labels_are_next_to_any_tag():
    assert scheme_of("- L-PER O B-PER - L-LOC", strict=True) == ("bilou", "- B-PER O B-PER - B-LOC")
    with pytest.raises(
        InputError, match=r"f: has the tag - .unknown label., but not O; expected O"
    ):
        scheme_of("- B-PER")
