"""Texts with more tokens than the window: the same answers in every way to predict."""

import json

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.classification.processor import ClassifierSettings, labeled
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.load import load
from keras_bert.tasks.prepared import prepare
from keras_bert.tasks.text_processor import LongText
from keras_bert.text import windows

SHORT = ["good film .", "", "bad"]
LONG = ["it is a very good film . " * 4, "bad book . " * 9 + "good"]
TEXTS = [SHORT[0], LONG[0], *SHORT[1:], LONG[1]]
WAYS = [("head_tail", 0), ("windows", 0), ("windows", 3)]


@pytest.fixture(scope="module")
def made(pretrained):
    made = TextClassifier.from_pretrained(pretrained, labels=["a", "b"], max_seq_length=10)
    made.model.classifier.kernel.assign(np.random.default_rng(0).normal(0, 1, [16, 2]))
    made.untrained = ()
    return made


@pytest.fixture
def classifier(made):
    made.set_long_text("truncate")
    return made


def probabilities(task_object, texts, **options):
    return task_object.predict(texts, **options)["probabilities"]


def test_setting_needs_no_labels(pretrained):
    classifier = TextClassifier.from_pretrained(pretrained)
    classifier.set_long_text("windows")
    assert classifier.processor.settings.long_text.strategy == "windows"


def test_texts_that_fit_have_unchanged_answers(classifier):
    before = probabilities(classifier, SHORT)
    for way in WAYS:
        classifier.set_long_text(*way)
        assert np.array_equal(probabilities(classifier, SHORT), before)


@pytest.mark.parametrize("stride", [3, 8])
def test_logits_of_windows_are_averaged(classifier, stride):
    words = LONG[1].split()
    starts = range(0, len(words) - 8 + stride, stride)
    parts = [" ".join(words[start : start + 8]) for start in starts]
    each = classifier.predict(parts)["logits"]
    classifier.set_long_text("windows", stride)
    found = classifier.predict(TEXTS)
    np.testing.assert_allclose(found["logits"][-1], each.mean(axis=0), atol=1e-5)
    assert not found["truncated"].any()


def test_head_and_tail_of_a_text_are_those_of_its_words(classifier):
    words = LONG[1].split()
    shortened = " ".join(words[:2] + words[-6:])
    expected = probabilities(classifier, [shortened])
    classifier.set_long_text("head_tail")
    found = classifier.predict([LONG[1]])
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    assert found["truncated"].tolist() == [True]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[::2])
def test_saved_and_exported_models_give_the_same_answers(classifier, tmp_path, way):
    classifier.set_long_text(*way)
    expected = probabilities(classifier, TEXTS)
    classifier.save_pretrained(tmp_path / "model")
    saved = TextClassifier.from_pretrained(tmp_path / "model")
    assert saved.settings == classifier.settings
    assert np.array_equal(probabilities(saved, TEXTS), expected)
    saved.export(tmp_path / "export" / "1")
    exported = load(tmp_path / "export" / "1")
    assert exported.settings.long_text == LongText(*way)
    for size in (1, 2, 32):
        np.testing.assert_allclose(
            probabilities(exported, TEXTS, batch_size=size), expected, atol=1e-5
        )
    assert probabilities(exported, []).shape == (0, 2)


def test_models_have_the_settings_that_they_were_saved_with(classifier, edit_json, tmp_path):
    """Those of the run that trained the model do not count, since they may have changed."""
    run = {"long_text": "windows", "window_stride": 3}
    (tmp_path / "run.json").write_text(json.dumps({"settings": run}))
    for way in (("truncate",), ("head_tail",), ("windows",)):
        classifier.set_long_text(*way)
        classifier.save_pretrained(tmp_path / "model")
        opened = TextClassifier.from_pretrained(tmp_path / "model")
        assert opened.settings.long_text == LongText(*way)
    # Models of versions without this setting have that of their run.
    saved = {"max_seq_length": 10, "problem_type": "single_label", "pair": False}
    edit_json(tmp_path / "model" / "config.json", keras_bert=saved)
    opened = TextClassifier.from_pretrained(tmp_path / "model")
    assert opened.settings.long_text == LongText("windows", 3)


def test_each_window_is_an_example_with_the_label_of_its_text(classifier):
    classifier.set_long_text("windows", 4)
    # Two texts per chunk, so that windows are numbered over chunks.
    prepared = prepare(classifier.processor.preprocess, [TEXTS], chunk_size=2)
    examples = labeled(prepared, np.arange(5)).examples
    counts = np.bincount(examples.labels["labels"])
    assert counts[[0, 2, 3]].tolist() == [1, 1, 1]
    assert counts[1] == 1 + -(-(28 - 8) // 4)
    assert (np.diff(examples.labels["labels"]) >= 0).all()


@pytest.mark.slow
def test_fit_learns_from_the_end_of_long_texts(pretrained):
    """Only the last word determines the label."""
    texts = [f"{'it is a film . ' * 5}{word}" for word in ("good", "bad")] * 16
    labels = ["yes", "no"] * 16
    options = {"learning_rate": 2e-2, "batch_size": 8, "epochs": 6, "verbose": 0}
    options["jit_compile"] = False
    accuracy = {}
    for strategy in ("truncate", "head_tail"):
        made = TextClassifier.from_pretrained(pretrained, labels=["no", "yes"], max_seq_length=10)
        made.set_long_text(strategy)
        made.fit(texts, labels, **options)
        accuracy[strategy] = made.evaluate(texts, labels)["accuracy"]
    assert accuracy == {"truncate": 0.5, "head_tail": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("half",), "long_text='half': expected one of truncate, head_tail, windows"),
        (("windows", 9), "window_stride=9: expected 0, or from 1 to"),
        (("windows", -1), "window_stride=-1: "),
        (("windows", 2.5), "window_stride=2.5: "),
        (("head_tail", 2), "window_stride=2: has no effect with long_text='head_tail'"),
    ],
)
def test_invalid_settings_are_rejected(classifier, settings, message):
    with pytest.raises(InputError, match=message):
        classifier.set_long_text(*settings)
    assert classifier.settings.long_text == LongText()


def test_pairs_are_only_truncated(classifier):
    classifier.set_long_text("windows")
    with pytest.raises(InputError, match="texts is a tuple of pairs, but long_text is 'windows'"):
        classifier.predict((SHORT, SHORT))
    with pytest.raises(InputError, match="got pairs of texts; expected single texts"):
        ClassifierSettings(("a", "b"), pair=True, long_text=LongText("windows"))


def test_windows_of_a_text_have_a_limit(classifier, monkeypatch):
    monkeypatch.setattr(windows, "MAX_WINDOW_TOKENS", 100)
    classifier.set_long_text("windows", 1)
    short = ["good film bad book it is a film . . good", *SHORT] * 4
    expected = classifier.predict(short)
    # All windows together have more tokens, so the texts are preprocessed in parts.
    assert len(prepare(classifier.processor.preprocess, [short]).chunks) > 1
    one = classifier.predict(short[:1])["logits"]
    np.testing.assert_allclose(expected["logits"][[0, 4, 8, 12]], np.repeat(one, 4, 0), atol=1e-5)
    with pytest.raises(InputError) as caught:
        classifier.predict([SHORT[0], LONG[0]])
    assert str(caught.value) == (
        "long_text=windows: the windows of the texts have more than 100 tokens; expected "
        "shorter texts, or a larger window_stride"
    )


@pytest.mark.slow
def test_exports_have_the_limit_of_windows(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "MAX_WINDOW_TOKENS", 100)
    classifier.set_long_text("windows", 1)
    classifier.export(tmp_path / "1")
    exported = load(tmp_path / "1")
    with pytest.raises(InputError) as caught:
        exported.predict([LONG[0]])
    assert str(caught.value) == (
        "long_text=windows: the windows of the texts have more than 100 tokens; expected "
        "shorter texts, or a larger window_stride"
    )
    assert len(exported.predict(SHORT)["label"]) == len(SHORT)
