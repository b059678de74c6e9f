"""Parses serialized tf.Examples of pre-training data, with Google's feature names and shapes."""

import tensorflow as tf

from keras_bert.data.pretraining_records import PretrainingData


def parse_records(
    serialized: tf.Tensor, data: PretrainingData, vocab_size: int
) -> dict[str, tf.Tensor]:
    """Parses serialized records, strings [n], into a batch.

    With dynamic masking, the batch has no masked-LM features yet. Executing the graph raises an
    InvalidArgumentError if a record does not have the format and the shape in `data`, or a value is
    out of range, such as a token id that is not below `vocab_size`.

    Returns:
        {feature: tensor [n, ...]}, float32 for weights and int32 for all others.
    """
    length, predictions = data.max_seq_length, data.max_predictions_per_seq
    pack, dynamic = data.format.pack, data.format.dynamic
    # Feature -> (width, exclusive upper limit of its values, None for weights).
    features = {
        "input_ids": (length, vocab_size),
        "input_mask": (length, 2),
        "segment_ids": (length, 2),
        "next_sentence_labels": (predictions if pack else 1, 2),
    }
    if not dynamic:
        features |= {
            "masked_lm_positions": (predictions, length),
            "masked_lm_ids": (predictions, vocab_size),
            "masked_lm_weights": (predictions, None),
        }
    if pack:
        features |= {
            "position_ids": (length, length),
            "example_ids": (length, predictions + 1),
            "next_sentence_positions": (predictions, length),
            "next_sentence_weights": (predictions, None),
        }
    spec = {
        name: tf.io.FixedLenFeature([width], tf.int64 if limit else tf.float32)
        for name, (width, limit) in features.items()
    }
    batch = tf.io.parse_example(serialized, spec)
    # An id, position or label out of range would silently select another row of a table.
    fits = [
        tf.debugging.Assert(
            tf.reduce_all((batch[name] >= 0) & (batch[name] < limit)),
            [f"{name} is out of range: expected at least 0 and below {limit}"],
        )
        for name, (_, limit) in features.items()
        if limit
    ]
    with tf.control_dependencies(fits):
        if not pack:
            batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return {
            name: tf.identity(value if value.dtype == tf.float32 else tf.cast(value, tf.int32))
            for name, value in batch.items()
        }
