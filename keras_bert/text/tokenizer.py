r"""Tokenizes text into WordPiece tokens, as TensorFlow graph operations.

In: strings [B] of UTF-8. Out: ragged int32 ids [B, (pieces)] and, where asked, the byte offsets of
each piece in the caller's text. Pieces are those of Google's released BERT (docs/tokenizer.md).

    text            "Çok iyi!"                 [B]
      prepare       special tokens, final sigma, invalid bytes; never changes a byte's place
      normalize     "cok iyi ! "               [B]       one table of characters (normalization.py)
      split         "cok" "iyi" "!"            [B, (words)]
      word pieces   "co" "##k" "i" "##yi" "!"  [B, (pieces)]    greedy longest match

All ops are of core TensorFlow or tensorflow-text, so a SavedModel can hold them.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert.common.errors import InputError
from keras_bert.text.normalization import final_sigma_pattern, normalizer_model
from keras_bert.text.vocabulary import SPECIAL_TOKENS, check_vocab, load_vocab

MAX_CHARS_PER_WORD = 200

# Kept special tokens pass through normalization and the word pieces as characters that Unicode
# will never assign. A text's own ones become another such character.
_STANDINS = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"
_NO_STANDIN = "\ufdef"
_DROPPED = "\x01"  # any control character: normalization drops it

_VALID = r"\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}"
_VALID_WITHOUT_SIGMA = r"\x{0}-\x{3A2}\x{3A4}-\x{D7FF}\x{E000}-\x{10FFFF}"


class BertTokenizer:
    """BERT's tokenizer as TensorFlow graph ops.

    Example:
        tokenizer = BertTokenizer("vocab.txt")
        tokenizer.tokenize(["un-lockable"])  # [[4895, 1011, 5843, 3085]]

    Args:
        vocab: a vocabulary file, or its pieces in the order of their ids.
        do_lower_case: lower-case and strip accents: True for uncased vocabularies.
        keep_special_tokens: "[MASK]" and the like, written literally in a text, become their one
            id; else they are text like any other: "[", "mask", "]".

    Raises:
        InputError: the vocabulary cannot be used (`load_vocab`).
    """

    def __init__(
        self,
        vocab: Sequence[str] | os.PathLike | str,
        do_lower_case: bool = True,
        keep_special_tokens: bool = False,
    ):
        if isinstance(vocab, (str, os.PathLike)):
            self.vocab = load_vocab(vocab)
        else:
            self.vocab = list(vocab)
            check_vocab(self.vocab)
        self.vocab_size = len(self.vocab)
        self.do_lower_case = do_lower_case
        self.keep_special_tokens = keep_special_tokens
        self._special_token_ids = [self.vocab.index(token) for token in SPECIAL_TOKENS]
        (
            self.pad_token_id,
            self.unk_token_id,
            self.cls_token_id,
            self.sep_token_id,
            self.mask_token_id,
        ) = self._special_token_ids

        standins = _STANDINS if keep_special_tokens else ""
        table = np.frombuffer(normalizer_model(do_lower_case, standins), np.uint8)
        with tf.init_scope():
            self._normalizer = tf_text.FastBertNormalizer(model_buffer=tf.constant(table))
            try:
                self._word_pieces = tf_text.FastWordpieceTokenizer(
                    # The stand-ins get the ids from vocab_size on.
                    vocab=[*self.vocab, *standins],
                    max_bytes_per_word=4 * MAX_CHARS_PER_WORD,
                    token_out_type=tf.int32,
                    no_pretokenization=True,
                )
            except RuntimeError as error:
                raise InputError(f"tensorflow-text cannot use this vocabulary: {error}") from None
            self._splitter = tf_text.WhitespaceTokenizer()

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Cuts texts into word pieces.

        Args:
            text: strings [B]; bytes that are not UTF-8 are passed over.

        Returns:
            Ragged int32 ids [B, (pieces)].
        """
        words = tf.strings.split(self._normalizer.normalize(self._prepare(text)))
        pieces = self._word_pieces.tokenize(_without_long_words(words.values))
        return _by_text(words, pieces, self._final_ids(pieces.values))

    def split_words(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Cuts texts into normalized words, the units that word pieces are cut from.

        Args:
            text: strings [B].

        Returns:
            Ragged strings [B, (words)].
        """
        words = tf.strings.split(self._normalizer.normalize(self._prepare(text)))
        values = words.values
        if self.keep_special_tokens:
            for token, standin in zip(SPECIAL_TOKENS, _STANDINS, strict=True):
                values = tf.strings.regex_replace(values, standin, token)
        return words.with_values(values)

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Cuts texts into word pieces and says where in the text each one lies.

        A piece covers whole characters of the text, with the accents that follow them; [UNK]
        covers its word. Pieces cut from one character (a Hangul syllable) share its place.

        Args:
            text: strings [B].

        Returns:
            ids, starts and ends, each ragged int32 [B, (pieces)]: piece i of text b is
            `text[b][starts[b, i]:ends[b, i]]`, counted in bytes.
        """
        text = self._prepare(text)
        normalized, sources = self._normalizer.normalize_with_offsets(text)
        words, word_starts, word_ends = self._splitter.split_with_offsets(normalized)
        pieces, starts, ends = self._word_pieces.tokenize_with_offsets(
            _without_long_words(words.values)
        )
        ids = pieces.values
        # T pieces lie in W words, and count bytes from the start of theirs; [UNK] is all of it.
        word = row_ids(pieces.row_splits)
        word_size = tf.cast(word_ends.values - word_starts.values, tf.int64)
        ends = tf.where(ids == self.unk_token_id, tf.gather(word_size, word), ends.values)
        tokens = _TokensInWords(
            row_ids(words.row_splits), word_starts.values, word, starts.values, ends
        )
        starts, ends = _offsets_in_text(text, sources, tokens)
        if self.keep_special_tokens:
            lengths = tf.constant([len(token) for token in SPECIAL_TOKENS], starts.dtype)
            special = tf.gather(lengths, tf.maximum(ids - self.vocab_size, 0))
            ends = tf.where(ids < self.vocab_size, ends, starts + special)
        flat = (self._final_ids(ids), tf.cast(starts, tf.int32), tf.cast(ends, tf.int32))
        return tuple(_by_text(words, pieces, values) for values in flat)

    def _prepare(self, text: tf.Tensor) -> tf.Tensor:
        """Does what normalization cannot do character by character, each byte left in its place."""
        text = tf.convert_to_tensor(text, tf.string)
        if self.keep_special_tokens:
            text = tf.strings.regex_replace(text, f"[{_STANDINS}]", _NO_STANDIN)
            for token, standin in zip(SPECIAL_TOKENS, _STANDINS, strict=True):
                filled = standin + _DROPPED * (len(token) - len(standin.encode()))
                text = tf.strings.regex_replace(text, rf"\[{token[1:-1]}\]", filled)
        plain = _VALID_WITHOUT_SIGMA if self.do_lower_case else _VALID
        is_plain = tf.strings.regex_full_match(text, f"(?s)[{plain}]*")
        return tf.cond(tf.reduce_all(is_plain), lambda: text, lambda: self._repair(text))

    def _repair(self, text: tf.Tensor) -> tf.Tensor:
        """Puts a control character for each invalid byte, and a final sigma where one is due."""
        text = _mark_invalid(text)
        if self.do_lower_case:
            text = tf.strings.regex_replace(text, final_sigma_pattern(), r"\1ς\2")
        return text

    def _final_ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Puts the special tokens' ids for those of their stand-ins."""
        if not self.keep_special_tokens:
            return ids
        special = tf.gather(self._special_token_ids, tf.maximum(ids - self.vocab_size, 0))
        return tf.where(ids < self.vocab_size, ids, special)


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Puts a control character for each byte that is not UTF-8; no byte changes its place.

    Characters then count as in Python's `bytes.decode("utf-8", "surrogateescape")`.

    Args:
        text: strings [B].

    Returns:
        Strings [B] of the same lengths.
    """
    is_valid = tf.strings.regex_full_match(text, f"(?s)[{_VALID}]*")
    return tf.cond(tf.reduce_all(is_valid), lambda: text, lambda: _mark_invalid(text))


def _mark_invalid(text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.regex_replace(text, _DROPPED, "\x02")
    # A marker after each run of valid characters and for each other byte; then the former go.
    text = tf.strings.regex_replace(text, rf"(?s)([{_VALID}]+)|\C", rf"\1{_DROPPED}")
    return tf.strings.regex_replace(text, f"(?s)([^{_DROPPED}]+){_DROPPED}", r"\1")


def _by_text(words: tf.RaggedTensor, pieces: tf.RaggedTensor, values: tf.Tensor) -> tf.RaggedTensor:
    """Groups values, one a piece, by text: ragged [B, (pieces)]."""
    return words.with_values(pieces.with_values(values)).merge_dims(1, 2)


def row_ids(row_splits: tf.Tensor) -> tf.Tensor:
    """Says which row each value of a ragged tensor is of.

    `value_rowids()` would take memory for as many values as there are rows times the longest.

    Args:
        row_splits: integers [rows + 1], where each row starts, and the number of values.

    Returns:
        int32, one a value.
    """
    size = tf.cast(row_splits[-1], tf.int32)
    ends = tf.cast(row_splits[1:], tf.int32)
    return tf.cumsum(tf.math.bincount(ends, minlength=size, maxlength=size))


def _without_long_words(words: tf.Tensor) -> tf.Tensor:
    """Puts [UNK] for each word of more than 200 characters, as Google's tokenizer does."""

    def replace() -> tf.Tensor:
        too_long = tf.strings.length(words, unit="UTF8_CHAR") > MAX_CHARS_PER_WORD
        return tf.where(too_long, "[UNK]", words)

    # Counting characters is dear and such words are rare: count bytes first.
    some_may_be = tf.reduce_any(tf.strings.length(words) > MAX_CHARS_PER_WORD)
    return tf.cond(some_may_be, replace, lambda: words)


class _TokensInWords(NamedTuple):
    """Where T tokens lie in W normalized words.

    Attributes:
        word_text: which text each word is of, int32 [W].
        word_starts: where each word begins in its normalized text, int32 [W].
        word: which word each token is of, int32 [T].
        starts: where each token begins in its word, int64 [T], bytes.
        ends: where it ends, int64 [T].
    """

    word_text: tf.Tensor
    word_starts: tf.Tensor
    word: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def _offsets_in_text(
    text: tf.Tensor, sources: tf.RaggedTensor, tokens: _TokensInWords
) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps the bytes of normalized words to those of the texts.

    Args:
        text: strings [B].
        sources: ragged int64 [B, (bytes + 1)], for each byte of a normalized text the place in the
            text where its character begins (a character that stands for itself: its own place), and
            at the end the text's length.
        tokens: where the tokens lie.

    Returns:
        The starts and ends in the text, int64 [T].
    """
    word_text, word_starts, word, starts, ends = tokens
    text_bytes, text_starts = bytes_of(text)
    word_source = tf.gather(sources.row_starts(), word_text) + tf.cast(word_starts, tf.int64)
    first = tf.gather(word_source, word)
    start = tf.gather(sources.values, first + starts)
    last = tf.gather(sources.values, first + ends - 1)
    lead = tf.gather(text_bytes, tf.gather(tf.gather(text_starts, word_text), word) + last)
    end = last + 1 + sum(tf.cast(lead >= least, tf.int64) for least in (0xC0, 0xE0, 0xF0))

    # What follows in the text. A word of its own has a space after it that is the same character.
    after = first + ends
    following = tf.gather(sources.values, after)
    after = tf.minimum(after + 1, tf.size(sources.values, tf.int64) - 1)
    following = tf.where(following > last, following, tf.gather(sources.values, after))
    # What lies between was dropped: accents, which belong to the piece, or control characters.
    gaps = tf.where(following > end)[:, 0]

    def with_accents() -> tf.Tensor:
        # The gaps alone are cut out: of a long text with many, each would copy all of it.
        begins_character = tf.bitwise.bitwise_and(text_bytes, 0xC0) != 0x80
        characters = tf.pad(tf.cumsum(tf.cast(begins_character, tf.int64)), [[1, 0]])
        text_start = tf.gather(tf.gather(text_starts, word_text), tf.gather(word, gaps))
        first, after = (
            tf.gather(characters, text_start + tf.gather(place, gaps)) for place in (end, following)
        )
        codes = tf.strings.unicode_decode(text, "UTF-8").values
        gap = tf.strings.unicode_encode(tf.gather(codes, tf.ragged.range(first, after)), "UTF-8")
        accents = tf.strings.length(tf.strings.regex_replace(gap, r"[\p{Cc}\p{Cf}\x{FFFD}]+$", ""))
        return tf.tensor_scatter_nd_add(end, gaps[:, tf.newaxis], tf.cast(accents, tf.int64))

    end = tf.cond(tf.size(gaps) > 0, with_accents, lambda: end)
    return start, end


def bytes_of(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Lays out the bytes of texts.

    Args:
        text: strings [B].

    Returns:
        All bytes one after the other, uint8, and where each text's begin, int64 [B].
    """
    starts = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
    return tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8), starts


def byte_to_char_offsets(text: tf.Tensor, offsets: tf.RaggedTensor) -> tf.RaggedTensor:
    """Turns byte offsets into character offsets, as Python's `str` counts them.

    Args:
        text: strings [B] of valid UTF-8.
        offsets: ragged int32 [B, (pieces)], bytes.

    Returns:
        Ragged int32 [B, (pieces)], characters.
    """
    text_bytes, text_starts = bytes_of(tf.convert_to_tensor(text, tf.string))
    begins_character = tf.cast(tf.bitwise.bitwise_and(text_bytes, 0xC0) != 0x80, tf.int32)
    characters = tf.pad(tf.cumsum(begins_character), [[1, 0]])
    first = tf.gather(text_starts, row_ids(offsets.row_splits))
    counts = tf.gather(characters, first + tf.cast(offsets.values, tf.int64)) - tf.gather(
        characters, first
    )
    return offsets.with_values(counts)
