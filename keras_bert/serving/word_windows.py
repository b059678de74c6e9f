"""Words as pieces -> the logits of each word, in the graph: texts of any length, in windows.

    words      [[[johan ##son] [visits] [ulm]] [[hi]]]        ragged [B, (W), (P)]
    windows    [CLS] johan ##son visits [SEP]                 ragged [n, (S)]
               [CLS] visits ulm [SEP]   [CLS] hi [SEP]
    logits     of johan, visits, ulm, hi                      [N, C]

A text that fits is one window, the very one that run_ner makes of a sentence. A longer one is read
in windows that start every half of one, and each word in the window that shows most around it.

B texts, W words of one, N words of all, P pieces of a word, n windows, S pieces of one, C labels.
"""

import tensorflow as tf

from keras_bert.serving.network import Network
from keras_bert.text.tokenizer import row_ids


def word_logits(
    network: Network,
    words: tf.RaggedTensor,
    max_seq_length: int,
    cls_token_id: int,
    sep_token_id: int,
) -> tf.Tensor:
    """Runs a tagger on words; the logits of a word are those of its first piece, as in training.

    Args:
        network: of a `BertTokenClassifier`.
        words: ragged int32 [B, (W), (P)], at least one piece a word; those that no window has room
            for are left out.
        max_seq_length: pieces of a window at most, with [CLS] and [SEP].
        cls_token_id: the id of [CLS].
        sep_token_id: the id of [SEP].

    Returns:
        float32 [N, C], in the order of the words.
    """
    room = max_seq_length - 2
    pieces = words.values[:, :room]
    text_starts = tf.gather(pieces.row_splits, words.row_splits)
    sizes = text_starts[1:] - text_starts[:-1]
    # Windows start `step` pieces after one another; one more for each step that does not fit.
    step = max(1, room // 2)
    counts = 1 + tf.maximum(-((room - sizes) // step), 0)
    first_windows = tf.concat([[0], tf.cumsum(counts)], axis=0)

    text = row_ids(first_windows)
    starts = step * (tf.range(first_windows[-1]) - tf.gather(first_windows, text))
    lengths = tf.minimum(tf.gather(sizes, text) - starts, room)
    begins = tf.gather(text_starts, text) + starts
    shown = tf.gather(pieces.values, tf.ragged.range(begins, begins + lengths))
    ends = [tf.fill([shown.nrows(), 1], token) for token in (cls_token_id, sep_token_id)]
    input_ids = tf.concat([ends[0], shown, ends[1]], axis=1)
    logits = network(input_ids, tf.zeros_like(input_ids))["logits"]

    # The first window that shows as much after the piece as the next one does before it.
    text = row_ids(words.row_splits)
    place = pieces.row_starts() - tf.gather(text_starts, text)
    window = -((step + room - 1 - 2 * place) // (2 * step))
    window = tf.clip_by_value(window, 0, tf.gather(counts, text) - 1)
    row = tf.gather(first_windows, text) + window
    return tf.gather(logits, tf.gather(input_ids.row_starts(), row) + 1 + place - step * window)
