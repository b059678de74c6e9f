"""Splits texts, contexts and sentences into windows of a limited number of tokens.

Texts and contexts are split at a fixed stride (`split_tokens`), or are shortened to one window:

    tokens         a b c d e f g h i j            10 tokens, room for 4
    head_and_tail  a h i j                        1 in the head, 3 in the tail
    windows        a b c d   c d e f   e f g h   g h i j      stride 2

Sentences are split between words, and each word belongs to one window:

    words      [[[johan ##son] [visits] [] [ulm]] [[hi]]]     ragged [B, (W), (P)]
    tokens       johan ##son visits [UNK] ulm hi              a word without tokens becomes [UNK]
    windows    [CLS] johan ##son visits [SEP]                 ragged [n, (S)]
               [CLS] visits [UNK] ulm [SEP]
               [CLS] hi [SEP]
    labels       -1    1     -1     0    -1   -1  -1 0 3 -1   one label per word, at its first token

What fits keeps all its tokens, in one window. A longer sentence is split into windows of whole
words that overlap by half; each word is labeled only in the window that has the most context around
it. With document context, windows are extended on both sides with words of the same document, which
are not labeled there.

B texts or sentences, W words of one sentence, N words of all sentences, P tokens of a word, n
windows, S tokens of one window.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer

# The maximum number of tokens that the windows of one call have together. `make_text_windows`
# needs about 50 bytes for each, and counts them in int32.
MAX_WINDOW_TOKENS = 2**23
_HEAD_SHARE = 4  # The head has one in four tokens: 128 of 510 in Sun et al. 2019, section 5.3.1.

# --- texts and contexts ---


class TooManyTokens(InputError):
    """The windows of some texts have too many tokens for one call."""


class TextWindows(NamedTuple):
    """The windows of texts, grouped by text; each text has at least one.

    Attributes:
        input_ids: ragged int32 [n, (S)], with [CLS] and [SEP].
        segment_ids: ragged int32 [n, (S)], 0.
        truncated: bool [B], whether tokens of the text were removed; always false.
        text: int32 [n], the index of the text of each window, in increasing order.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    truncated: tf.Tensor
    text: tf.Tensor


def split_tokens(
    sizes: tf.Tensor, room: int | tf.Tensor, stride: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits texts into windows of `room` tokens that start at every `stride` tokens.

    `sizes` are the numbers of tokens of the texts, int32 [B]; `room` and `stride` may differ
    between the texts.

    Returns:
        For each window, int32 [n] each: the index of its text, the index in the text of its first
        token, and its number of tokens. The windows of a text are consecutive.
    """
    counts = _count_windows(sizes, room, stride)
    room, stride = (tf.broadcast_to(value, tf.shape(sizes)) for value in (room, stride))
    ends = tf.cumsum(counts)
    text = row_ids(tf.concat([[0], ends], axis=0))
    nth = tf.range(tf.size(text)) - tf.gather(ends - counts, text)
    start = nth * tf.gather(stride, text)
    return text, start, tf.minimum(tf.gather(sizes, text) - start, tf.gather(room, text))


def _count_windows(sizes: tf.Tensor, room: int | tf.Tensor, stride: int | tf.Tensor) -> tf.Tensor:
    # One window, and one more for each stride that is needed to cover the rest of the text.
    return 1 + tf.maximum(-((room - sizes) // stride), 0)


def head_and_tail(tokens: tf.RaggedTensor, room: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Removes tokens from the middle of texts, [B, (tokens)], that have more than `room`.

    Returns:
        The remaining tokens, ragged [B, (at most room)], and whether any were removed, bool [B].
    """
    starts, sizes = (tf.cast(of, tf.int32) for of in (tokens.row_starts(), tokens.row_lengths()))
    lengths = tf.minimum(sizes, room)
    index = tf.ragged.range(lengths)
    text = row_ids(index.row_splits)
    removed = tf.where(index.values < room // _HEAD_SHARE, 0, tf.gather(sizes - lengths, text))
    values = tf.gather(tokens.values, tf.gather(starts, text) + index.values + removed)
    return index.with_values(values), sizes > room


def make_text_windows(
    tokens: tf.RaggedTensor,
    *,
    max_seq_length: int,
    stride: int,
    cls_token_id: int,
    sep_token_id: int,
) -> TextWindows:
    """Splits texts, ragged int32 [B, (tokens)], into windows of at most `max_seq_length` tokens.

    `stride` is the number of tokens between the starts of two windows, at most the room for tokens
    in a window, so that each token is in at least one.

    Raises:
        TooManyTokens: the windows have more than MAX_WINDOW_TOKENS tokens in total. In a graph, the
            operation fails instead, with a tf.errors.InvalidArgumentError.
    """
    room = max_seq_length - 2
    starts, sizes = (tf.cast(of, tf.int32) for of in (tokens.row_starts(), tokens.row_lengths()))
    counts = _count_windows(sizes, room, stride)
    # All windows of a text but the last are full. int32 would overflow for very long texts.
    more = tf.cast(counts - 1, tf.int64) * (max_seq_length - stride)
    with tf.control_dependencies(_too_many_tokens(tf.cast(sizes + 2, tf.int64) + more)):
        text, start, length = split_tokens(tf.identity(sizes), room, stride)
    first = tf.gather(starts, text) + start
    parts = tf.gather(tokens.values, tf.ragged.range(first, first + length))
    segments = combine_segments(
        parts,
        max_seq_length=max_seq_length,
        cls_token_id=cls_token_id,
        sep_token_id=sep_token_id,
    )
    return TextWindows(
        segments.input_ids, segments.segment_ids, tf.zeros_like(sizes, tf.bool), text
    )


def _too_many_tokens(window_tokens: tf.Tensor) -> list[tf.Operation]:
    """Rejects texts by the number of tokens in their windows, int64 [B].

    Returns:
        The operations that reject the texts in a graph.
    """
    total = tf.reduce_sum(window_tokens)
    problem = (
        f"long_text=windows: the windows of the texts have more than {MAX_WINDOW_TOKENS} tokens; "
        "expected shorter texts, or a larger window_stride"
    )
    if not tf.executing_eagerly():
        is_allowed = tf.debugging.assert_less_equal(
            total, tf.constant(MAX_WINDOW_TOKENS, tf.int64), problem
        )
        return [is_allowed]
    if total > MAX_WINDOW_TOKENS:
        raise TooManyTokens(problem)
    return []


# --- sentences of words ---


class WordWindows(NamedTuple):
    """The windows of some sentences.

    Attributes:
        input_ids: ragged int32 [n, (S)], with [CLS] and [SEP].
        segment_ids: ragged int32 [n, (S)], all 0.
        first_tokens: int64 [N], the index in `input_ids.values` of each word's first token, in the
            window that labels the word.
        row_splits: int64 [B + 1], the index of the first word of each sentence, followed by N.
        text: strings [B], the texts of which the words are parts; None for sentences of words.
        spans: the offsets of the words in their texts; None for sentences of words.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    first_tokens: tf.Tensor
    row_splits: tf.Tensor
    text: tf.Tensor | None = None
    spans: Any = None


def word_windows(
    words: tf.RaggedTensor,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    documents: tf.Tensor | None = None,
) -> WordWindows:
    """Splits sentences of words into windows of at most `max_seq_length` tokens (3 or more).

    `words` are the tokens of each word, ragged int32 [B, (W), (P)]. Words longer than a window are
    truncated, and a sentence without words has no window. For document context, `documents` has the
    document of each sentence, int [B]; the sentences of a document must be adjacent.
    """
    room = max_seq_length - 2
    tokens = _visible_tokens(words.values, room, tokenizer.unk_token_id)
    sentences = tf.cast(words.row_splits, tf.int64)
    first, last = _split_words(tokens.row_splits, sentences, room)
    window_of = _labeling_windows(tokens.row_splits, sentences, first, last)
    if documents is not None:
        documents = tf.convert_to_tensor(documents)
        first, last = _with_context(tokens.row_splits, sentences, documents, first, last, room)

    starts = tf.gather(tokens.row_splits, first)
    segments = combine_segments(
        tf.gather(tokens.values, tf.ragged.range(starts, tf.gather(tokens.row_splits, last))),
        max_seq_length=max_seq_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    shift = 1 + segments.input_ids.row_starts() - starts
    return WordWindows(
        segments.input_ids,
        segments.segment_ids,
        first_tokens=tokens.row_starts() + tf.gather(shift, window_of),
        row_splits=sentences,
    )


def _visible_tokens(words: tf.RaggedTensor, room: int, unk_token_id: int) -> tf.RaggedTensor:
    """Truncates words to `room` tokens and replaces empty words by [UNK]; returns [N, (P)]."""
    counts = words.row_lengths()
    values = tf.concat([words.values, [unk_token_id]], axis=0)
    starts = tf.where(counts > 0, words.row_starts(), tf.size(words.values, tf.int64))
    return tf.gather(values, tf.ragged.range(starts, starts + tf.clip_by_value(counts, 1, room)))


# In the following functions, a word boundary is the index of the word after it, from 0 to N.
# `starts`, int64 [N + 1], are the first token of each word, followed by the number of all tokens.


def _boundary_after(starts: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the first word boundary at or after each token."""
    return tf.searchsorted(starts, tokens, out_type=tf.int64)


def _boundary_before(starts: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the last word boundary at or before each token."""
    return tf.searchsorted(starts, tokens, side="right", out_type=tf.int64) - 1


# Compiled, because an eager loop over the windows of a book takes minutes.
@tf.function(
    input_signature=[tf.TensorSpec([None], tf.int64)] * 2 + [tf.TensorSpec([], tf.int64)],
    autograph=False,
)
def _split_words(starts: tf.Tensor, sentences: tf.Tensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits sentences into windows; returns each window's first word, and the word after its last.

    A window is the longest one that ends with its last word. The next window starts in the middle
    of the window, or later so that it ends with a later word.
    """
    num_words = sentences[-1]
    has_words = sentences[1:] > sentences[:-1]
    begin, end = (tf.boolean_mask(each, has_words) for each in (sentences[:-1], sentences[1:]))

    def longest(last: tf.Tensor, begin: tf.Tensor) -> tf.Tensor:
        """Returns the first word of the window whose last word is before `last`."""
        return tf.maximum(begin, _boundary_after(starts, tf.gather(starts, last) - room))

    def last_of(first: tf.Tensor) -> tf.Tensor:
        return tf.minimum(end, _boundary_before(starts, tf.gather(starts, first) + room))

    def next_window(last: tf.Tensor, is_last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = longest(last, begin)
        middle = (tf.gather(starts, first) + tf.gather(starts, last)) // 2
        following = tf.gather(starts, tf.minimum(last + 1, num_words))
        first = _boundary_after(starts, tf.maximum(middle, following - room))
        last = last_of(tf.maximum(first, longest(last, begin) + 1))
        return last, marked(is_last, last)

    def marked(marks: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        ones = tf.ones_like(words, tf.bool)
        return tf.tensor_scatter_nd_update(marks, words[:, tf.newaxis], ones)

    last = last_of(begin)  # of the first window of each sentence
    is_last = marked(tf.zeros([num_words + 1], tf.bool), last)
    _, is_last = tf.while_loop(
        lambda last, _: tf.reduce_any(last < end), next_window, [last, is_last]
    )
    last = tf.where(is_last)[:, 0]
    sentence = tf.searchsorted(end, last)
    return longest(last, tf.gather(begin, sentence)), last


def _labeling_windows(
    starts: tf.Tensor, sentences: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> tf.Tensor:
    """Returns the index of the window that labels each word, int32 [N].

    If a word is in two windows, it has little context after it in the earlier one, and little
    before it in the later one. It is labeled in the window where this context is longer.
    """
    earlier_end, later_first = last[:-1], first[1:]
    middles = starts[:-1] + starts[1:]  # Twice the middle of each word.
    border = tf.searchsorted(
        middles,
        tf.gather(starts, earlier_end) + tf.gather(starts, later_first),
        side="right",
        out_type=tf.int64,
    )
    # Between two sentences, both bounds are the first word of the later sentence.
    border = tf.clip_by_value(border, tf.minimum(later_first, earlier_end), earlier_end)
    return row_ids(tf.concat([[0], border, sentences[-1:]], axis=0))


def _with_context(
    starts: tf.Tensor,
    sentences: tf.Tensor,
    documents: tf.Tensor,
    first: tf.Tensor,
    last: tf.Tensor,
    room: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Extends each window on both sides with whole words of its document, up to the length limit.

    Takes and returns the first word of each window, and the word after its last one.
    """
    is_new = tf.concat([[True], documents[1:] != documents[:-1]], axis=0)[: tf.size(documents)]
    splits = tf.concat([tf.boolean_mask(sentences[:-1], is_new), sentences[-1:]], axis=0)
    document = tf.gather(row_ids(splits), last - 1)
    splits = tf.gather(starts, splits)  # In tokens.

    start, end = tf.gather(starts, first), tf.gather(starts, last)
    spare = room - (end - start)
    before = start - tf.gather(splits, document)
    after = tf.gather(splits, document + 1) - end
    left = tf.minimum(before, tf.maximum(spare // 2, spare - after))
    first = _boundary_after(starts, start - left)
    right = tf.minimum(after, spare - (start - tf.gather(starts, first)))
    return first, _boundary_before(starts, end + right)
