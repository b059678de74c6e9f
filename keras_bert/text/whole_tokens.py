"""Finds tokens that stay whole in texts, with TensorFlow ops.

    text       "see[URL]or [url]"                [B]
    split      "see" "R[URL]" "or [url]"         [B, (segments)]   exact matches
    normalize  "see" "R[URL]" "or  [ url ] "
    split      "see" "R[URL]" "or" "N[url]"      words             matches in normalized text

R and N are markers, characters that Unicode will never assign. A match is the leftmost one, and the
longest one there, as in the `tokenizers` library. A match also splits a word.

B texts, S segments, P parts of normalized segments, W words.
"""

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert.errors import InputError
from keras_bert.text.normalization import normalize_character
from keras_bert.text.settings import TokenizerSettings, UserToken

# Noncharacters of three bytes each.
EXACT, NORMALIZED = "\ufdd5", "\ufdd6"
MARKERS = (EXACT, NORMALIZED)
_SEPARATOR, _REPLACEMENT = "\ufdd7", "\ufdef"
_MARKER_BYTES = 3


class WholeTokens:
    """Finds tokens that stay whole.

    `entries` is, for each token in the order of `tokens`, the word that stands for it.

    Raises:
        InputError: two tokens are the same in normalized text, one is empty there, or one contains
            a capital sigma, whose lower case depends on the text around it.
    """

    def __init__(self, tokens: Sequence[UserToken], settings: TokenizerSettings):
        self.entries: list[str] = []
        exact: list[str] = []
        images: dict[str, str] = {}
        for token in tokens:
            if not token.normalized:
                exact.append(token.content)
                self.entries.append(EXACT + token.content)
                continue
            image = "".join(normalize_character(char, settings) for char in token.content)
            problem = _problem(token.content, image, images, settings)
            if problem:
                raise InputError(
                    f"user token {token.content!r}: {problem} in normalized text; expected tokens "
                    "that differ there, or normalized=False"
                )
            images[image] = token.content
            self.entries.append(NORMALIZED + image.replace(" ", ""))
        self._exact, self._normalized = _pattern(exact), _pattern([*images])

    def split(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings [B] at exact matches: ragged [B, (S)]; matches start with EXACT."""
        reserved = f"[{EXACT}{NORMALIZED}{_SEPARATOR}]"
        text = tf.strings.regex_replace(text, reserved, _REPLACEMENT)
        return _split(text, self._exact, EXACT)

    def words(self, normalized: tf.Tensor) -> tf.RaggedTensor:
        """Splits normalized strings [S] into words, ragged [S, (W)]; matches are words."""
        if self._normalized is None:
            return tf.strings.split(normalized)
        parts = _split(normalized, self._normalized, NORMALIZED)
        is_match = starts_with(parts.values, NORMALIZED)
        word = tf.strings.join([" ", tf.strings.regex_replace(parts.values, " ", ""), " "])
        parts = parts.with_values(tf.where(is_match, word, parts.values))
        return tf.strings.split(tf.strings.reduce_join(parts, axis=-1))

    def words_with_offsets(
        self, normalized: tf.Tensor, splitter: tf_text.WhitespaceTokenizer
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the words, as `words`, and their starts and ends in the normalized strings."""
        if self._normalized is None:
            return splitter.split_with_offsets(normalized)
        parts = _split(normalized, self._normalized, NORMALIZED)
        is_match = starts_with(parts.values, NORMALIZED)
        starts = part_starts(parts, is_match)
        plain = splitter.split_with_offsets(tf.where(is_match, "", parts.values))
        match = tf.boolean_mask(parts.values, is_match)
        # The spaces around the match do not belong to its word.
        leading = tf.strings.length(
            tf.strings.regex_replace(match, f"^{NORMALIZED}( *)(.|\n)*", r"\1")
        )
        trimmed = tf.strings.length(tf.strings.strip(match)) - _MARKER_BYTES
        of_match = tf.strings.regex_replace(match, " ", ""), leading, trimmed
        words, firsts, lasts = (
            with_matches(values, is_match, of_matches)
            for values, of_matches in zip(plain, of_match, strict=True)
        )
        of_word = tf.repeat(starts, words.row_lengths())
        grouped = (words, firsts + firsts.with_values(of_word), lasts + lasts.with_values(of_word))
        return tuple(parts.with_values(values).merge_dims(1, 2) for values in grouped)


def _problem(
    content: str, image: str, images: Mapping[str, str], settings: TokenizerSettings
) -> str | None:
    if not image.strip():
        return "is empty"
    if image in images:
        return f"is the same as {images[image]!r}"
    if settings.do_lower_case and "Σ" in content:
        return "has no unique form of the capital sigma"
    return None


def starts_with(text: tf.Tensor, marker: str) -> tf.Tensor:
    """Returns whether strings [S] start with a marker, bool [S]."""
    return tf.strings.substr(text, 0, _MARKER_BYTES) == marker


def part_starts(parts: tf.RaggedTensor, is_match: tf.Tensor) -> tf.Tensor:
    """Returns the start of each part in its text in bytes, int32 [P].

    `parts` are the parts of texts, ragged [B, (P)]; those with `is_match`, bool [P], have a marker.
    """
    size = tf.strings.length(parts.values) - tf.where(is_match, _MARKER_BYTES, 0)
    before = tf.cumsum(size, exclusive=True)
    first = tf.gather(tf.pad(before, [[0, 1]]), parts.row_starts())
    return before - tf.repeat(first, parts.row_lengths())


def with_matches(
    rows: tf.RaggedTensor, is_match: tf.Tensor, of_matches: tf.Tensor
) -> tf.RaggedTensor:
    """Adds a value to the end of each row, ragged [P, (W)], that is a match, bool [P]."""
    values = tf.cast(of_matches, rows.dtype)
    matches = tf.RaggedTensor.from_row_lengths(values, tf.cast(is_match, tf.int64), validate=False)
    return tf.concat([rows, matches], axis=1)


def _split(text: tf.Tensor, pattern: str | None, marker: str) -> tf.RaggedTensor:
    if pattern is None:
        return tf.RaggedTensor.from_row_lengths(text, tf.ones_like(text, tf.int64))
    marked = tf.strings.regex_replace(text, pattern, rf"{_SEPARATOR}{marker}\1{_SEPARATOR}")
    return tf.strings.split(marked, _SEPARATOR)


def _pattern(texts: Sequence[str]) -> str | None:
    """Returns a pattern for the leftmost and there the longest of the texts; None if none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return f"({'|'.join(map(_escape, longest_first))})" if texts else None


def _escape(text: str) -> str:
    # RE2 allows a backslash only before ASCII punctuation.
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
