"""Splits words into windows of a limited length, in a TensorFlow graph.

    words      [[[johan ##son] [visits] [] [ulm]] [[hi]]]     ragged [B, (W), (P)]
    tokens       johan ##son visits [UNK] ulm hi              a word without tokens becomes [UNK]
    windows    [CLS] johan ##son visits [SEP]                 ragged [n, (S)]
               [CLS] visits [UNK] ulm [SEP]
               [CLS] hi [SEP]
    labels       -1    1     -1     0    -1   -1  -1 0 3 -1   one label per word, at its first token

A sentence that fits is one window. A longer one is split into windows of whole words that overlap
by half; each word is labeled only in the window that has the most context around it. With document
context, windows are extended on both sides with words of the same document, which are not labeled
there.

B sentences, W words of one sentence, N words of all sentences, P tokens of a word, T tokens of all
words, n windows, S tokens of one window.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.text.offsets import row_ids
from keras_bert.text.tokenizer import BertTokenizer


class WordWindows(NamedTuple):
    """The windows of some sentences.

    Attributes:
        input_ids: ragged int32 [n, (S)], with [CLS] and [SEP].
        segment_ids: ragged int32 [n, (S)], all 0.
        word_places: int64 [N], the index in `input_ids.values` of each word's first token, in the
            window that labels the word.
        word_lengths: int64 [N], the number of tokens of each word in the windows.
        row_splits: int64 [B + 1], the index of the first word of each sentence, followed by N.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    word_places: tf.Tensor
    word_lengths: tf.Tensor
    row_splits: tf.Tensor


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
    places = _TokenPlaces(tokens.row_splits, room)
    sentences = tf.cast(words.row_splits, tf.int64)
    first, last = _split(places, sentences)
    window_of = _labeling_windows(places, sentences, first, last)
    if documents is not None:
        first, last = _extended(places, _document_words(sentences, documents, last), first, last)

    input_ids = _with_special_tokens(
        tokens.values, places.start_of(first), places.start_of(last), tokenizer
    )
    shift = 1 + input_ids.row_starts() - places.start_of(first)
    return WordWindows(
        input_ids=input_ids,
        segment_ids=input_ids.with_values(tf.zeros_like(input_ids.values)),
        word_places=places.starts[:-1] + tf.gather(shift, window_of),
        word_lengths=tokens.row_lengths(),
        row_splits=sentences,
    )


def token_labels(windows: WordWindows, labels: tf.Tensor, all_tokens: bool = False) -> tf.Tensor:
    """Assigns the labels of words, int32 [N], to their first tokens or to all their tokens.

    Returns int32, one value for each of `windows.input_ids.values`; -1 for tokens without a label.
    """
    places = windows.word_places
    if all_tokens:
        tokens = tf.ragged.range(places, places + windows.word_lengths)
        places, labels = tokens.values, tf.repeat(labels, windows.word_lengths)
    unlabeled = tf.fill(tf.shape(windows.input_ids.values), -1)
    return tf.tensor_scatter_nd_update(unlabeled, places[:, tf.newaxis], labels)


class _TokenPlaces:
    """Converts between word boundaries and token indices.

    A word boundary is given as the index of the word after it, from 0 to N. Token indices count the
    tokens of all words.
    """

    def __init__(self, starts: tf.Tensor, room: int):
        self.starts = tf.cast(starts, tf.int64)  # [N + 1]: the first token of each word, then T.
        self.room = room
        word_of = tf.cast(row_ids(self.starts), tf.int64)
        self._at_or_before = tf.concat([word_of, [tf.size(starts, tf.int64) - 1]], axis=0)
        self._at_or_after = tf.concat([[tf.constant(0, tf.int64)], word_of + 1], axis=0)
        self._last = self.starts[-1]

    def start_of(self, words: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.starts, words)

    def at_or_before(self, places: tf.Tensor) -> tf.Tensor:
        """Returns the last word boundary at or before each token index."""
        return tf.gather(self._at_or_before, tf.minimum(places, self._last))

    def at_or_after(self, places: tf.Tensor) -> tf.Tensor:
        """Returns the first word boundary at or after each token index."""
        return tf.gather(self._at_or_after, tf.maximum(places, 0))

    def end_of_window(self, first: tf.Tensor) -> tf.Tensor:
        """Returns the last word boundary at which a window that starts with `first` can end."""
        return self.at_or_before(self.start_of(first) + self.room)


def _visible_tokens(words: tf.RaggedTensor, room: int, unk_token_id: int) -> tf.RaggedTensor:
    """Truncates words to `room` tokens and replaces empty words by [UNK]; returns [N, (P)]."""
    counts = words.row_lengths()
    values = tf.concat([words.values, [unk_token_id]], axis=0)
    starts = tf.where(counts > 0, words.row_starts(), tf.size(words.values, tf.int64))
    return tf.gather(values, tf.ragged.range(starts, starts + tf.clip_by_value(counts, 1, room)))


def _with_special_tokens(
    tokens: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, tokenizer: BertTokenizer
) -> tf.RaggedTensor:
    """Creates a window [CLS] tokens[start:end] [SEP] for each start and end, [n, (S)]."""
    # Gather one more token on both sides, to be overwritten with [CLS] and [SEP].
    ids = tf.gather(tf.pad(tokens, [[1, 1]]), tf.ragged.range(starts, ends + 2))
    values = ids.values
    for places, token in (
        (ids.row_starts(), tokenizer.cls_token_id),
        (ids.row_limits() - 1, tokenizer.sep_token_id),
    ):
        special = tf.fill(tf.shape(places), token)
        values = tf.tensor_scatter_nd_update(values, places[:, tf.newaxis], special)
    return ids.with_values(values)


def _split(places: _TokenPlaces, sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits sentences into windows; returns each window's first word, and the word after its last.

    For each word, there is one possible window that ends with it: the longest one that fits. The
    next window starts about half a window later. The next window of every possible window is
    computed in one table. The result has the windows that can be reached from the first window of
    each sentence.
    """
    sentences_with_words = tf.boolean_mask(sentences[:-1], sentences[1:] > sentences[:-1])
    row = row_ids(sentences)
    begin, end = tf.gather(sentences, row), tf.gather(sentences, row + 1)  # [N]
    # For each word, the first word of the possible window that ends with it.
    after = places.starts[1:]
    first = tf.maximum(begin, places.at_or_after(after - places.room))

    def all_windows() -> tf.Tensor:
        # The next window starts in the middle of this one, or later so that one more word fits.
        following = tf.concat([after[1:], after[-1:]], axis=0)
        least = tf.maximum((places.start_of(first) + after) // 2, following - places.room)
        next_first = tf.maximum(first + 1, places.at_or_after(least))
        next_last = tf.minimum(end, places.end_of_window(next_first)) - 1
        return _reached(starting, next_last, is_last)

    ends = tf.gather(end, sentences_with_words)
    starting = tf.minimum(ends, places.end_of_window(sentences_with_words)) - 1
    is_last = tf.concat([row[1:] != row[:-1], tf.ones_like(row[:1], tf.bool)], axis=0)
    last = tf.cond(
        tf.reduce_all(starting == ends - 1), lambda: tf.where(is_last)[:, 0], all_windows
    )
    return tf.gather(first, last), last + 1


def _reached(starting: tf.Tensor, following: tf.Tensor, is_end: tf.Tensor) -> tf.Tensor:
    """Follows links from the starting places to their ends; returns the visited places, sorted.

    Places are numbered from 0 to N - 1. `following`, [N], is the place that each place links to; an
    end links to itself. `is_end`, bool [N], marks the ends. Each step doubles the number of links
    followed at once, so N places take log N steps.
    """

    def is_unfinished(reached: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
        return ~tf.reduce_all(tf.gather(is_end, tf.gather(following, starting)))

    def step(reached: tf.Tensor, following: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        more = tf.gather(following, tf.where(reached))
        return _marked(reached, more), tf.gather(following, following)

    reached = _marked(is_end, starting[:, tf.newaxis])
    # After k steps, 2^k places of each path are marked, and `following` skips 2^k places.
    reached, _ = tf.while_loop(is_unfinished, step, (reached, following), parallel_iterations=1)
    return tf.where(reached)[:, 0]


def _marked(marks: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(marks, places, tf.ones_like(places[:, 0], tf.bool))


def _labeling_windows(
    places: _TokenPlaces, sentences: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> tf.Tensor:
    """Returns the index of the window that labels each word, int32 [N].

    If a word is in two windows, it has little context after it in the earlier one, and little
    before it in the later one. It is labeled in the window where this context is longer.
    """
    earlier_end, later_first = last[:-1], first[1:]
    middles = places.starts[:-1] + places.starts[1:]  # Twice the middle of each word.
    border = tf.searchsorted(
        middles,
        places.start_of(earlier_end) + places.start_of(later_first),
        side="right",
        out_type=tf.int64,
    )
    # Between two sentences, both bounds are the first word of the later sentence.
    border = tf.clip_by_value(border, tf.minimum(later_first, earlier_end), earlier_end)
    ends = tf.concat([[0], border, sentences[-1:]], axis=0)
    return row_ids(ends)


def _document_words(
    sentences: tf.Tensor, documents: tf.Tensor, last: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first word of each window's document, and the word after its last word."""
    documents = tf.convert_to_tensor(documents)
    is_new = tf.concat([[True], documents[1:] != documents[:-1]], axis=0)[: tf.size(documents)]
    starts = tf.concat([tf.boolean_mask(sentences[:-1], is_new), sentences[-1:]], axis=0)
    document = tf.gather(row_ids(starts), last - 1)
    return tf.gather(starts, document), tf.gather(starts, document + 1)


def _extended(
    places: _TokenPlaces,
    document: tuple[tf.Tensor, tf.Tensor],
    first: tf.Tensor,
    last: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Extends each window on both sides with whole words of its document, up to the length limit.

    Takes and returns the first word of each window, and the word after its last one.
    """
    start, end = places.start_of(first), places.start_of(last)
    spare = places.room - (end - start)
    before = start - places.start_of(document[0])
    after = places.start_of(document[1]) - end
    left = tf.minimum(before, tf.maximum(spare // 2, spare - after))
    first = places.at_or_after(start - left)
    right = tf.minimum(after, spare - (start - places.start_of(first)))
    return first, places.at_or_before(end + right)
