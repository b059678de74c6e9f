"""Files and labels: one scheme for the model, one set of types for all files."""

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.ner.data import (
    NerSettings,
    check_labels,
    check_types,
    make_labels,
    read_tagged,
    tag_ids,
)


@pytest.fixture
def tagged(tmp_path):
    def read(text, name="train.conll", tags_needed=True, **settings):
        path = tmp_path / name
        path.write_text(text)
        return read_tagged(str(path), NerSettings(**settings), tags_needed)

    return read


@pytest.mark.parametrize(
    "tags", [("I-PER", "I-PER", "B-PER"), ("B-PER", "I-PER", "B-PER"), ("B-PER", "E-PER", "S-PER")]
)
def test_every_scheme_is_learnt_as_iob2(tagged, tags):
    file = tagged("".join(f"w\t{tag}\n" for tag in tags))
    assert file.tags == [["B-PER", "I-PER", "B-PER"]]


def test_impossible_sequences_are_counted_and_read_as_conlleval_reads_them(tagged, caplog):
    file = tagged("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2")
    assert file.tags == [["B-PER", "O", "B-LOC"]]
    assert "1 tags stand where iob2 does not allow them" in caplog.text


def test_strict_refuses_them(tagged):
    with pytest.raises(InputError, match=r"train\.conll, line 3: iob2 does not allow 'I-LOC'"):
        tagged("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2", strict=True)


def test_labels_are_o_and_both_tags_of_every_type(tagged):
    labels = make_labels(tagged("a B-PER\nb B-LOC\nc O\n"), None)
    assert labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tag_ids([["O", "B-PER"], ["I-LOC"]], labels).tolist() == [0, 3, 2]
    assert tag_ids([["O"]], labels).dtype == np.int32


def test_the_order_of_a_checkpoints_labels_is_kept_if_they_are_the_same(tagged):
    train = tagged("a B-PER\nb O\n")
    assert make_labels(train, ["I-PER", "O", "B-PER"]) == ["I-PER", "O", "B-PER"]
    assert make_labels(train, ["LABEL_0", "LABEL_1"]) == ["O", "B-PER", "I-PER"]


def test_entities_without_a_type_are_learnt_as_b_and_i(tagged):
    assert make_labels(tagged("a B\nb I\nc O\n"), None) == ["O", "B", "I"]


def test_a_type_in_dev_that_train_lacks_is_refused_with_its_line(tagged):
    train = tagged("a B-PER\n")
    dev = tagged("a O\n\nb B-LOC\nc B-LOC\n", name="dev.conll")
    with pytest.raises(
        InputError,
        match=r"dev\.conll, line 3: tag 'B-LOC', but train has no entity of type 'LOC'; .* PER",
    ):
        check_types(dev, make_labels(train, None), "train")
    check_types(train, make_labels(dev, None) + make_labels(train, None), "both")


def test_a_training_file_without_entities_is_refused(tagged):
    with pytest.raises(InputError, match=r"every tag is O; expected entities"):
        make_labels(tagged("a O\n"), None)


def test_a_file_of_words_alone_can_be_predicted_but_not_scored(tagged):
    assert tagged("a\nb\n", tags_needed=False).tags is None
    with pytest.raises(InputError, match=r"has one column; expected words and their tags"):
        tagged("a\nb\n")


def test_labels_of_another_task_are_refused():
    check_labels(["O", "B-PER", "I-PER"], "bert")
    with pytest.raises(InputError, match=r"bert: has the labels no, yes; expected tags"):
        check_labels(["no", "yes"], "bert")
