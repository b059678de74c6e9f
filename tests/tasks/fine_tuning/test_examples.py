"""Examples: padding goes, order stays, and pieces can be cut back into examples."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert.tasks.fine_tuning.examples import Examples, from_packed

BATCHES = [
    {
        "input_ids": np.array([[2, 7, 3, 0], [2, 8, 9, 3]], np.int32),
        "input_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32),
        "segment_ids": np.array([[0, 0, 1, 0], [0, 1, 1, 1]], np.int32),
        "labels": np.array([1, 0]),
        "tags": np.array([[-1, 4, -1, -1], [-1, 5, 6, -1]]),
    },
    {
        "input_ids": np.array([[2, 3]], np.int32),
        "input_mask": np.array([[1, 1]], np.int32),
        "segment_ids": np.array([[0, 0]], np.int32),
        "labels": np.array([1]),
        "tags": np.array([[-1, -1]]),
    },
]


@pytest.fixture
def examples():
    return from_packed(BATCHES, ["labels"], ["tags"])


def test_padding_is_dropped_and_pieces_stand_in_order(examples):
    assert examples.input_ids.tolist() == [2, 7, 3, 2, 8, 9, 3, 2, 3]
    assert examples.segment_ids.tolist() == [0, 0, 1, 0, 1, 1, 1, 0, 0]
    assert examples.starts.tolist() == [0, 3, 7, 9]
    assert examples.lengths.tolist() == [3, 4, 2]
    assert examples.labels["labels"].tolist() == [1, 0, 1]
    assert examples.token_labels["tags"].tolist() == [-1, 4, -1, -1, 5, 6, -1, -1, -1]
    assert examples.input_ids.dtype == examples.segment_ids.dtype == np.int32
    assert len(examples) == 3


def test_values_of_pieces_are_cut_back_into_examples(examples):
    assert [row.tolist() for row in examples.rows(examples.input_ids)] == [
        [2, 7, 3],
        [2, 8, 9, 3],
        [2, 3],
    ]


def test_examples_are_taken_in_any_order(examples):
    taken = examples.take([2, 0])
    assert [row.tolist() for row in taken.rows(taken.input_ids)] == [[2, 3], [2, 7, 3]]
    assert taken.labels["labels"].tolist() == [1, 1]
    assert taken.token_labels["tags"].tolist() == [-1, -1, -1, 4, -1]


def test_no_batches_make_no_examples():
    none = from_packed([], ["labels"])
    assert len(none) == 0
    assert none.starts.tolist() == [0]


def test_arrays_that_do_not_belong_together_are_refused(examples):
    with pytest.raises(ValueError, match="every label needs 3 values"):
        Examples(examples.input_ids, examples.segment_ids, examples.starts, {"labels": np.zeros(2)})
    with pytest.raises(ValueError, match="every value a piece"):
        Examples(examples.input_ids[1:], examples.segment_ids, examples.starts)


def test_the_checksum_tells_all_that_examples_hold(make_examples):
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
