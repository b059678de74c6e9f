"""`from_pretrained`: every network from checkpoints of every format, including heads."""

import logging

import numpy as np
import pytest

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
    made = {}

    def save(network):
        if network not in made:
            folder = tmp_path_factory.mktemp("saved") / network.__name__
            model = network(CONFIG, **NETWORKS[network])
            random = np.random.default_rng(0)
            for variable in model.weights:
                variable.assign(random.normal(0.1, 0.3, variable.shape))
            save_model_directory(folder, model, VOCAB)
            made[network] = model, folder
        return made[network]

    return save


def assert_same_weights(model, other):
    theirs = {variable.path: np.asarray(variable) for variable in other.weights}
    for variable in model.weights:
        assert np.array_equal(variable, theirs[variable.path]), variable.path


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_network_is_restored_completely(network, saved, caplog):
    model, folder = saved(network)
    with caplog.at_level(logging.WARNING):
        again = network.from_pretrained(folder)
    assert type(again) is network
    assert again.config == CONFIG
    assert not caplog.records
    assert_same_weights(again, model)


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
        (BertClassifier, BertSpanLabeler),
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
