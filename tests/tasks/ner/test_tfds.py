"""Tests reading named entities from a folder that TensorFlow Datasets has prepared."""

import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.data import NerSettings, read_data
from keras_bert.tasks.ner.tfds import open_dataset, tfds_name

tfds = pytest.importorskip("tensorflow_datasets")
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
ROWS = {"tokens": [["Ada", "Lee", "naïve"], [], ["Ulm"]], "numbers": [[1, 2, 0], [], [3]]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares conll2003 and wikiann/de in the layout of TFDS, and a dataset of another kind."""
    import numpy as np
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("tfds")
    tags = tfds.features.Sequence(tfds.features.ClassLabel(names=TAGS))
    others = tfds.features.Sequence(np.int32)
    tables = {
        ("conll2003", "conll2003"): ("ner", tags, ("train", "dev", "test")),
        ("wikiann", "de"): ("tags", tags, ("train", "validation", "test")),
        ("numbers", "numbers"): ("sizes", others, ("train",)),
        ("only", "train"): ("tags", tags, ("train",)),
        ("no", "words"): ("tags", tags, ("train", "validation")),
    }
    for (name, config), (column, feature, splits) in tables.items():
        words = tf.ragged.constant(ROWS["tokens"], dtype=tf.string)
        numbers = tf.ragged.constant(ROWS["numbers"], dtype=tf.int32)
        if column != "sizes":
            numbers = tf.cast(numbers, tf.int64)
        rows = tf.data.Dataset.from_tensor_slices({"tokens": words, column: numbers})
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            config=config,
            version="1.0.0",
            data_dir=folder,
            features=tfds.features.FeaturesDict(
                {"tokens": tfds.features.Sequence(tfds.features.Text()), column: feature}
            ),
            split_datasets=dict.fromkeys(splits, rows.skip(1).take(1) if name == "no" else rows),
            disable_shuffling=True,
        )
    return str(folder)


@pytest.mark.parametrize("task_name", ["conll2003", "wikiann/de"])
def test_sentences_have_the_words_tags_and_lines_of_a_column_file(prepared, task_name):
    source, sentences = open_dataset(task_name, prepared)("dev")
    assert [(s.words, s.tags, s.line) for s in sentences] == [
        (("Ada", "Lee", "naïve"), ("B-PER", "I-PER", "O"), 1),
        (("Ulm",), ("B-LOC",), 5),
    ]
    assert f"{tfds_name(task_name)}/1.0.0, split " in source


def test_run_reads_all_three_splits(prepared):
    do = {"do_train": True, "do_eval": True, "do_predict": True, "new_tokenizer": None}
    given = {"tfds": True, "data_dir": prepared}
    splits = read_data(NerSettings(task_name="conll2003", **given), **do)
    assert {some.source.rsplit(" ")[-1] for some in (splits.train, splits.dev, splits.test)} == {
        *("train", "dev", "test")
    }
    assert splits.train.types == {"PER", "LOC"}
    with pytest.raises(InputError, match="--task_name is missing; expected a dataset for --tfds"):
        read_data(NerSettings(**given), **do)
    with pytest.raises(InputError, match="--eval_file cannot be combined with --tfds"):
        read_data(NerSettings(eval_file="dev.conll", **given), **do)


def test_missing_split_is_skipped_and_empty_split_is_rejected(prepared):
    do = {"do_train": True, "do_eval": True, "do_predict": True, "new_tokenizer": None}
    given = {"tfds": True, "data_dir": prepared}
    splits = read_data(NerSettings(task_name="only/train", **given), **do)
    assert len(splits.train.sentences) == 2
    assert splits.dev is splits.test is None
    with pytest.raises(InputError, match=r"nothing to do: there are no sentences"):
        read_data(NerSettings(task_name="only/train", **given), **do | {"do_train": False})
    with pytest.raises(InputError, match=r"no/words/1.0.0, split train: contains no sentences"):
        read_data(NerSettings(task_name="no/words", **given), **do)


def test_dataset_that_is_unprepared_or_has_no_tags_is_rejected(prepared):
    message = r"no prepared dataset conll2002/es .*tfds build conll2002/es --data_dir="
    with pytest.raises(InputError, match=message):
        open_dataset("conll2002/es", prepared)
    with pytest.raises(InputError, match=r"numbers: has the columns .*; expected tokens and ner"):
        open_dataset("numbers", prepared)
