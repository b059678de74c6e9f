"""Long texts as a head and a tail, or as windows."""

import pytest
import tensorflow as tf

from keras_bert.text.windows import make_text_windows

CLS, SEP = 101, 102
SPECIAL = {"cls_token_id": CLS, "sep_token_id": SEP}


def texts_of(*lengths):
    """Returns texts whose tokens are numbered from 1, and from 1,001 in the second text."""
    rows = [[1000 * row + 1 + i for i in range(length)] for row, length in enumerate(lengths)]
    return rows, tf.ragged.constant(rows, tf.int32, ragged_rank=1)


@pytest.mark.parametrize("lengths", [(), (0,), (4,), (5, 0, 1, 4, 11, 3), (100, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_windows_start_at_each_stride_until_the_text_is_covered(lengths, stride):
    rows, tokens = texts_of(*lengths)
    tokens = tokens if rows else tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int32), [0])
    windows = make_text_windows(tokens, max_seq_length=6, stride=stride, **SPECIAL)
    expected, texts = [], []
    for text, row in enumerate(rows):
        start = 0
        while True:
            expected.append([CLS, *row[start : start + 4], SEP])
            texts.append(text)
            if start + 4 >= len(row):
                break
            start += stride
    assert windows.input_ids.to_list() == expected
    assert windows.text.numpy().tolist() == texts
    assert windows.truncated.numpy().tolist() == [False] * len(rows)
    assert not windows.segment_ids.values.numpy().any()


def test_many_short_texts_are_accepted_and_long_ones_rejected_in_a_graph():
    make = tf.function(
        lambda tokens, stride: make_text_windows(
            tokens, max_seq_length=512, stride=stride, **SPECIAL
        ),
    )
    _, short = texts_of(*[3] * 17_000)
    assert make(short, 255).input_ids.nrows() == 17_000
    # The number of tokens in the windows, 2.5 billion, is larger than int32.
    text = tf.RaggedTensor.from_row_lengths(tf.ones([5_000_000], tf.int32), [5_000_000])
    with pytest.raises(tf.errors.InvalidArgumentError, match="have more than 8388608 tokens"):
        make(text, 1)
