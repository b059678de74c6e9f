"""Splits running text into the words that a tagger labels.

    text      "Jean-Paul of AT&T, U.S."           [B]
    words      Jean-Paul of AT&T , U.S.           [B, (W)]

BERT's basic tokenizer splits text at white space, at punctuation and around each CJK ideograph.
This module joins the resulting words where corpora do not split them. BERT's own words would need
tags for parts of corpus words that have no tag in training, such as "Paul" in "Jean-Paul". White
space alone would keep "London." and whole Chinese sentences as one word. In WNUT-17, written as
running text, 98.5 % of the 3,891 entities consist of whole words of this module, 96.3 % of BERT's
words, and 75.6 % of words between white space.

Words are not joined at apostrophes: "O'Hara" would become one word, but "Italie" in "l'Italie" and
"Smith" in "Smith's" would no longer be words. Clients that need other words can send words instead
of texts.

B texts, W words of one text, N words of all texts, P tokens of a word, T tokens of all texts.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.text.normalization import normalize_character
from keras_bert.text.offsets import byte_to_char_offsets, row_ids, valid_utf8
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer

_JOINERS = "&-./@_"  # Between letters or digits, without spaces: AT&T, Jean-Paul, AC/DC.
_DIGIT_JOINERS = ",:"  # Between digits: 1,000 and 7:30.
_PREFIXES = "@#"  # Before a letter or a digit: @user, #topic.


class Spans(NamedTuple):
    """The start and end offsets of words in their texts, int32 [N] each.

    Characters are counted as in Python's `str`, and bytes in UTF-8. An end is the offset after the
    last character or byte.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    byte_starts: tf.Tensor
    byte_ends: tf.Tensor


class TextWords:
    """Splits texts into words in a TensorFlow graph."""

    def __init__(self, tokenizer: BertTokenizer):
        self.tokenizer = tokenizer
        # One value for each token of the vocabulary.
        vocab = tokenizer.vocab
        self._continues = np.array([token.startswith("##") for token in vocab])
        self._is_word = np.array([_is_word(token, tokenizer.settings) for token in vocab])
        self._starts_with_digit = np.array([token[0].isdecimal() for token in vocab])
        self._ends_with_digit = np.array([token[-1].isdecimal() for token in vocab])
        self._is_joiner = np.array([token in tuple(_JOINERS) for token in vocab])
        self._is_digit_joiner = np.array([token in tuple(_DIGIT_JOINERS) for token in vocab])
        self._is_prefix = np.array([token in tuple(_PREFIXES) for token in vocab])
        self._is_period = np.array([token == "." for token in vocab])

    def split(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, Spans]:
        """Splits texts, strings [B], into words.

        An invalid UTF-8 byte counts as one character.

        Returns:
            The tokens of each word, ragged int32 [B, (W), (P)] with at least one token per word,
            and the offsets of the words.
        """
        ids, *byte_places = self.tokenizer.tokenize_with_offsets(text)
        counted = valid_utf8(text)
        starts, ends = (byte_to_char_offsets(counted, places).values for places in byte_places)
        byte_starts, byte_ends = (places.values for places in byte_places)
        first = tf.where(self._starts_word(ids, starts, ends))[:, 0]
        splits = tf.concat([first, ids.row_splits[-1:]], axis=0)
        last = splits[1:] - 1
        words = tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)
        text_splits = tf.searchsorted(first, ids.row_splits, out_type=tf.int64)
        words = tf.RaggedTensor.from_row_splits(words, text_splits, validate=False)
        return words, Spans(
            starts=tf.gather(starts, first),
            ends=tf.gather(ends, last),
            byte_starts=tf.gather(byte_starts, first),
            byte_ends=tf.gather(byte_ends, last),
        )

    def _starts_word(self, ids: tf.RaggedTensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Marks the tokens that start a word, bool [T].

        BERT's words are joined, if no space is between them, around a joiner (Jean-Paul, 1,000),
        after a prefix (@user), and before the last period of initials (U.S.). `starts` and `ends`
        are the character offsets of the tokens, int32 [T] each.
        """
        opens = ~tf.gather(self._continues, ids.values)
        # The first token, last token and character offsets of each of BERT's own words.
        at = tf.where(opens)[:, 0]
        last_at = tf.concat([at, ids.row_splits[-1:]], axis=0)[1:] - 1
        first, last = tf.gather(ids.values, at), tf.gather(ids.values, last_at)
        start, end = tf.gather(starts, at), tf.gather(ends, last_at)
        text = tf.gather(row_ids(ids.row_splits), at)
        touches = (start == _before(end, -1)) & (text == _before(text, -1))

        is_unknown = first == self.tokenizer.unk_token_id
        is_word = tf.gather(self._is_word, first) | (is_unknown & (end - start > 1))
        digits = tf.gather(self._is_digit_joiner, first)
        digits &= _before(tf.gather(self._ends_with_digit, last))
        digits &= _after(tf.gather(self._starts_with_digit, first))
        joins = (tf.gather(self._is_joiner, first) | digits) & touches & _before(is_word)
        joins &= _after(touches & is_word)
        after_prefix = is_word & touches & _before(tf.gather(self._is_prefix, first))
        # The last period of "U.S." also joins, because the period before the last letter does.
        period = tf.gather(self._is_period, first)
        initial = is_word & ~tf.gather(self._starts_with_digit, first) & (end - start == 1)
        initial &= _before(joins & period)
        continues = joins | _before(joins) | after_prefix | (period & touches & _before(initial))
        return tf.tensor_scatter_nd_update(opens, at[:, tf.newaxis], ~continues)


def _is_word(token: str, settings: TokenizerSettings) -> bool:
    """Returns whether a token starts with a letter or digit.

    CJK ideographs count as letters only if the tokenizer does not split them.
    """
    return token[0].isalnum() and not normalize_character(token[0], settings).startswith(" ")


def _before(values: tf.Tensor, first: int = 0) -> tf.Tensor:
    """Returns the value before each value, and `first` for the first one."""
    return tf.concat([tf.cast([first], values.dtype), values], axis=0)[:-1]


def _after(values: tf.Tensor) -> tf.Tensor:
    """Returns the value after each value, and False for the last one."""
    return tf.concat([values, [False]], axis=0)[1:]
