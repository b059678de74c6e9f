"""Tests that each tag scheme gives the same entities, also from invalid sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.tasks.ner.tag_schemes import entities, iob2_tags, label_tags

FOUND = [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5), ("ORG", 5, 8)]
SAME = {
    "iob1": "I-PER I-PER O I-LOC B-LOC I-ORG I-ORG I-ORG",
    "iob2": "B-PER I-PER O B-LOC B-LOC B-ORG I-ORG I-ORG",
    "bioes": "B-PER E-PER O S-LOC S-LOC B-ORG I-ORG E-ORG",
}


@pytest.mark.parametrize("scheme", SAME)
def test_every_scheme_gives_the_same_entities(scheme):
    assert entities(SAME[scheme].split()) == FOUND


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # The entities that conlleval reads from sequences that their scheme does not allow.
        ("I-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("O I-PER O I-PER", [("PER", 1, 2), ("PER", 3, 4)]),
        ("B-PER S-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER", [("PER", 0, 1)]),
    ],
)
def test_invalid_sequences_are_read_like_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_type_may_contain_dashes_or_be_absent():
    assert entities(["B-creative-work", "I-creative-work"]) == [("creative-work", 0, 2)]
    assert entities(["B", "I", "O", "I"]) == [("", 0, 2), ("", 3, 4)]


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O PER LOC", "O I-PER I-LOC"),
        ("LABEL_0 LABEL_1", "I-LABEL_0 I-LABEL_1"),
        ("O DATE-TIME O-PER B-", "O I-DATE-TIME I-O-PER I-B-"),
        # Tags of a scheme stay as they are, with or without types.
        ("I-PER O B-PER S-creative-work E-LOC", "I-PER O B-PER S-creative-work E-LOC"),
        ("B I O", "B I O"),
        ("O B I B-PER", "O B I B-PER"),
        ("O B-PER I-PER L-PER U-PER U-LOC", "O B-PER I-PER E-PER S-PER S-LOC"),
        ("B-PER M-PER E-PER S-PER O", "B-PER I-PER E-PER S-PER O"),
        ("O W-LOC E-LOC B-PER", "O S-LOC E-LOC B-PER"),
        ("B-PER M-PER E-PER W-PER O", "B-PER I-PER E-PER S-PER O"),
        ("O B M E S", "O B I E S"),
        ("B I L U O", "B I E S O"),
        ("O M F", "O I-M I-F"),
        ("O B-PER I-PER U-Boot", "O B-PER I-PER I-U-Boot"),
        # Labels of both kinds in one model.
        ("O B-PER I-PER LOC", "O B-PER I-PER I-LOC"),
        ("O PER E S", "O I-PER I-E I-S"),
    ],
)
def test_labels_that_are_not_tags_are_types(labels, tags):
    assert label_tags(labels.split()) == tags.split()


@given(st.lists(st.sampled_from([f"{p}-{t}" for p in "BIES" for t in "XY"] + ["O"])))
def test_entities_are_unchanged_by_conversion_to_iob2(tags):
    found = entities(tags)
    written = iob2_tags(found, len(tags))
    assert entities(written) == found
    before = ["O", *written]
    assert all(
        tag[0] != "I" or last.partition("-")[2] == tag[2:]
        for last, tag in zip(before, written, strict=False)
    )
