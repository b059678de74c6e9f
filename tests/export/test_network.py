"""The network of served models matches the Keras model on rows without padding."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.network import ROWS_AT_ONCE, Network
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertSpanLabeler,
    BertTokenClassifier,
)

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}


def random_rows(lengths: list[int]) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Creates rows of random tokens; the second half of each row has segment 1."""
    random = np.random.default_rng(len(lengths))
    ids = random.integers(5, SIZES["vocab_size"], sum(lengths)).astype(np.int32)
    segments = np.concatenate([np.arange(n) >= n // 2 for n in lengths] or [np.zeros([0])])
    return tuple(
        tf.RaggedTensor.from_row_lengths(values, np.array(lengths, np.int64))
        for values in (ids, segments.astype(np.int32))
    )


def padded(model, ids: tf.RaggedTensor, segments: tf.RaggedTensor) -> dict[str, np.ndarray]:
    """Runs the Keras model on padded rows and removes the padding from outputs per token."""
    mask = tf.ones_like(ids).to_tensor()
    inputs = {"input_ids": ids.to_tensor(), "input_mask": mask, "segment_ids": segments.to_tensor()}
    outputs = model(inputs)
    return {
        name: value.numpy()[mask.numpy() > 0] if value.shape[:2] == mask.shape else value.numpy()
        for name, value in outputs.items()
    }


def graph_of(network: Callable) -> Callable:
    """Returns the network as a graph with unknown numbers of rows and tokens."""
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    return tf.function(network, input_signature=[spec, spec])


def served(network: Callable, *rows: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """Runs the network in such a graph."""
    return graph_of(network)(*rows)


def count_rows(steps: list[int], splits: tf.Tensor) -> None:
    """Appends the number of rows of a step when the graph runs it."""
    tf.py_function(lambda splits: steps.append(len(splits) - 1), [splits], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "model_class", "shapes"),
    [
        ("gelu", lambda config: BertClassifier(config, 3), {"logits": (0, 3)}),
        ("gelu_new", lambda config: BertTokenClassifier(config, 5), {"logits": (0, 5)}),
        ("relu", BertSpanLabeler, {"start_logits": (0,), "end_logits": (0,)}),
    ],
)
def test_matches_the_keras_model(act: str, model_class: Callable, shapes: dict):
    model = model_class(BertConfig.from_dict(SIZES | {"hidden_act": act}))
    function = graph_of(Network(model))
    for rows in (1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3):
        lengths = np.random.default_rng(0).integers(2, 33, rows).tolist()
        ids, segments = random_rows(lengths)
        expected = padded(model, ids, segments)
        outputs = function(ids, segments)
        assert outputs.keys() == expected.keys()
        for name, value in outputs.items():
            np.testing.assert_allclose(value, expected[name], atol=2e-5, err_msg=name)
    outputs = function(*random_rows([]))
    assert {name: tuple(value.shape) for name, value in outputs.items()} == shapes


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
def test_reduced_encoder_outputs_match_the_keras_model(rows: int):
    model = BertEncoder(BertConfig.from_dict(SIZES))
    network = Network(model)
    lengths = np.random.default_rng(1).integers(2, 33, rows).tolist()
    ids, segments = random_rows(lengths)
    expected = padded(model, ids, segments)
    seen = []

    def some_tokens(hidden, input_ids, splits):
        """Keeps the tokens with some ids; most rows have several, some have none."""
        count_rows(seen, splits)
        return tf.gather(hidden, tf.where(input_ids % 11 == 0)[:, 0])

    def two_of_a_row(hidden, input_ids, splits):
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, network.pooled(first)], axis=1)

    selected = ids.values.numpy() % 11 == 0
    counts = np.bincount(ids.value_rowids()[selected], minlength=rows)
    assert rows == 1 or (counts.min() == 0 and counts.max() > 1)
    hidden = served(lambda *rows: network.reduced(*rows, some_tokens, [24], counts), ids, segments)
    np.testing.assert_allclose(hidden, expected["sequence_output"][selected], atol=2e-5)
    assert sum(seen) == rows
    assert max(seen) <= ROWS_AT_ONCE  # A large batch is processed in parts.
    vectors = served(lambda *rows: network.reduced(*rows, two_of_a_row, [2, 24]), ids, segments)
    first = expected["sequence_output"][ids.row_starts()]
    np.testing.assert_allclose(vectors[:, 0], first, atol=2e-5)
    np.testing.assert_allclose(vectors[:, 1], expected["pooled_output"], atol=2e-5)


@pytest.mark.parametrize(("device", "steps"), [(0, [8] * 8 + [6]), (1, [64, 6])])
def test_gpu_computes_more_rows_at_once(monkeypatch, device, steps):
    model = BertEncoder(BertConfig.from_dict(SIZES))
    ids, segments = random_rows(np.random.default_rng(2).integers(2, 33, 70).tolist())
    seen = []

    def first_of_a_row(hidden, input_ids, splits):
        count_rows(seen, splits)
        return tf.gather(hidden, splits[:-1])

    monkeypatch.setattr(tf.raw_ops, "DeviceIndex", lambda device_names: tf.constant(device))
    network = Network(model)
    vectors = served(lambda *rows: network.reduced(*rows, first_of_a_row, [24]), ids, segments)
    assert seen == steps
    expected = padded(model, ids, segments)["sequence_output"][ids.row_starts()]
    np.testing.assert_allclose(vectors, expected, atol=2e-5)


@pytest.mark.slow
def test_bfloat16_is_close_to_float32():
    config = BertConfig.from_dict(SIZES)
    model = BertClassifier(config, 3)
    rows = random_rows([9, 4, 30])
    exact = served(Network(model), *rows)["logits"].numpy()
    rounded = served(Network(model, "bfloat16"), *rows)["logits"].numpy()
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
