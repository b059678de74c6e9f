"""`fit` with a teacher, for each task, and invalid teachers."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.models import memory
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.prepared import prepare
from keras_bert.tasks.text_processor import window_counts

TEXTS = ["it is a good film .", "a bad book .", "very good .", "is it bad ?"] * 4
OPTIONS = {"learning_rate": 2e-2, "batch_size": 8, "length_pool": 1, "verbose": 0, "epochs": 12}
OPTIONS["jit_compile"] = False
SOFT = {"distillation_weight": 1.0}


@pytest.fixture(autouse=True)
def _seed():
    """Makes the new heads of teachers and students the same in every run of a test."""
    keras.utils.set_random_seed(0)


def classifier(pretrained, labels=("a", "b"), problem_type="single_label"):
    """Returns a classifier with certain answers, as if it had been trained."""
    made = TextClassifier.from_pretrained(pretrained, labels=labels, problem_type=problem_type)
    made.model.classifier.bias.assign(np.linspace(-1, 1, made.settings.num_logits))
    made.untrained = ()
    return made


def exported(_):
    info = {"labels": ["a", "b"], "problem_type": "single_label_classification", "pair": False}
    inputs = {"max_seq_length": 16, "signatures": {"serving_default": {"inputs": ["text"]}}}
    return TextClassifier.from_export(info | inputs, {"serving_default": lambda text: {}})


@pytest.mark.slow
def test_windows_of_long_texts_learn_the_outputs_of_the_teacher(pretrained):
    """All labels are wrong, so that what is learned can only come from the teacher."""
    texts = [f"{text} " * 5 for text in TEXTS]
    teacher, student = classifier(pretrained), classifier(pretrained)
    student.model.classifier.bias.assign([1.0, -1.0])
    for each in (teacher, student):
        each.settings = replace(each.settings, max_seq_length=8)
        each.set_long_text("windows")
    counts = window_counts(prepare(student.processor.preprocess, [texts]))
    assert counts.min() > 1
    student.fit(texts, ["a"] * 16, teacher=teacher, **OPTIONS, **SOFT)
    expected, found = (each.predict(texts)["probabilities"] for each in (teacher, student))
    assert np.abs(found - expected).max() < 0.1


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda p: None, {"temperature": 3.0}, "temperature: has no effect without teacher"),
        (lambda p: TextEmbedder.from_pretrained(p), {}, "is a TextEmbedder; expected a TextClass"),
        (lambda p: TextClassifier.from_pretrained(p, labels=["a", "b"]), {}, "untrained weights"),
        (exported, {}, "an exported model has no Keras model and cannot be trained or changed"),
        (lambda p: classifier(p, ("b", "a")), {}, "has the labels b, a .* and the student a, b"),
        (lambda p: classifier(p, ("a", "b"), "multi_label"), {}, "multi_label_classification"),
        (classifier, {"temperature": -1.0}, "temperature=-1.0: expected a finite number from 0.01"),
        (classifier, {"distillation_weight": 2}, "distillation_weight=2: expected a finite number"),
    ],
)
def test_invalid_teachers_and_options_are_rejected(pretrained, make, options, message):
    student = TextClassifier.from_pretrained(pretrained, labels=["a", "b"])
    with pytest.raises(InputError, match=message):
        student.fit(TEXTS, ["a", "b"] * 8, teacher=make(pretrained), **options)


def test_teacher_that_exceeds_the_memory_is_rejected(pretrained, monkeypatch):
    student, teacher = classifier(pretrained), classifier(pretrained)
    monkeypatch.setattr(memory, "available_memory", lambda: 8000)
    with pytest.raises(InputError, match=r"^teacher: batch_size=8: 8 rows of \d+ tokens need at"):
        student.fit(TEXTS, ["a", "b"] * 8, teacher=teacher, **OPTIONS)
