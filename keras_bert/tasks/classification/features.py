"""Texts -> tokenized examples: a tf.data pipeline of batches of lines in, Examples out.

texts [n] -> batches of 1024 -> word pieces -> [CLS] a [SEP] b [SEP], cut -> Examples
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_bert.tasks.classification.texts import Texts
from keras_bert.tasks.fine_tuning.examples import Examples, from_packed
from keras_bert.text.padding import pack
from keras_bert.text.tokenizer import BertTokenizer

LINES = 1024


def tokenize_texts(
    texts: Texts, labels: np.ndarray | None, tokenizer: BertTokenizer, max_seq_length: int
) -> Examples:
    """Tokenizes texts or pairs; what is too long is cut as `packing.pack` cuts it.

    Args:
        texts: n examples.
        labels: their labels, [n] or [n, C], or None.
        tokenizer: the model's.
        max_seq_length: pieces an example at most, with [CLS] and [SEP].

    Returns:
        The examples in order, with "labels" if there are any.

    Raises:
        InputError: max_seq_length has no room for one piece a text.
    """

    @tf.autograph.experimental.do_not_convert  # Else errors would come wrapped.
    def packed(sides: tuple[tf.Tensor, ...], labels: Mapping[str, tf.Tensor]) -> dict:
        pieces = [tokenizer.tokenize(side) for side in sides]
        features = pack(
            *pieces,
            max_seq_length=max_seq_length,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        return features | labels

    sides = [texts.first] if texts.second is None else [texts.first, texts.second]
    # JSON can spell half a character, which UTF-8 cannot.
    encoded = tuple(tf.constant([text.encode("utf-8", "replace") for text in s]) for s in sides)
    named = {} if labels is None else {"labels": labels}
    dataset = tf.data.Dataset.from_tensor_slices((encoded, named)).batch(LINES)
    dataset = dataset.map(packed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return from_packed(dataset.as_numpy_iterator(), labels=tuple(named))
