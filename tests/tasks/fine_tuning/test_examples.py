"""Tests Examples: flat arrays of tokens that can be split and selected, with a checksum."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert.tasks.fine_tuning.examples import Examples


@pytest.fixture
def examples():
    return Examples(
        np.array([2, 7, 3, 2, 8, 9, 3, 2, 3], np.int32),
        np.array([0, 0, 1, 0, 1, 1, 1, 0, 0], np.int32),
        np.array([0, 3, 7, 9]),
        {"labels": np.array([1, 0, 1])},
        {"tags": np.array([-1, 4, -1, -1, 5, 6, -1, -1, -1])},
    )


def test_examples_have_a_number_and_lengths(examples):
    assert len(examples) == 3
    assert examples.lengths.tolist() == [3, 4, 2]
    assert len(Examples(*[np.zeros([0], np.int32)] * 2, np.array([0]))) == 0


def test_token_values_are_split_into_examples(examples):
    assert [row.tolist() for row in examples.rows(examples.input_ids)] == [
        [2, 7, 3],
        [2, 8, 9, 3],
        [2, 3],
    ]


def test_examples_can_be_selected_in_any_order(examples):
    taken = examples.take([2, 0])
    assert [row.tolist() for row in taken.rows(taken.input_ids)] == [[2, 3], [2, 7, 3]]
    assert taken.labels["labels"].tolist() == [1, 1]
    assert taken.token_labels["tags"].tolist() == [-1, -1, -1, 4, -1]


def test_arrays_of_different_lengths_are_rejected(examples):
    arrays = (examples.input_ids, examples.segment_ids, examples.starts)
    with pytest.raises(ValueError, match="labels: has 2 values; expected 3, one per example"):
        Examples(*arrays, {"labels": np.zeros(2)})
    with pytest.raises(ValueError, match="tags: has 8 values; expected 9, one per token"):
        Examples(*arrays, {}, {"tags": np.zeros(8)})
    with pytest.raises(ValueError, match="input_ids: has 8 values; expected 9"):
        Examples(examples.input_ids[1:], *arrays[1:])


def test_checksum_covers_all_fields_of_examples(make_examples):
    examples = make_examples(4)
    assert examples.sha256 == make_examples(4).sha256
    others = [
        replace(examples, input_ids=examples.input_ids + 1),
        replace(examples, segment_ids=examples.segment_ids + 1),
        replace(examples, starts=np.array([0, *(examples.starts[1:-1] + 1), examples.starts[-1]])),
        replace(examples, labels={"labels": 1 - examples.labels["labels"]}),
        replace(examples, labels={"positions": examples.labels["labels"]}),
        replace(examples, token_labels={"tags": examples.token_labels["tags"] + 1}),
        examples.take([1, 0, 2, 3]),
    ]
    assert len({examples.sha256, *(other.sha256 for other in others)}) == 8
