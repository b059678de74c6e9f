"""`from_pretrained`: every network from checkpoints of every format, including heads."""

import functools
import logging
import operator
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from tests.other_formats import write_tf1

CONFIG = BertConfig(7, 8, 1, 2, 12, max_position_embeddings=8)
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
NETWORKS = {
    BertEncoder: {},
    BertPretrainer: {},
    BertClassifier: {"num_labels": 3},
    BertTokenClassifier: {"num_labels": 5},
    BertSpanLabeler: {},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function: class -> (a model of random weights, the directory it was saved to)."""

    @functools.cache
    def save(network):
        folder = tmp_path_factory.mktemp("saved") / network.__name__
        model = network(CONFIG, **NETWORKS[network])
        random = np.random.default_rng(0)
        for variable in model.weights:
            variable.assign(random.normal(0.1, 0.3, variable.shape))
        save_model_directory(folder, model, VOCAB)
        return model, folder

    return save


def assert_same_weights(model, other):
    theirs = {variable.path: np.asarray(variable) for variable in other.weights}
    for variable in model.weights:
        assert np.array_equal(variable, theirs[variable.path]), variable.path


def test_weights_that_the_checkpoint_lacks_have_the_values_of_a_new_network(saved, tmp_path):
    folder = shutil.copytree(saved(BertEncoder)[1], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights = {name: value for name, value in weights.items() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors")
    keras.utils.set_random_seed(0)
    new = BertClassifier(CONFIG, num_labels=3)
    keras.utils.set_random_seed(0)
    model = BertClassifier.from_pretrained(folder, num_labels=3)
    for layer in ("encoder.pooler.dense", "classifier"):
        kernels = [operator.attrgetter(layer)(each).kernel.numpy() for each in (new, model)]
        assert np.std(kernels[0]) > 0
        assert np.array_equal(*kernels)


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_network_is_restored_completely(network, saved, caplog):
    model, folder = saved(network)
    with caplog.at_level(logging.WARNING):
        again = network.from_pretrained(folder)
    assert type(again) is network
    assert again.config == CONFIG
    assert not caplog.records
    assert_same_weights(again, model)


def test_output_folder_of_a_run_is_accepted(saved, tmp_path):
    model, folder = saved(BertClassifier)
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "run.json").write_text("{}")
    again = BertClassifier.from_pretrained(str(tmp_path), dtype="mixed_bfloat16")
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert_same_weights(again, model)
    with pytest.raises(InputError, match="dtype='bf16': expected one of float32, mixed_bfloat16"):
        BertClassifier.from_pretrained(tmp_path, dtype="bf16")


@pytest.mark.parametrize(
    ("network", "missing"),
    [
        (BertPretrainer, "masked_lm, next_sentence"),
        (BertClassifier, "classifier"),
        (BertTokenClassifier, "classifier"),
        (BertSpanLabeler, "span"),
    ],
)
def test_missing_head_is_newly_initialized_with_a_warning(network, missing, saved, caplog):
    model, folder = saved(BertEncoder)
    with caplog.at_level(logging.WARNING):
        again = network.from_pretrained(folder, **NETWORKS[network])
    assert [record.message for record in caplog.records] == [
        f"{folder}: weights that are not in the checkpoint are newly initialized: {missing}"
    ]
    assert_same_weights(model, again)


def test_num_labels_is_read_required_and_checked(saved):
    _, folder = saved(BertClassifier)
    assert BertClassifier.from_pretrained(folder).num_labels == 3
    with pytest.raises(
        InputError, match=r"num_labels is 2; expected 3, the number of logits of .*Classif"
    ):
        BertClassifier.from_pretrained(folder, num_labels=2)
    _, folder = saved(BertEncoder)
    with pytest.raises(InputError, match=r"num_labels is None; expected the number .* no class"):
        BertTokenClassifier.from_pretrained(folder)


@pytest.mark.parametrize(
    ("network", "other"),
    [
        (BertClassifier, BertTokenClassifier),
        (BertTokenClassifier, BertClassifier),
        (BertSpanLabeler, BertClassifier),
        (BertPretrainer, BertTokenClassifier),
    ],
)
def test_checkpoint_of_another_task_is_rejected(network, other, saved):
    model, folder = saved(other)
    with pytest.raises(InputError) as error:
        network.from_pretrained(folder)
    message = str(error.value)
    assert message.startswith(f"{network.__name__}.from_pretrained: {folder} is a BertFor")
    assert "; expected a BertFor" in message
    assert_same_weights(BertEncoder.from_pretrained(folder), model)


def test_head_of_another_task_is_detected_without_architectures(saved, tmp_path):
    model, _ = saved(BertSpanLabeler)
    write_tf1(tmp_path / "tf1", model, VOCAB)
    config = tmp_path / "tf1" / "bert_config.json"
    CONFIG.to_json(config)
    with pytest.raises(InputError, match=r"has the head span; expected a BertForSequenceClass"):
        BertClassifier.from_pretrained(tmp_path / "tf1", num_labels=2)
