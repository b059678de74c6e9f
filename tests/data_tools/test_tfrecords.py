"""Tests of writing tf.Example messages and shards."""

import hashlib

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data_tools import tfrecords


@given(
    st.integers(0, 12).flatmap(
        lambda rows: st.fixed_dictionaries(
            {
                "input_ids": arrays.arrays(np.int32, (rows, 7), elements=st.integers(0, 2**31 - 1)),
                "short": arrays.arrays(np.int64, (rows, 1), elements=st.integers(0, 2**32 - 1)),
                "segment_ids": arrays.arrays(np.int32, (rows, 200), elements=st.integers(0, 1)),
                "weights": arrays.arrays(
                    np.float32, (rows, 40), elements=st.floats(width=32, allow_nan=False)
                ),
            }
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_messages_equal_those_of_protobuf(features):
    messages = tfrecords.encode_examples(features)
    assert len(messages) == len(features["short"])
    for row, message in enumerate(messages):
        expected = tf.train.Example()
        for name, values in features.items():
            feature = expected.features.feature[name]
            is_float = values.dtype == np.float32
            (feature.float_list if is_float else feature.int64_list).value.extend(values[row])
        assert message == expected.SerializeToString(deterministic=True)


def test_shard_holds_its_messages_and_entry_has_size_and_checksum(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    entry = tfrecords.write_shard(path, iter([[b"one", b"two"], [], [b"three"]]))
    read = [message.numpy() for message in tf.data.TFRecordDataset(path)]
    assert read == [b"one", b"two", b"three"]
    content = (tmp_path / "a.tfrecord").read_bytes()
    assert entry == {
        "file": "a.tfrecord",
        "rows": 3,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
