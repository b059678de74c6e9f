"""Tokenizes text like Google's released BERT (docs/concepts/tokenizer.md), with TensorFlow ops.

    text        "Çok iyi!"                 [B]
      prepare   special tokens, final sigma, invalid bytes; no byte changes its position
      normalize "cok iyi ! "               [B]              character table (normalization.py)
      split     "cok" "iyi" "!"            [B, (words)]
      WordPiece "co" "##k" "i" "##yi" "!"  [B, (tokens)]    greedy longest match

The ops are from core TensorFlow and tensorflow-text, so a SavedModel can contain them.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert.common.errors import InputError
from keras_bert.text.normalization import final_sigma_pattern, normalizer_model
from keras_bert.text.vocabulary import (
    MAX_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    check_vocab,
    load_vocab,
)

# With keep_special_tokens, each special token is replaced by a stand-in, a character that Unicode
# will never assign, during normalization and WordPiece. Stand-in characters that occur in a text
# are replaced by _NO_STANDIN first.
_STANDINS = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"
_NO_STANDIN = "\ufdef"
_DROPPED = "\x01"  # any control character: normalization drops it

_VALID = r"\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}"
_VALID_WITHOUT_SIGMA = r"\x{0}-\x{3A2}\x{3A4}-\x{D7FF}\x{E000}-\x{10FFFF}"


class BertTokenizer:
    """Tokenizes texts into WordPiece token ids, in a TensorFlow graph or eagerly.

        tokenizer = BertTokenizer("vocab.txt")
        tokenizer.tokenize(["un-lockable"])  # [[4895, 1011, 5843, 3085]]

    Args:
        vocab: a vocabulary file, or its tokens in the order of their ids.
        do_lower_case: whether to lower-case and strip accents; True for uncased vocabularies.
        keep_special_tokens: whether special tokens in a text, such as "[MASK]", become their single
            id. By default they are ordinary text: "[", "mask", "]".

    Raises:
        InputError: the vocabulary is not valid (see `load_vocab`).
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
                self._wordpiece = tf_text.FastWordpieceTokenizer(
                    # The ids of the stand-ins start at vocab_size.
                    vocab=[*self.vocab, *standins],
                    max_bytes_per_word=4 * MAX_CHARS_PER_WORD,
                    token_out_type=tf.int32,
                    no_pretokenization=True,
                )
            except RuntimeError as error:
                is_file = isinstance(vocab, (str, os.PathLike))
                where = f"vocabulary {os.fspath(vocab)}" if is_file else "vocabulary"
                raise InputError(
                    f"{where}: tensorflow-text cannot use this vocabulary: {error}"
                ) from None
            self._splitter = tf_text.WhitespaceTokenizer()

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes strings [B] into token ids, ragged int32 [B, (tokens)].

        Bytes that are not valid UTF-8 are ignored.
        """
        words = tf.strings.split(self._normalizer.normalize(self._prepare(text)))
        word_tokens = self._wordpiece.tokenize(_without_long_words(words.values))
        return _by_text(words, word_tokens, self._final_ids(word_tokens.values))

    def split_words(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings [B] into normalized words, the input of WordPiece, ragged [B, (words)]."""
        words = tf.strings.split(self._normalizer.normalize(self._prepare(text)))
        values = words.values
        if self.keep_special_tokens:
            for token, standin in zip(SPECIAL_TOKENS, _STANDINS, strict=True):
                values = tf.strings.regex_replace(values, standin, token)
        return words.with_values(values)

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Tokenizes strings [B], and returns the position of each token in its text.

        A token covers whole characters and the accents that follow them; [UNK] covers a whole word.
        Tokens from one character, such as a Hangul syllable, have the same position.

        Returns:
            ids, starts and ends, each ragged int32 [B, (tokens)]. Token i of text b is the bytes
            `text[b][starts[b, i]:ends[b, i]]`.
        """
        text = self._prepare(text)
        normalized, sources = self._normalizer.normalize_with_offsets(text)
        words, word_starts, word_ends = self._splitter.split_with_offsets(normalized)
        word_tokens, starts, ends = self._wordpiece.tokenize_with_offsets(
            _without_long_words(words.values)
        )
        ids = word_tokens.values
        # The offsets of the T tokens are relative to the start of their word; [UNK] covers the
        # whole word.
        word = row_ids(word_tokens.row_splits)
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
        return tuple(_by_text(words, word_tokens, values) for values in flat)

    def _prepare(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces special tokens, final sigmas and invalid bytes, without moving other bytes."""
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
        """Replaces invalid bytes by control characters, and sigmas at word ends by final sigmas."""
        text = _mark_invalid(text)
        if self.do_lower_case:
            text = tf.strings.regex_replace(text, final_sigma_pattern(), r"\1ς\2")
        return text

    def _final_ids(self, ids: tf.Tensor) -> tf.Tensor:
        if not self.keep_special_tokens:
            return ids
        special = tf.gather(self._special_token_ids, tf.maximum(ids - self.vocab_size, 0))
        return tf.where(ids < self.vocab_size, ids, special)


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Replaces each byte of strings [B] that is not valid UTF-8 by a control character.

    Byte positions do not change. The number of characters is that of Python's
    `bytes.decode("utf-8", "surrogateescape")`.
    """
    is_valid = tf.strings.regex_full_match(text, f"(?s)[{_VALID}]*")
    return tf.cond(tf.reduce_all(is_valid), lambda: text, lambda: _mark_invalid(text))


def _mark_invalid(text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.regex_replace(text, _DROPPED, "\x02")
    # Insert a marker after each run of valid characters and in place of each invalid byte, then
    # remove the markers after valid runs.
    text = tf.strings.regex_replace(text, rf"(?s)([{_VALID}]+)|\C", rf"\1{_DROPPED}")
    return tf.strings.regex_replace(text, f"(?s)([^{_DROPPED}]+){_DROPPED}", r"\1")


def _by_text(
    words: tf.RaggedTensor, word_tokens: tf.RaggedTensor, values: tf.Tensor
) -> tf.RaggedTensor:
    """Groups values, one for each token, by text: ragged [B, (tokens)]."""
    return words.with_values(word_tokens.with_values(values)).merge_dims(1, 2)


def row_ids(row_splits: tf.Tensor) -> tf.Tensor:
    """Computes the row of each value from `row_splits`, as int32.

    `RaggedTensor.value_rowids()` would need memory for (number of rows) x (longest row) values.
    """
    size = tf.cast(row_splits[-1], tf.int32)
    ends = tf.cast(row_splits[1:], tf.int32)
    return tf.cumsum(tf.math.bincount(ends, minlength=size, maxlength=size))


def _without_long_words(words: tf.Tensor) -> tf.Tensor:
    """Replaces words of more than 200 characters by [UNK], as in Google's tokenizer."""

    def replace() -> tf.Tensor:
        too_long = tf.strings.length(words, unit="UTF8_CHAR") > MAX_CHARS_PER_WORD
        return tf.where(too_long, "[UNK]", words)

    # Counting characters is slow and such words are rare, so bytes are counted first.
    some_may_be = tf.reduce_any(tf.strings.length(words) > MAX_CHARS_PER_WORD)
    return tf.cond(some_may_be, replace, lambda: words)


class _TokensInWords(NamedTuple):
    """The positions of T tokens in the W words of the normalized texts, with offsets in bytes.

    word_text, int32 [W], is the index of each word's text; word_starts, int32 [W], the start of
    each word in its text. word, int32 [T], is the index of each token's word; starts and ends,
    int64 [T], are the offsets of each token in its word.
    """

    word_text: tf.Tensor
    word_starts: tf.Tensor
    word: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def _offsets_in_text(
    text: tf.Tensor, sources: tf.RaggedTensor, tokens: _TokensInWords
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the start and end of each token in its original text in bytes, int64 [T].

    `sources`, ragged int64 [B, (bytes + 1)], maps each byte of a normalized text to the start of
    the original character that it comes from; its last value is the length of the original text.
    """
    word_text, word_starts, word, starts, ends = tokens
    text_bytes, text_starts = bytes_of(text)
    word_source = tf.gather(sources.row_starts(), word_text) + tf.cast(word_starts, tf.int64)
    first = tf.gather(word_source, word)
    start = tf.gather(sources.values, first + starts)
    last = tf.gather(sources.values, first + ends - 1)
    lead = tf.gather(text_bytes, tf.gather(tf.gather(text_starts, word_text), word) + last)
    end = last + 1 + sum(tf.cast(lead >= least, tf.int64) for least in (0xC0, 0xE0, 0xF0))

    # The source position of the next character. After punctuation and CJK characters, normalization
    # inserts a space with the same source position; then the byte after the space counts.
    after = first + ends
    following = tf.gather(sources.values, after)
    after = tf.minimum(after + 1, tf.size(sources.values, tf.int64) - 1)
    following = tf.where(following > last, following, tf.gather(sources.values, after))
    # Characters between a token and the next character were dropped in normalization: accents,
    # which belong to the token, or control characters, which do not.
    gaps = tf.where(following > end)[:, 0]

    def with_accents() -> tf.Tensor:
        # Only the characters in the gaps are gathered: a substring op would copy a long text once
        # for each gap.
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
    """Returns the bytes of all strings [B], uint8, and the start of each string, int64 [B]."""
    starts = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
    return tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8), starts


def byte_to_char_offsets(text: tf.Tensor, offsets: tf.RaggedTensor) -> tf.RaggedTensor:
    """Converts byte offsets in strings [B] of valid UTF-8 to character offsets, as in Python.

    Both kinds of offsets are ragged int32 [B, (tokens)].
    """
    text_bytes, text_starts = bytes_of(tf.convert_to_tensor(text, tf.string))
    begins_character = tf.cast(tf.bitwise.bitwise_and(text_bytes, 0xC0) != 0x80, tf.int32)
    characters = tf.pad(tf.cumsum(begins_character), [[1, 0]])
    first = tf.gather(text_starts, row_ids(offsets.row_splits))
    counts = tf.gather(characters, first + tf.cast(offsets.values, tf.int64)) - tf.gather(
        characters, first
    )
    return offsets.with_values(counts)
