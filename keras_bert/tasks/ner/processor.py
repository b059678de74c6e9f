"""Splits texts into words, and words into windows of a limited length, in TensorFlow graphs.

    text      "Jean-Paul of AT&T, U.S."           [B]
    words      Jean-Paul of AT&T , U.S.           [B, (W)]
    logits     of the first token of each word    [N, C]
    tags       B-PER     O  B-ORG O B-LOC         [B, (W)]
    entities   PER "Jean-Paul" 0-9  ORG "AT&T" 13-17  LOC "U.S." 19-23                [B, (E)]

Texts to words: BERT's basic tokenizer splits text at white space, at punctuation and around each
CJK ideograph. `TextWords` joins the resulting words where corpora do not split them. BERT's own
words would need tags for parts of corpus words that have no tag in training, such as "Paul" in
"Jean-Paul". White space alone would keep "London." and whole Chinese sentences as one word. In
WNUT-17, written as running text, 98.5 % of the 3,891 entities consist of whole words of
`TextWords`, 96.3 % of BERT's words, and 75.6 % of words between white space.

Words are not joined at apostrophes: "O'Hara" would become one word, but "Italie" in "l'Italie" and
"Smith" in "Smith's" would no longer be words. Clients that need other words can send words instead
of texts.

Words to windows:

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

B texts or sentences, W words of one text, N words of all texts, P tokens of a word, T tokens of all
texts or windows, n windows, S tokens of one window, C labels, E entities of one text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.ner.decoding import Spans, decode_entities, decode_tags
from keras_bert.tasks.ner.tag_schemes import label_tags
from keras_bert.tasks.prepared import Prepared, decoded, prepare
from keras_bert.text.normalization import normalize_character
from keras_bert.text.offsets import byte_to_char_offsets, decode_texts, row_ids, valid_utf8
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer

MIN_SEQ_LENGTH = 3  # [CLS], one token and [SEP].

# --- texts to words ---

_JOINERS = "&-./@_"  # Between letters or digits, without spaces: AT&T, Jean-Paul, AC/DC.
_DIGIT_JOINERS = ",:"  # Between digits: 1,000 and 7:30.
_PREFIXES = "@#"  # Before a letter or a digit: @user, #topic.


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


# --- words to windows ---


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


# --- the processor ---


@dataclass(frozen=True)
class TaggerSettings:
    """A tagger's labels and window length.

    Attributes:
        labels: the C labels in the order of the logits: tags in any scheme, or entity types; see
            `label_tags`.
        max_seq_length: maximum number of tokens in a window, including [CLS] and [SEP]; at least 3.
    """

    labels: tuple[str, ...]
    max_seq_length: int = 128

    def __post_init__(self):
        if self.max_seq_length < MIN_SEQ_LENGTH:
            raise InputError(
                f"max_seq_length={self.max_seq_length}: expected at least {MIN_SEQ_LENGTH}"
            )


class TextWindows(NamedTuple):
    """The windows of B texts with N words.

    Attributes:
        input_ids: the field of `windows`.
        segment_ids: the field of `windows`.
        windows: the windows and the places of the words in them.
        text: the texts, strings [B].
        spans: the offsets of the N words in their texts.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    windows: WordWindows
    text: tf.Tensor
    spans: Spans


class TaggingProcessor:
    """Converts texts or words to the network's inputs, and its logits to entities or tags."""

    per_token: ClassVar[bool] = True

    def __init__(self, tokenizer: BertTokenizer, settings: TaggerSettings):
        self.tokenizer = tokenizer
        self.settings = settings
        self._text_words = TextWords(tokenizer)
        self._label_tags = label_tags(settings.labels)

    def preprocess(self, text: tf.Tensor) -> TextWindows:
        """Splits texts, strings [B] of any length, into words, and the words into windows."""
        words, spans = self._text_words.split(text)
        windows = word_windows(words, self.tokenizer, self.settings.max_seq_length)
        return TextWindows(windows.input_ids, windows.segment_ids, windows, text, spans)

    def preprocess_words(
        self, words: tf.RaggedTensor, documents: tf.Tensor | None = None
    ) -> WordWindows:
        """Splits sentences of words, ragged strings [B, (W)], into windows; see `word_windows`."""
        tokens = words.with_values(self.tokenizer.tokenize(words.values))
        return word_windows(tokens, self.tokenizer, self.settings.max_seq_length, documents)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: TextWindows | WordWindows
    ) -> dict[str, tf.RaggedTensor]:
        """Decodes "logits", float32 [T, C], into entities of texts or tags of words.

        Returns:
            The outputs of `EntityTagger.predict`: for texts, ragged [B, (E)], in text order; for
            words, ragged [B, (W)]. "tags" are in IOB2, whatever the scheme of the labels. "starts"
            and "ends" are int32, and count characters as in Python's `str`. "scores" are float32.
        """
        windows = inputs.windows if isinstance(inputs, TextWindows) else inputs
        logits = tf.gather(outputs["logits"], windows.word_places)
        labels = tf.argmax(logits, axis=-1, output_type=tf.int32)
        labels = tf.RaggedTensor.from_row_splits(labels, windows.row_splits, validate=False)
        scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        if isinstance(inputs, TextWindows):
            return decode_entities(self._label_tags, labels, scores, inputs.text, inputs.spans)
        return decode_tags(self._label_tags, labels, scores)


# --- examples ---

# Number of sentences per chunk. In small chunks of short sentences, overhead would dominate.
CHUNK_SIZE = 8192


def prepare_sentences(
    processor: TaggingProcessor,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None = None,
) -> Prepared:
    """Splits sentences, given as lists of words, into windows.

    `documents` has the index of each sentence's document, and extends the windows with words of the
    neighboring sentences of the document. None means no document context.
    """
    tokenizer = processor.tokenizer
    if documents is None:
        return prepare(processor.preprocess_words, [sentences], CHUNK_SIZE, tokenizer=tokenizer)

    def preprocess(words: tf.RaggedTensor) -> WordWindows:
        return processor.preprocess_words(words, tf.constant(documents, tf.int64))

    # Use a single chunk, since a document may have any length.
    return prepare(preprocess, [sentences], chunk_size=None, tokenizer=tokenizer)


def prepare_texts(
    processor: TaggingProcessor, texts: Sequence[str]
) -> tuple[Prepared, list[list[tuple[int, int]]]]:
    """Splits texts into windows.

    Returns:
        The windows; and for each text, the (start, end) character offsets of its words.
    """
    prepared = prepare(processor.preprocess, [texts], tokenizer=processor.tokenizer)
    chunks, words = [], []
    for chunk in prepared.chunks:
        windows, spans = chunk.inputs.windows, chunk.inputs.spans
        chunks.append(replace(chunk, inputs=windows))
        places = list(zip(spans.starts.numpy().tolist(), spans.ends.numpy().tolist(), strict=True))
        words += [places[first:last] for first, last in pairwise(windows.row_splits.numpy())]
    return replace(prepared, chunks=chunks), words


def tagged_examples(
    prepared: Prepared, tag_ids: np.ndarray, label_all_tokens: bool = False
) -> Examples:
    """Creates training examples from windows, with a label "tags" for each token.

    `tag_ids`, int32 [N], are the labels of the words of all sentences. The label of a word is
    assigned to its first token, or to all of its tokens with `label_all_tokens`. Tokens without a
    label have -1.
    """
    labels, start = [np.zeros([0], np.int32)], 0
    for chunk in prepared.chunks:
        windows = chunk.inputs
        end = start + len(windows.word_places)
        labels.append(token_labels(windows, tag_ids[start:end], label_all_tokens).numpy())
        start = end
    return replace(prepared.examples, token_labels={"tags": np.concatenate(labels)})


def predicted_tags(
    processor: TaggingProcessor, prepared: Prepared, outputs: Mapping[str, np.ndarray]
) -> list[list[str]]:
    """Decodes the model's outputs for `prepared` into a list of IOB2 tags for each sentence."""
    return [
        decode_texts(tags).tolist()
        for answers in decoded(processor, prepared, outputs)
        for tags in answers["tags"]
    ]
