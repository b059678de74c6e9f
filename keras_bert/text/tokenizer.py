"""Tokenizes text like Google's released BERT (docs/concepts/tokenizer.md), with TensorFlow ops.

    text        "Çok iyi!"                 [B]              user tokens: `UserTokens`
      prepare   final sigma, invalid bytes; no byte changes its position
      normalize "cok iyi ! "               [B]              character table (normalization.py)
      split     "cok" "iyi" "!"            [B, (words)]
      WordPiece "co" "##k" "i" "##yi" "!"  [B, (tokens)]    greedy longest match

offsets.py finds the bytes of each token in its text. The ops are from core TensorFlow and
tensorflow-text, so a SavedModel can contain them.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.text.normalization import (
    final_sigma_pattern,
    normalize_character,
    normalizer_model,
)
from keras_bert.text.offsets import (
    VALID,
    encode_texts,
    mark_invalid,
    offsets_in_text,
    row_ids,
)
from keras_bert.text.padding import combine_segments
from keras_bert.text.settings import TokenizerSettings, UserToken, ids_of, number_of_subwords
from keras_bert.text.vocabulary import (
    MAX_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    check_vocab,
    load_vocab,
)
from keras_bert.text.word_cache import WordCache

_VALID_WITHOUT_SIGMA = r"\x{0}-\x{3A2}\x{3A4}-\x{D7FF}\x{E000}-\x{10FFFF}"


class BertTokenizer:
    """Tokenizes texts into WordPiece token ids, in a TensorFlow graph or eagerly.

    Example:
        tokenizer = BertTokenizer.from_pretrained("bert-base-uncased")
        tokenizer.encode("un-lockable")  # [101, 4895, 1011, 5843, 3085, 102]
        encoder(tokenizer(["A text.", "Another one."]))  # A BertEncoder
        tokenizer.tokenize(["un-lockable"])  # Ragged, without [CLS] and [SEP]

    Args:
        vocab: the path of a vocabulary file, or the V tokens in the order of their ids.
        do_lower_case: whether to lower-case; True for uncased vocabularies.
        keep_special_tokens: whether a special token in a text, such as "[MASK]", becomes a single
            token. By default, it is ordinary text: "[", "mask", "]".
        strip_accents: whether to strip accents; None for the value of `do_lower_case`.
        tokenize_chinese_chars: whether each CJK ideograph is a word of its own.
        user_tokens: tokens of the vocabulary that stay whole in texts, as strings, such as "[URL]",
            or as `UserToken` objects.
        max_input_chars_per_word: a word of more characters becomes [UNK]; 200 in Google's BERT.

    Raises:
        InputError: the vocabulary is not valid (see `load_vocab`), a setting is not a boolean, or a
            user token is not valid or not in the vocabulary.
    """

    # The names for users, which `dir` lists. The others are for the modules of this package.
    _public = (
        *("from_pretrained", "encode", "decode", "tokenize", "tokenize_with_offsets"),
        *("vocab", "vocab_size", "settings", "do_lower_case"),
        *("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id"),
    )

    def __init__(
        self,
        vocab: Sequence[str] | os.PathLike | str,
        do_lower_case: bool = True,
        keep_special_tokens: bool = False,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        user_tokens: Sequence[UserToken | str | Mapping[str, Any]] = (),
        max_input_chars_per_word: int = MAX_CHARS_PER_WORD,
    ):
        if isinstance(vocab, (str, os.PathLike)):
            self.vocab = load_vocab(vocab)
        else:
            self.vocab = list(vocab)
            check_vocab(self.vocab)
        self.vocab_size = len(self.vocab)
        self.settings = TokenizerSettings(
            do_lower_case,
            strip_accents,
            tokenize_chinese_chars,
            tuple(user_tokens),
            max_input_chars_per_word,
        )
        self.keep_special_tokens = keep_special_tokens
        self._special_token_ids = [self.vocab.index(token) for token in SPECIAL_TOKENS]
        (
            self.pad_token_id,
            self.unk_token_id,
            self.cls_token_id,
            self.sep_token_id,
            self.mask_token_id,
        ) = self._special_token_ids

        special = [UserToken(token) for token in SPECIAL_TOKENS if keep_special_tokens]
        user_ids = ids_of(self.settings.user_tokens, self.vocab)
        self._user_token_ids = [*self._special_token_ids[: len(special)], *user_ids]
        tokens = [*special, *self.settings.user_tokens]
        self._user_tokens = UserTokens(tokens, self.settings) if tokens else None
        # The words that stand for these tokens; their ids start at vocab_size.
        entries = self._user_tokens.entries if self._user_tokens else ()
        table = normalizer_model(replace(self.settings, user_tokens=()))
        table = np.frombuffer(table, np.uint8)
        with tf.init_scope():
            self._normalizer = tf_text.FastBertNormalizer(model_buffer=tf.constant(table))
            try:
                self._wordpiece = tf_text.FastWordpieceTokenizer(
                    vocab=[*_without_user_tokens(self.vocab, self.settings), *entries],
                    max_bytes_per_word=min(4 * max_input_chars_per_word, 2**31 - 1),
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

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name[0] == "_" or name in self._public]

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike, keep_special_tokens: bool = False
    ) -> "BertTokenizer":
        """Creates the tokenizer of a model; `path` is as for `BertEncoder.from_pretrained`."""
        # Imported here, because keras_bert.checkpoints imports this package.
        from keras_bert.checkpoints.open import open_checkpoint

        return open_checkpoint(path, hub_names=True).tokenizer(special=keep_special_tokens)

    def __call__(
        self,
        texts: Sequence[str] | str,
        pairs: Sequence[str] | str | None = None,
        max_seq_length: int = 512,
    ) -> dict[str, np.ndarray]:
        """Converts texts or pairs of texts into the inputs of a network, such as a `BertEncoder`.

        Args:
            texts: B strings, or one.
            pairs: the second texts of pairs, in the same form; None for single texts.
            max_seq_length: maximum number of tokens, with [CLS] and [SEP]. Longer texts are
                truncated, which is logged as a warning.

        Returns:
            "input_ids", "input_mask" and "segment_ids", int32 [B, S] each, padded to the length S
                of the longest row.
        """
        columns = {"texts": texts} | ({} if pairs is None else {"pairs": pairs})
        for name, column in columns.items():
            columns[name] = _strings(name, column)
        count, *others = map(len, columns.values())
        if others not in ([], [count]):
            raise InputError(
                f"texts has {count} items, and pairs has {others[0]}; expected the same number"
            )
        rows = combine_segments(
            *(self.tokenize(encode_texts(column)) for column in columns.values()),
            max_seq_length=max_seq_length,
            cls_token_id=self.cls_token_id,
            sep_token_id=self.sep_token_id,
        )
        truncated = int(np.count_nonzero(rows.truncated))
        if truncated:
            logging.warning(
                "%d of %d texts are truncated to max_seq_length=%d tokens",
                *(truncated, count, max_seq_length),
            )
        return {
            "input_ids": rows.input_ids.to_tensor(self.pad_token_id).numpy(),
            "input_mask": tf.ones_like(rows.input_ids).to_tensor().numpy(),
            "segment_ids": rows.segment_ids.to_tensor().numpy(),
        }

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Converts a text into token ids, by default between [CLS] and [SEP]; never truncates."""
        check_schema("text", text, str)
        (ids,) = self.tokenize(encode_texts([text])).to_list()
        return [self.cls_token_id, *ids, self.sep_token_id] if add_special_tokens else ids

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Joins the tokens of ids into a text, or those of several rows into texts.

        Args:
            ids: token ids, or rows of them: lists, an array or a ragged tensor.
            skip_special_tokens: whether to omit [CLS], [SEP], [PAD], [MASK] and [UNK].
        """
        rows = ids.to_list() if isinstance(ids, tf.RaggedTensor) else list(ids)
        rows = [np.asarray(row).tolist() for row in rows]
        if rows and isinstance(rows[0], list):
            return [self.decode(row, skip_special_tokens) for row in rows]
        wrong = [i for i in rows if not isinstance(i, int) or not 0 <= i < self.vocab_size]
        if wrong:
            raise InputError(
                f"ids contains {wrong[0]!r:.60}; expected whole numbers from 0 to "
                f"{self.vocab_size - 1}"
            )
        skipped = {*self._special_token_ids} if skip_special_tokens else ()
        return " ".join(self.vocab[i] for i in rows if i not in skipped).replace(" ##", "")

    @property
    def do_lower_case(self) -> bool:
        """Whether texts are lower-cased."""
        return self.settings.do_lower_case

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Whether each token of the vocabulary is a subword `##x`, bool [V]."""
        return np.array([token.startswith("##") for token in self.vocab])

    @functools.cached_property
    def starts_word(self) -> np.ndarray:
        """Whether each token of the vocabulary is a word or its first subword, bool [V]."""
        starts = ~self.is_continuation
        starts[self._special_token_ids] = False
        starts[self.unk_token_id] = True
        return starts

    @functools.cached_property
    def _ids_cache(self) -> WordCache:
        return self._cache(lambda units: [self._tokenize(units)], num_values=1)

    @functools.cached_property
    def _offsets_cache(self) -> WordCache:
        return self._cache(self._tokenize_with_offsets, num_values=3)

    def _cache(
        self, tokenize: Callable[[list[bytes]], Sequence[tf.RaggedTensor]], num_values: int
    ) -> WordCache:
        def values_of(units: list[bytes]) -> tuple[list[np.ndarray], np.ndarray]:
            columns = tokenize(tf.constant(units))
            return [each.values.numpy() for each in columns], columns[0].row_lengths().numpy()

        return WordCache(
            values_of, num_values, self.settings.do_lower_case, self._user_tokens is not None
        )

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes strings [B] into token ids, ragged int32 [B, (tokens)].

        Bytes that are not valid UTF-8 are ignored. Outside a graph, words that the tokenizer has
        seen are not tokenized again.
        """
        if tf.executing_eagerly():
            (ids,) = _from_cache(self._ids_cache, text)
            return ids
        return self._tokenize(text)

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        words = self.split_words(text)
        word_tokens = self._wordpiece.tokenize(self._without_long_words(words.values))
        return _by_text(words, word_tokens, self._final_ids(word_tokens.values))

    def tokenize_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes words [W], as `split_words` returns them, into ids, int32 [W, (tokens)]."""
        tokens = self._wordpiece.tokenize(self._without_long_words(tf.convert_to_tensor(words)))
        return tokens.with_values(self._final_ids(tokens.values))

    def split_words(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings [B] into normalized words, the input of WordPiece: ragged [B, (words)].

        A token that stays whole is a word that starts with a marker, EXACT or NORMALIZED.
        """
        if not self._user_tokens:
            return tf.strings.split(self._normalizer.normalize(self._prepare(text)))
        segments = self._user_tokens.split(tf.convert_to_tensor(text, tf.string))
        is_token = starts_with(segments.values, EXACT)
        text = self._prepare(tf.where(is_token, "", segments.values))
        words = self._words(self._normalizer.normalize(text))[0]
        words = with_matches(words, is_token, tf.boolean_mask(segments.values, is_token))
        return segments.with_values(words).merge_dims(1, 2)

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
        if tf.executing_eagerly():
            return _from_cache(self._offsets_cache, text)
        return self._tokenize_with_offsets(text)

    def _tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        if not self._user_tokens:
            return self._offsets(self._prepare(text))
        segments = self._user_tokens.split(tf.convert_to_tensor(text, tf.string))
        is_token = starts_with(segments.values, EXACT)
        start = part_starts(segments, is_token)
        of_segments = self._offsets(self._prepare(tf.where(is_token, "", segments.values)))
        token = tf.boolean_mask(segments.values, is_token)
        size = tf.strings.length(token) - len(EXACT.encode())
        of_tokens = (self.tokenize_words(token).values, tf.zeros_like(size), size)
        ids, starts, ends = (
            with_matches(values, is_token, of_matches)
            for values, of_matches in zip(of_segments, of_tokens, strict=True)
        )
        first = tf.repeat(start, ids.row_lengths())
        starts, ends = (offsets.with_values(offsets.values + first) for offsets in (starts, ends))
        return tuple(
            segments.with_values(values).merge_dims(1, 2) for values in (ids, starts, ends)
        )

    def _offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Tokenizes prepared strings [B], as `tokenize_with_offsets`."""
        normalized, sources = self._normalizer.normalize_with_offsets(text)
        words, word_starts, word_ends = self._words(normalized)
        word_tokens, starts, ends = self._wordpiece.tokenize_with_offsets(
            self._without_long_words(words.values)
        )
        ids = word_tokens.values
        # The offsets of the T tokens are relative to the start of their word; [UNK] and tokens that
        # stay whole cover their word.
        word = row_ids(word_tokens.row_splits)
        word_size = tf.cast(word_ends.values - word_starts.values, tf.int64)
        covers = ids == self.unk_token_id
        if self._user_tokens:
            covers |= ids >= self.vocab_size
        ends = tf.where(covers, tf.gather(word_size, word), ends.values)
        words_of_texts = row_ids(words.row_splits), word_starts.values
        starts, ends = offsets_in_text(text, sources, *words_of_texts, word, starts.values, ends)
        flat = (self._final_ids(ids), tf.cast(starts, tf.int32), tf.cast(ends, tf.int32))
        return tuple(_by_text(words, word_tokens, values) for values in flat)

    def _words(self, normalized: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns the words of normalized strings [B], and their starts and ends in them."""
        if self._user_tokens:
            return self._user_tokens.words_with_offsets(normalized, self._splitter)
        return self._splitter.split_with_offsets(normalized)

    def _prepare(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces final sigmas and invalid bytes by text with as many bytes."""
        text = tf.convert_to_tensor(text, tf.string)
        plain = _VALID_WITHOUT_SIGMA if self.settings.do_lower_case else VALID
        is_plain = tf.strings.regex_full_match(text, f"(?s)[{plain}]*")
        return tf.cond(tf.reduce_all(is_plain), lambda: text, lambda: self._repair(text))

    def _repair(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces invalid bytes by control characters, and final capital sigmas by "ς"."""
        text = mark_invalid(text)
        if self.settings.do_lower_case:
            text = tf.strings.regex_replace(text, final_sigma_pattern(), r"\1ς\2")
        return text

    def _without_long_words(self, words: tf.Tensor) -> tf.Tensor:
        """Replaces words of more than `max_input_chars_per_word` characters by [UNK]."""
        limit = self.settings.max_input_chars_per_word

        def replace() -> tf.Tensor:
            too_long = tf.strings.length(words, unit="UTF8_CHAR") > limit
            return tf.where(too_long, "[UNK]", words)

        # Counting characters is slow and such words are rare, so bytes are counted first.
        some_may_be = tf.reduce_any(tf.strings.length(words) > limit)
        return tf.cond(some_may_be, replace, lambda: words)

    def _final_ids(self, ids: tf.Tensor) -> tf.Tensor:
        if not self._user_tokens:
            return ids
        whole = tf.gather(self._user_token_ids, tf.maximum(ids - self.vocab_size, 0))
        return tf.where(ids < self.vocab_size, ids, whole)


def _from_cache(cache: WordCache, text: Any) -> tuple[tf.RaggedTensor, ...]:
    """Tokenizes strings [B] eagerly; returns the values of the cache, ragged [B, (tokens)] each."""
    if not isinstance(text, list | tuple):
        tensor = tf.convert_to_tensor(text, tf.string)
        if tensor.shape.rank != 1:
            raise InputError(f"text has the shape {[*tensor.shape]}; expected a list of strings")
        text = tensor.numpy().tolist()
    values, splits = cache(text)
    splits = tf.constant(splits)
    return tuple(tf.RaggedTensor.from_row_splits(v, splits, validate=False) for v in values)


def _strings(name: str, value: Any) -> list[str]:
    """Returns a string, or a list or column of strings, as a list of strings."""
    # An array of NumPy or a column of pandas, or else of Arrow.
    to_list = getattr(value, "tolist", None) or getattr(value, "to_pylist", None)
    if isinstance(value, Sequence):
        strings = [value] if isinstance(value, str) else [*value]
    else:
        strings = to_list() if to_list is not None else None
    if not isinstance(strings, list):
        raise InputError(
            f"{name} is a {type(value).__name__}; expected a string or a list of strings"
        )
    check_schema(name, strings, [str])
    return strings


def _without_user_tokens(vocab: Sequence[str], settings: TokenizerSettings) -> list[str]:
    """Replaces the user tokens at the end of a vocabulary by tokens that no text contains.

    WordPiece must not find them inside words.
    """
    size = number_of_subwords(settings.user_tokens, vocab)
    return [*vocab[:size], *(f"{EXACT}{index}" for index in range(size, len(vocab)))]


def _by_text(
    words: tf.RaggedTensor, word_tokens: tf.RaggedTensor, values: tf.Tensor
) -> tf.RaggedTensor:
    """Groups values, one for each token, by text: ragged [B, (tokens)]."""
    return words.with_values(word_tokens.with_values(values)).merge_dims(1, 2)


# --- user tokens ---


# Noncharacters of three bytes each.
EXACT, NORMALIZED = "\ufdd5", "\ufdd6"
MARKERS = (EXACT, NORMALIZED)
_SEPARATOR, _REPLACEMENT = "\ufdd7", "\ufdef"
_MARKER_BYTES = 3


class UserTokens:
    """Finds tokens that stay whole in texts: user tokens, which may include special tokens.

        text       "see[URL]or [url]"                [B]
        split      "see" "R[URL]" "or [url]"         [B, (segments)]   exact matches
        normalize  "see" "R[URL]" "or  [ url ] "
        split      "see" "R[URL]" "or" "N[url]"      words             matches in normalized text

    R and N are markers, characters that Unicode will never assign. A match is the leftmost one, and
    the longest one there, as in the `tokenizers` library. A match also splits a word. Shapes are
    written with B texts, S segments, P parts of normalized segments, W words.

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

    def words_with_offsets(
        self, normalized: tf.Tensor, splitter: tf_text.WhitespaceTokenizer
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Splits normalized strings [S] into words, ragged [S, (W)], with their starts and ends.

        A match is a word, which starts with NORMALIZED.
        """
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
