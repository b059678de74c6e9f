"""The network of served models computes long and short rows in steps of similar length."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.network import Network
from keras_bert.models import BertEncoder
from tests.export.conftest import CONFIG


@pytest.mark.parametrize(("device", "steps"), [(0, [8] * 8 + [6]), (1, [64, 6])])
def test_gpu_computes_more_rows_at_once(monkeypatch, device, steps):
    model, random = BertEncoder(CONFIG), np.random.default_rng(2)
    lengths = random.integers(2, 33, 70)
    ids = random.integers(5, CONFIG.vocab_size, lengths.sum()).astype(np.int32)
    ids = tf.RaggedTensor.from_row_lengths(ids, lengths)
    segments = tf.ones_like(ids)
    seen = []

    def first_of_a_row(hidden, input_ids, splits):
        tf.py_function(lambda splits: seen.append(len(splits) - 1), [splits], [])
        return tf.gather(hidden, splits[:-1])

    monkeypatch.setattr(tf.raw_ops, "DeviceIndex", lambda device_names: tf.constant(device))
    network, spec = Network(model), tf.RaggedTensorSpec([None, None], tf.int32)
    vectors = tf.function(
        lambda *rows: network.reduced(*rows, first_of_a_row, [CONFIG.hidden_size]),
        input_signature=[spec, spec],
    )(ids, segments)
    assert seen == steps
    mask = tf.ones_like(ids).to_tensor()
    inputs = {"input_ids": ids.to_tensor(), "input_mask": mask, "segment_ids": mask}
    expected = model(inputs)["sequence_output"][:, 0]
    np.testing.assert_allclose(vectors, expected, atol=2e-5)
