"""Computes positions in strings, in bytes and in characters, with TensorFlow ops.

Byte offsets count bytes of UTF-8; character offsets are indices of a Python `str`.
"""

import re
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

# The characters of valid UTF-8, for a character class of a regular expression.
VALID = r"\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}"
DROPPED = "\x01"  # a control character, because normalization drops these


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Replaces each byte of strings [B] that is not valid UTF-8 by a control character.

    Byte positions do not change. A string has as many characters afterwards as Python's
    `bytes.decode("utf-8", "surrogateescape")` returns for the original.
    """
    is_valid = tf.strings.regex_full_match(text, f"(?s)[{VALID}]*")
    return tf.cond(tf.reduce_all(is_valid), lambda: text, lambda: mark_invalid(text))


def mark_invalid(text: tf.Tensor) -> tf.Tensor:
    """Replaces invalid bytes as `valid_utf8` does, without first checking whether there are any."""
    text = tf.strings.regex_replace(text, DROPPED, "\x02")
    # Insert a marker after each run of valid characters and in place of each invalid byte, then
    # remove the markers after valid runs.
    text = tf.strings.regex_replace(text, rf"(?s)([{VALID}]+)|\C", rf"\1{DROPPED}")
    return tf.strings.regex_replace(text, f"(?s)([^{DROPPED}]+){DROPPED}", r"\1")


def row_ids(row_splits: tf.Tensor) -> tf.Tensor:
    """Computes the row of each value of a ragged tensor from its `row_splits`, int32 [values].

    `RaggedTensor.value_rowids()` would need memory for (number of rows) x (longest row) values.
    """
    size = tf.cast(row_splits[-1], tf.int32)
    ends = tf.cast(row_splits[1:], tf.int32)
    return tf.cumsum(tf.math.bincount(ends, minlength=size, maxlength=size))


def bytes_of(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenates strings [B]: returns uint8 [bytes], and the start of each string, int64 [B]."""
    starts = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
    return tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8), starts


def byte_to_char_offsets(text: tf.Tensor, offsets: tf.RaggedTensor) -> tf.RaggedTensor:
    """Converts byte offsets to character offsets, which index a Python str.

    `text` are strings [B] of valid UTF-8. The offsets, before and after the conversion, are ragged
    int32 [B, (tokens)].
    """
    text_bytes, text_starts = bytes_of(tf.convert_to_tensor(text, tf.string))
    begins_character = tf.cast(tf.bitwise.bitwise_and(text_bytes, 0xC0) != 0x80, tf.int32)
    characters = tf.pad(tf.cumsum(begins_character), [[1, 0]])
    first = tf.gather(text_starts, row_ids(offsets.row_splits))
    counts = tf.gather(characters, first + tf.cast(offsets.values, tf.int64)) - tf.gather(
        characters, first
    )
    return offsets.with_values(counts)


def offsets_in_text(
    text: tf.Tensor,
    sources: tf.RaggedTensor,
    word_text: tf.Tensor,
    word_starts: tf.Tensor,
    word: tf.Tensor,
    starts: tf.Tensor,
    ends: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the start and the end of each of T tokens in its original text, int64 [T] each.

    All positions are in bytes.

    Args:
        text: the original texts, strings [B].
        sources: ragged int64 [B, (bytes + 1)], maps each byte of a normalized text to the start of
            the original character that it comes from. The last value of each row is the length of
            the original text.
        word_text: the index in the batch of the text of each of W words, int32 [W].
        word_starts: the start of each word in its normalized text, int32 [W].
        word: the index of each token's word, int32 [T].
        starts: the start of each token in its word, int64 [T].
        ends: the end of each token in its word, int64 [T].
    """
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
            tf.gather(characters, text_start + tf.gather(offset, gaps))
            for offset in (end, following)
        )
        codes = tf.strings.unicode_decode(text, "UTF-8").values
        gap = tf.strings.unicode_encode(tf.gather(codes, tf.ragged.range(first, after)), "UTF-8")
        accents = tf.strings.length(tf.strings.regex_replace(gap, r"[\p{Cc}\p{Cf}\x{FFFD}]+$", ""))
        return tf.tensor_scatter_nd_add(end, gaps[:, tf.newaxis], tf.cast(accents, tf.int64))

    end = tf.cond(tf.size(gaps) > 0, with_accents, lambda: end)
    return start, end


# --- strings ---


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_texts(texts: Iterable[str | bytes]) -> np.ndarray:
    """Encodes texts as UTF-8, and returns them in an object array [n].

    Bytes are returned unchanged. Lone surrogates, which UTF-8 cannot represent, become U+FFFD, so
    character offsets stay the same.
    """
    encoded = [text if isinstance(text, bytes) else _encode(text) for text in texts]
    array = np.empty([len(encoded)], object)
    array[:] = encoded
    return array


def decode_texts(values: np.ndarray) -> np.ndarray:
    """Decodes UTF-8 byte strings, and returns them in an object array of the same shape.

    A byte that is not valid UTF-8 becomes a lone surrogate.
    """
    decoded = np.empty(values.size, object)
    decoded[:] = [value.decode("utf-8", "surrogateescape") for value in values.ravel()]
    return decoded.reshape(values.shape)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text).encode()
