"""Splits running text into the words that a tagger labels.

    text      "Jean-Paul of AT&T, U.S."           [B]
    words      Jean-Paul of AT&T , U.S.           [B, (W)]

BERT's tokenizer splits text at white space, at punctuation and around each CJK ideograph. Its words
are joined again where corpora do not split them. There are two simpler ways to find words. BERT's
own words would need tags of tokens that have none in training ("U.S.", "@user", "Jean-Paul": only
the first token of a word is labeled). White space alone would leave "London." and whole Chinese
sentences as one word. Of the 3,891 entities of WNUT-17, written as running text, 98.5 % consist of
the corpus's own words with joined words, 96.3 % with BERT's own, 75.6 % with white space.
Apostrophes do not join: that would find O'Hara and lose the Italie of "l'Italie" and the Smith of
"Smith's". Clients that split words differently send words instead of texts.

B texts, W words of one, N words of all, T tokens of all.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.text.normalization import normalize_character
from keras_bert.text.tokenizer import (
    BertTokenizer,
    byte_to_char_offsets,
    row_ids,
    valid_utf8,
)

_JOINERS = "&-./@_"  # between letters or digits, without space: AT&T, Jean-Paul, AC/DC
_DIGIT_JOINERS = ",:"  # between digits: 1,000 and 7:30
_PREFIXES = "@#"  # before a letter or a digit: @user, #topic


class Spans(NamedTuple):
    """Where words lie in their texts.

    Attributes:
        starts: int32 [N], the first character of each word, as Python's `str` counts characters.
        ends: int32 [N], the character after its last.
        byte_starts: int32 [N], the first byte.
        byte_ends: int32 [N], the byte after the last.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    byte_starts: tf.Tensor
    byte_ends: tf.Tensor


class TextWords:
    """Splits texts into words as graph operations.

    Args:
        tokenizer: gives the tokens that words consist of.
    """

    def __init__(self, tokenizer: BertTokenizer):
        self.tokenizer = tokenizer
        # For each token of the vocabulary:
        vocab = tokenizer.vocab
        self._continues = np.array([token.startswith("##") for token in vocab])
        self._is_word = np.array([_is_word(token) for token in vocab])
        self._starts_with_digit = np.array([token[0].isdecimal() for token in vocab])
        self._ends_with_digit = np.array([token[-1].isdecimal() for token in vocab])
        self._is_joiner = np.array([token in tuple(_JOINERS) for token in vocab])
        self._is_digit_joiner = np.array([token in tuple(_DIGIT_JOINERS) for token in vocab])
        self._is_prefix = np.array([token in tuple(_PREFIXES) for token in vocab])
        self._is_period = np.array([token == "." for token in vocab])

    def split(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, Spans]:
        """Splits texts into words.

        Args:
            text: strings [B] of any length; a byte that is not UTF-8 counts as a character.

        Returns:
            The tokens of each word, ragged int32 [B, (W), (P)], at least one a word; and where the
            words lie.
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
        """Finds the tokens that start a word, bool [T].

        Words with nothing between them are joined around a joiner (Jean-Paul, 1,000), after a
        prefix (@user), and before the last period of initials (U.S.).

        Args:
            ids: ragged int32 [B, (tokens)].
            starts: the character that each token starts at, int32 [T].
            ends: the character after its last, int32 [T].
        """
        opens = ~tf.gather(self._continues, ids.values)
        # For each of BERT's own words: its first token, its last one, its characters.
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
        # "U.S.": the period before its last letter joins too.
        period = tf.gather(self._is_period, first)
        initial = is_word & ~tf.gather(self._starts_with_digit, first) & (end - start == 1)
        initial &= _before(joins & period)
        continues = joins | _before(joins) | after_prefix | (period & touches & _before(initial))
        return tf.tensor_scatter_nd_update(opens, at[:, tf.newaxis], ~continues)


def _is_word(token: str) -> bool:
    """Tells whether a token starts with a letter or digit that is not a word of its own."""
    return token[0].isalnum() and not normalize_character(token[0], False).startswith(" ")


def _before(values: tf.Tensor, first: int = 0) -> tf.Tensor:
    """Returns at each place the value before it."""
    return tf.concat([tf.cast([first], values.dtype), values], axis=0)[:-1]


def _after(values: tf.Tensor) -> tf.Tensor:
    """Returns at each place the value after it; at the last one, False."""
    return tf.concat([values, [False]], axis=0)[1:]
