"""The network of served models matches the Keras model on rows without padding."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export.network import Network
from keras_bert.models import (
    BertEncoder,
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
