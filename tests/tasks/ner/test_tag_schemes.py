"""Tag schemes: entities of tags as conlleval finds them, labels of models, schemes of files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.errors import InputError
from keras_bert.tasks.ner.tag_schemes import (
    check_tags,
    entities,
    label_tags,
    tag_ids,
    tags_of,
)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
    ],
)
def test_types_may_contain_dashes_or_be_absent(tags, expected):
    assert entities(tags.split()) == expected


@given(
    st.lists(st.sampled_from([f"{p}-{t}" for p in "BIES" for t in "XY"] + ["O"])),
    st.sampled_from(["iob1", "iob2", "bioes"]),
)
def test_entities_are_unchanged_by_conversion_to_a_scheme(tags, scheme):
    written = tags_of(entities(tags), len(tags), scheme)
    assert entities(written) == entities(tags)
    assert check_tags([written], lambda *place: "", scheme)[1:] == (scheme, 0)


# --- the scheme of a file ---

SAME_IN_FILES = {
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


def check(*rows, **settings):
    """Returns the tags of sentences in IOB2, their scheme and its violations."""
    sentences = [row.split() for row in rows]
    rows, *scheme = check_tags(sentences, lambda *place: f"f, {place}", **settings)
    return [" ".join(row) for row in rows], *scheme


@pytest.mark.parametrize("scheme", SAME_IN_FILES)
def test_scheme_of_a_file_is_detected(scheme):
    rows = ["O O", SAME_IN_FILES["iob2"]]
    assert check("O O", SAME_IN_FILES[scheme]) == (rows, scheme, 0)


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("iob2", "B-PER O I-PER"),
        ("iob1", "I-LOC B-PER O"),
        ("bioes", "B-PER O"),
        ("bioes", "O E-PER"),
    ],
)
def test_invalid_sequence_is_counted(scheme, tags):
    assert check("O", tags, scheme=scheme)[1:] == (scheme, 1)


@pytest.mark.parametrize("tag", [*NO_TAGS, *MISPLACED])
def test_tag_of_no_scheme_is_rejected(tag):
    message = rf"f, \(0, 1\): tag '{tag}'; expected O, or B, I, E or S "
    with pytest.raises(InputError, match=message):
        check(f"O {tag}", "B-PER E-PER")
    if tag not in MISPLACED:
        with pytest.raises(InputError, match=message):
            check(f"O {tag}", "MISC MISC")


@pytest.mark.parametrize(
    ("tags", "scheme", "iob2"),
    [
        # Types without a prefix, if no tag has one.
        ("PER PER O LOC BI-PER", "io", "B-PER I-PER O B-LOC B-BI-PER"),
        ("O person-actor B person-actor", "io", "O B-person-actor B-B B-person-actor"),
        # Prefixes without a type, and of one word.
        ("B I O I", "iob2", "B I O B"),
        ("I I O I", "iob1", "B I O B"),
        ("B M E S", "bmes", "B I I B"),
        ("O S-PER", "bioes", "O B-PER"),
        ("O U-PER", "bilou", "O B-PER"),
        ("O I-PER I-PER", "iob1", "O B-PER I-PER"),
        # Unknown labels are next to any tag.
        ("- L-PER O B-PER - L-LOC", "bilou", "- B-PER O B-PER - B-LOC"),
    ],
)
def test_scheme_of_ambiguous_tags(tags, scheme, iob2):
    assert check(tags)[:2] == ([iob2], scheme)


def test_types_are_tags_without_o_only_if_they_are_known():
    # The word outside of entities must be O; parts of speech are no types.
    with pytest.raises(InputError, match=r"f, \(0, 0\): tag 'NN'; .*only types .*scheme io\)$"):
        check("NN VBZ NN")
    assert check("NN T-cell NN", scheme="io") == (["B-NN B-T-cell B-NN"], "io", 0)
    assert check("NN VBZ NN", types=["NN", "VBZ"]) == (["B-NN B-VBZ B-NN"], "io", 0)


# --- labels of a model ---


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O PER LOC", "O I-PER I-LOC"),
        # Tags of a scheme stay as they are, with or without types.
        ("I-PER O B-PER S-creative-work E-LOC", "I-PER O B-PER S-creative-work E-LOC"),
        ("B I O", "B I O"),
        ("O B-PER I-PER L-PER U-PER U-LOC", "O B-PER I-PER E-PER S-PER S-LOC"),
        ("B-PER M-PER E-PER S-PER O", "B-PER I-PER E-PER S-PER O"),
        ("O W-LOC E-LOC B-PER", "O S-LOC E-LOC B-PER"),
        ("B I L U O", "B I E S O"),
        ("O M F", "O I-M I-F"),
        # Labels of both kinds in one model.
        ("O B-PER I-PER LOC", "O B-PER I-PER I-LOC"),
        ("O B-PER I-PER L-PER U-PER PAD", "O B-PER I-PER E-PER S-PER I-PAD"),
        ("O PER E S", "O I-PER I-E I-S"),
    ],
)
def test_labels_that_are_not_tags_are_types(labels, tags):
    assert label_tags(labels.split()) == tags.split()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O B-X I-X", "B-X I-X I-X B-X O B-X I-X"),
        ("O B-X I-X L-X U-X", "B-X I-X L-X U-X O B-X L-X"),
        ("E-X S-X B-X I-X O", "B-X I-X E-X S-X O B-X E-X"),
        ("B-X M-X E-X W-X O", "B-X M-X E-X W-X O B-X E-X"),
        ("O X", "X X X X O X X"),
    ],
)
def test_words_get_labels_of_the_scheme_of_the_model(labels, expected):
    labels, expected = labels.split(), expected.split()
    ids = tag_ids([["B-X", "I-X", "I-X", "B-X", "O"], ["B-X", "I-X"]], labels)
    assert [labels[index] for index in ids] == expected
    assert ids.dtype == np.int32
    assert tag_ids([["-", "O"]], labels).tolist() == [-1, labels.index("O")]


def test_tags_without_a_label_in_the_model_are_named():
    with pytest.raises(InputError, match="the tag 'I-X' is not one of the model's labels O, B-X;"):
        tag_ids([["O", "B-X", "I-X"]], ["O", "B-X"])
