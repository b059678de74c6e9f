"""Tests files and labels: one tag scheme for the model, one set of types for all files."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.data import NerSettings, read_data, tagged
from keras_bert.tasks.ner.labels import check_labels, check_types, make_labels, tag_ids


@pytest.fixture
def read(tmp_path):
    def read(text, name="train.conll", tags_needed=True, **settings):
        path = tmp_path / name
        path.write_text(text)
        return tagged(str(path), read_conll(path), NerSettings(**settings), tags_needed)

    return read


@pytest.mark.parametrize(
    "tags", [("I-PER", "I-PER", "B-PER"), ("B-PER", "I-PER", "B-PER"), ("B-PER", "E-PER", "S-PER")]
)
def test_every_scheme_is_converted_to_iob2(read, tags):
    file = read("".join(f"w\t{tag}\n" for tag in tags))
    assert file.tags == [["B-PER", "I-PER", "B-PER"]]


def test_invalid_sequences_are_counted_and_read_like_conlleval(read, caplog):
    file = read("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2")
    assert file.tags == [["B-PER", "O", "B-LOC"]]
    assert "1 tags violate the scheme iob2" in caplog.text


def test_strict_rejects_invalid_sequences(read):
    with pytest.raises(InputError, match=r"train\.conll, line 3: iob2 does not allow 'I-LOC'"):
        read("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2", strict=True)


def test_labels_are_o_and_both_tags_of_every_type(read):
    labels = make_labels(read("a B-PER\nb B-LOC\nc O\n"), None)
    assert labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tag_ids([["O", "B-PER"], ["I-LOC"]], labels).tolist() == [0, 3, 2]
    assert tag_ids([["O"]], labels).dtype == np.int32


def test_checkpoint_order_of_the_same_labels_is_kept(read):
    train = read("a B-PER\nb O\n")
    assert make_labels(train, ["I-PER", "O", "B-PER"]) == ["I-PER", "O", "B-PER"]
    assert make_labels(train, ["LABEL_0", "LABEL_1"]) == ["O", "B-PER", "I-PER"]


def test_entities_without_a_type_have_tags_b_and_i(read):
    assert make_labels(read("a B\nb I\nc O\n"), None) == ["O", "B", "I"]


def test_type_in_dev_missing_in_train_is_rejected_with_its_line(read):
    train = read("a B-PER\n")
    dev = read("a O\n\nb B-LOC\nc B-LOC\n", name="dev.conll")
    with pytest.raises(
        InputError,
        match=r"dev\.conll, line 3: tag 'B-LOC', but train has no entity of type 'LOC'; .* PER",
    ):
        check_types(dev, make_labels(train, None), "train")
    check_types(train, make_labels(dev, None) + make_labels(train, None), "both")


def test_training_file_without_entities_is_rejected(read):
    with pytest.raises(InputError, match=r"has no entities \(every tag is O\); expected"):
        make_labels(read("a O\n"), None)


def test_file_without_tags_can_be_predicted_but_not_scored(read):
    assert read("a\nb\n", tags_needed=False).tags is None
    with pytest.raises(InputError, match=r"has one column; expected words and their tags"):
        read("a\nb\n")


@pytest.mark.parametrize(
    "labels", ["O B-PER I-PER", "O PER LOC", "LABEL_0 LABEL_1", "O B-PER LOC", "O U-Boot B-PER"]
)
def test_labels_are_tags_or_types(labels):
    check_labels(labels.split(), "bert")


@pytest.mark.parametrize("label", ["U-PER", "L-PER", "O-PER", ""])
def test_labels_of_an_unsupported_scheme_are_rejected(label):
    message = rf"bert: has the labels O, B-PER, {label}; expected tags, .* got '{label}'$"
    with pytest.raises(InputError, match=message):
        check_labels(["O", "B-PER", label], "bert")


def test_types_of_the_model_are_compared_with_those_of_a_file(read):
    check_types(read("a B-PER\n"), ["O", "LOC", "PER"], "bert")
    with pytest.raises(InputError, match=r"no entity of type 'PER'; expected one of LOC, ORG$"):
        check_types(read("a B-PER\n"), ["O", "ORG", "LOC"], "bert")


def files(folder, *names):
    for name in names:
        (folder / name).write_text("a B-PER\n\nb O\n")
    return NerSettings(**{name: str(folder / name) for name in names})


DO = {"do_train": True, "do_eval": True, "do_predict": True, "new_tokenizer": None}


def test_splits_without_a_file_are_none(tmp_path):
    splits = read_data(files(tmp_path, "train_file"), **DO)
    assert len(splits.train.sentences) == 2
    assert splits.dev is splits.test is None


def test_dev_sentences_are_predicted_without_a_test_file(tmp_path):
    ner = files(tmp_path, "train_file", "eval_file")
    splits = read_data(ner, **DO)
    assert splits.test is splits.dev
    splits = read_data(replace(ner, test_file=ner.eval_file), **DO)
    assert splits.test is splits.dev
    splits = read_data(ner, **DO | {"do_train": False, "do_eval": False})
    assert (splits.train, splits.dev, len(splits.test.sentences)) == (None, None, 2)


@pytest.mark.parametrize(
    ("name", "value"), [("train_file", "a"), ("tag_column", 2), ("comment_prefix", "#")]
)
def test_file_settings_are_rejected_with_tfds(name, value):
    with pytest.raises(
        InputError, match=f"--{name} cannot be combined with --tfds; expected --task_n"
    ):
        read_data(NerSettings(tfds=True, task_name="conll2003", **{name: value}), **DO)


@pytest.mark.parametrize(
    ("names", "do_train", "message"),
    [
        (["eval_file"], True, "--train_file is missing; expected a CoNLL column file or texts"),
        (["train_file"], False, "nothing to do: .* expected --eval_file, --test_file"),
    ],
)
def test_missing_file_flag_is_named(tmp_path, names, do_train, message):
    with pytest.raises(InputError, match=message):
        read_data(files(tmp_path, *names), **DO | {"do_train": do_train})


def test_tags_without_a_label_in_the_model_are_named():
    with pytest.raises(InputError, match="the tag 'I-X' is not one of the model's labels O, B-X;"):
        tag_ids([["O", "B-X", "I-X"]], ["O", "B-X"])
