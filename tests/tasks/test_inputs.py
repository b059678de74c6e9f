"""Tests the forms of inputs: columns, pairs, tables, datasets of TensorFlow, and one text."""

import json
import subprocess

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.errors import InputError
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.fill_mask import MaskFiller

TEXTS = ["good film", "bad book", "very good", "it is bad"]
OTHERS = ["a film", "it is", "a book", "very very"]
LABELS = ["pos", "neg", "pos", "neg"]
FAST = {"epochs": 1, "batch_size": 2, "verbose": 0, "jit_compile": False}


@pytest.fixture(scope="module")
def classifier(pretrained):
    """Returns a trained classifier: the next `fit` starts from its weights."""
    keras.utils.set_random_seed(0)
    classifier = TextClassifier.from_pretrained(pretrained, labels=["neg", "pos"])
    classifier.fit(TEXTS, LABELS, **FAST)
    return classifier


def from_slices(*columns, batch_size=None):
    made = tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0])
    return made.batch(batch_size) if batch_size else made


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (tuple(TEXTS), {}),
        (np.array(TEXTS), {}),
        (pa.chunked_array([TEXTS[:1], TEXTS[1:]]), {}),
        (pa.table({"text": TEXTS}), {}),
        (pa.table({"text": OTHERS, "review": TEXTS}), {"text": "review"}),
        (from_slices(TEXTS), {}),
        (from_slices(TEXTS, batch_size=3), {}),
        (from_slices({"review": TEXTS, "id": [1, 2, 3, 4]}, batch_size=3), {"text": "review"}),
    ],
)
def test_texts_of_every_form_have_equal_predictions(classifier, pretrained, texts, names):
    expected = classifier.predict(TEXTS)["logits"]
    np.testing.assert_array_equal(classifier.predict(texts, **names)["logits"], expected)


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        ([*zip(TEXTS, OTHERS, strict=True)], {}),
        ((np.array(TEXTS), pa.array(OTHERS)), {}),
        (pa.table({"b": OTHERS, "a": TEXTS}), {"text": ("a", "b")}),
        (from_slices(TEXTS, OTHERS), {}),
        (from_slices(TEXTS, OTHERS, batch_size=3), {}),
    ],
)
def test_pairs_of_every_form_have_equal_predictions(classifier, pairs, names):
    expected = classifier.predict((TEXTS, OTHERS))["logits"]
    np.testing.assert_array_equal(classifier.predict(pairs, **names)["logits"], expected)


def test_one_text_or_pair_has_one_answer(classifier, pretrained):
    untrained = TextClassifier.from_pretrained(pretrained, labels=["neg", "pos"])
    for model, one, several in (
        (classifier, "good film", ["good film"]),
        (untrained, ("good", "film"), [("good", "film")]),
    ):
        expected, answer = model.predict(several), model.predict(one)
        assert answer.keys() == expected.keys()
        assert answer["label"] == expected["label"][0] in ("neg", "pos")
        assert answer["truncated"] is False
        np.testing.assert_array_equal(answer["probabilities"], expected["probabilities"][0])
    embedder = TextEmbedder.from_pretrained(pretrained)
    assert embedder.predict("good film", size=8)["mean"].shape == (8,)
    tokens = MaskFiller.from_pretrained(pretrained, top_k=3).predict("a [MASK] is [MASK]")["tokens"]
    assert tokens.shape == (2, 3)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (pa.table({"text": TEXTS, "label": LABELS}), {}),
        (pa.table({"review": TEXTS, "stars": LABELS}), {"text": "review", "label": "stars"}),
        (from_slices(TEXTS, LABELS), {}),
        (from_slices(TEXTS, LABELS, batch_size=3), {}),
        (from_slices({"a": TEXTS, "b": LABELS}, batch_size=3), {"text": "a", "label": "b"}),
    ],
)
def test_tables_and_datasets_train_and_score_as_lists(classifier, data, names):
    before, results = weights_of(classifier.model), []
    for arguments, held_out, columns in (
        ((TEXTS, LABELS), (TEXTS, LABELS), {}),
        ((data,), data, names),
    ):
        for variable in classifier.model.weights:
            variable.assign(before[variable.path])
        scores = classifier.evaluate(*arguments, **columns)
        fitted = classifier.fit(*arguments, **columns, validation_data=held_out, **FAST)
        results.append((scores, fitted.history))
    assert results[0] == results[1]


def test_pairs_of_every_form_have_equal_scores_as_embeddings(pretrained):
    scores = [1.0, 0.0, 0.5, -1.0]
    results = {}
    for name, arguments, names in (
        ("pairs", ((TEXTS, OTHERS),), {}),
        ("pairs", ([*zip(TEXTS, OTHERS, strict=True)],), {}),
        ("pairs", (from_slices(TEXTS, OTHERS),), {}),
        ("pairs", (pa.table({"anchor": TEXTS, "positive": OTHERS}),), {}),
        ("scored", ((TEXTS, OTHERS), scores), {}),
        ("scored", (from_slices((TEXTS, OTHERS), scores, batch_size=3),), {}),
        (
            "scored",
            (pa.table({"a": TEXTS, "b": OTHERS, "score": scores}),),
            {"text": ("a", "b"), "label": "score"},
        ),
    ):
        embedder = TextEmbedder.from_pretrained(pretrained)
        results.setdefault(name, []).append(embedder.evaluate(*arguments, **names))
    for values in results.values():
        assert all(value == values[0] for value in values)
    assert results["pairs"][0].keys() != results["scored"][0].keys()


TABLE = pa.table({"review": TEXTS, "stars": LABELS})


@pytest.mark.parametrize(
    ("data", "names", "message"),
    [
        ((TABLE,), {}, r"no column 'text'; expected text= with one of its columns review, stars$"),
        ((TABLE,), {"text": "review"}, "no column 'label'; expected label= with one of its colum"),
        ((TABLE, "stars"), {}, "texts is a table, and 'stars', a str is given besides; expected o"),
        ((TABLE["review"],), {}, "labels is None, a NoneType; expected a list of labels"),
        ((from_slices(TEXTS, LABELS).repeat(),), {}, "is an infinite tf.data.Dataset; expected"),
        ((TEXTS, TABLE), {}, r"^labels\[0\] is {'review'.*; expected a class name"),
        ((pa.table({"text": ["a", None]}), None), {"label": "text"}, r"texts\[1\] is None, a None"),
    ],
)
def test_tables_that_cannot_be_used_are_rejected(classifier, data, names, message):
    for method in (classifier.fit, classifier.evaluate):
        with pytest.raises(InputError, match=message):
            method(*data, **names)


def test_tables_of_pandas_and_datasets_give_the_results_of_lists(pretrained, peers_python, root):
    done = subprocess.run(
        [peers_python, root / "tests" / "tasks" / "use_tables.py", pretrained],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lists, pandas, datasets, arrays, *errors = done.stdout.splitlines()
    assert json.loads(lists).keys() == {"classifier", "tagger", "answerer", "embedder"}
    assert pandas == lists
    assert datasets == lists
    assert arrays == lists
    starts = [
        "texts[4] is nan, a float; expected a string",
        "texts has no column 'star'; expected label= with one of its columns review, stars",
        "texts is a table, and 'stars', a str is given besides; expected only the table and",
        "texts[4] is nan, a float; expected a string",
        "validation_data has no column 'text'; expected text= with one of its columns review",
        "labels is a DataFrame; expected a list of labels",
        "texts is a DatasetDict with the splits train; expected one of them, such as data['train']",
        "texts is a IterableDataset; expected a table in memory or on disk, such as that of load_",
    ]
    for error, start in zip(errors, starts, strict=True):
        assert error.startswith(start)
