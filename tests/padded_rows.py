"""Tokenizes texts to padded rows, as a client that tokenizes does."""

from collections.abc import Sequence

import tensorflow as tf

from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer


def padded_rows(
    tokenizer: BertTokenizer, max_seq_length: int, *sides: Sequence[str]
) -> dict[str, tf.Tensor]:
    """Returns `input_ids`, `input_mask` and `segment_ids`, int32 [B, S], of texts or pairs."""
    ids, segment_ids, _ = combine_segments(
        *(tokenizer.tokenize(tf.constant(side)) for side in sides),
        max_seq_length=max_seq_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    rows = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": segment_ids}
    shape = [None, max_seq_length]
    return {name: values.to_tensor(0, shape=shape) for name, values in rows.items()}
