"""Tests that `fit` learns with every loss, and initializes new weights from its seed."""

import os
import subprocess

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.weights import weights_of
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.fitting import reinitialize
from tests.tasks import memorize


@pytest.fixture
def model(pretrained):
    return TextClassifier.from_pretrained(pretrained, labels=["a", "b"]).model


def head_of(model):
    return {path: value for path, value in weights_of(model).items() if "classifier" in path}


def test_new_kernels_depend_only_on_the_seed(model):
    found = []
    for seed in (0, 0, 1):
        reinitialize(model, head_of(model), seed)
        found.append(head_of(model))
    assert np.array_equal(found[0]["classifier/kernel"], found[1]["classifier/kernel"])
    assert not np.array_equal(found[0]["classifier/kernel"], found[2]["classifier/kernel"])
    assert {value.tobytes() for values in found for value in [values["classifier/bias"]]} == {
        np.zeros([2], np.float32).tobytes()
    }
    # The distribution of the model's initializer: a truncated normal with 0.2.
    assert 0.05 < found[0]["classifier/kernel"].std() < 0.25


def test_weights_that_were_set_after_initialization_are_kept(model):
    initial_values = head_of(model)
    kernel = model.classifier.kernel
    kernel.assign(np.full(kernel.shape, 0.25))
    reinitialize(model, initial_values, 0)
    assert (keras.ops.convert_to_numpy(kernel) == 0.25).all()


@pytest.fixture(scope="module")
def without_dropout(make_checkpoint, tmp_path_factory):
    return make_checkpoint(
        tmp_path_factory.mktemp("without_dropout") / "model",
        memorize.WORDS,
        initializer_range=0.2,
        hidden_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), memorize.SHARES)
def test_fit_memorizes_labels_and_the_outputs_of_a_teacher(without_dropout, name, share):
    memorize.check_case(without_dropout, name, share)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "sizes", "steps"), memorize.EMBEDDING_LOSSES)
def test_fit_memorizes_pairs_of_texts(without_dropout, loss, sizes, steps):
    memorize.check_embedding(without_dropout, loss, sizes, steps)


@pytest.mark.slow
def test_fit_memorizes_masked_tokens(without_dropout):
    memorize.check_masks(without_dropout)


@pytest.mark.parametrize("name", ["regression", "tags", "spans", "cosine", "masks"])
def test_fit_memorizes_on_jax(without_dropout, backend_python, root, name):
    done = subprocess.run(
        [backend_python("jax"), "-m", "tests.tasks.memorize", without_dropout, name],
        cwd=root,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
