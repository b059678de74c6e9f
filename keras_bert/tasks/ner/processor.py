"""Texts to words, words to windows of tokens, and logits to entities and tags.

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

Words to windows: text/windows.py splits a sentence that does not fit into windows of whole words.
The label of a word is that of its first token, in the window with the most context around it.

B texts or sentences, W words of one text, N words of all texts, P tokens of a word, T tokens of all
texts or windows, n windows, S tokens of one window, C labels, E entities of one text.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    continues_entity,
    is_inside,
    join_tag,
    label_tags,
    split_tag,
)
from keras_bert.tasks.prepared import CHUNK_SIZE, Prepared, Processor, prepare
from keras_bert.text.normalization import normalize_character
from keras_bert.text.offsets import (
    byte_to_char_offsets,
    bytes_of,
    encode_texts,
    row_ids,
    valid_utf8,
)
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import WordWindows, word_windows


class Spans(NamedTuple):
    """The start and end offsets of words in their texts, int32 [N] each.

    Characters are counted as in Python's `str`, and bytes in UTF-8. An end is the offset after the
    last character or byte.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    byte_starts: tf.Tensor
    byte_ends: tf.Tensor


# --- texts to words ---

_TEXTS_PER_CHUNK = 1024

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
        ids, *byte_offsets = self.tokenizer.tokenize_with_offsets(text)
        counted = valid_utf8(text)
        starts, ends = (byte_to_char_offsets(counted, x).values for x in byte_offsets)
        byte_starts, byte_ends = (offsets.values for offsets in byte_offsets)
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


def word_offsets(spans: Spans, row_splits: tf.Tensor) -> list[list[tuple[int, int]]]:
    """Lists the (start, end) of the words of each text, in characters.

    `row_splits`, [B + 1], are the indices of the first word of each text, followed by N.
    """
    offsets = list(zip(spans.starts.numpy().tolist(), spans.ends.numpy().tolist(), strict=True))
    return [offsets[first:last] for first, last in pairwise(row_splits.numpy().tolist())]


def split_words(texts: Sequence[str], tokenizer: BertTokenizer) -> Iterator[list[tuple[int, int]]]:
    """Yields the (start, end) of the words of each text, in characters."""
    text_words = TextWords(tokenizer)
    for first in range(0, len(texts), _TEXTS_PER_CHUNK):
        chunk = encode_texts(texts[first : first + _TEXTS_PER_CHUNK])
        words, spans = text_words.split(tf.constant(chunk))
        yield from word_offsets(spans, words.row_splits)


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


class TaggingProcessor(Processor):
    """Converts texts or words to the network's inputs, and its logits to entities or tags."""

    per_token = True
    settings: TaggerSettings

    def __init__(self, tokenizer: BertTokenizer, settings: TaggerSettings):
        super().__init__(tokenizer, settings)
        self._text_words = TextWords(tokenizer)
        self._label_tags = label_tags(settings.labels)

    def preprocess(self, text: tf.Tensor) -> WordWindows:
        """Splits texts, strings [B] of any length, into words, and the words into windows."""
        words, spans = self._text_words.split(text)
        windows = word_windows(words, self.tokenizer, self.settings.max_seq_length)
        return windows._replace(text=text, spans=spans)

    def preprocess_words(
        self, words: tf.RaggedTensor, documents: tf.Tensor | None = None
    ) -> WordWindows:
        """Splits sentences of words, ragged strings [B, (W)], into windows; see `word_windows`."""
        tokens = words.with_values(self.tokenizer.tokenize(words.values))
        return word_windows(tokens, self.tokenizer, self.settings.max_seq_length, documents)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: WordWindows
    ) -> dict[str, tf.RaggedTensor]:
        """Decodes "logits", float32 [T, C], into entities of texts or tags of words.

        Returns:
            The outputs of `EntityTagger.predict`: for texts, ragged [B, (E)], in text order; for
            words, ragged [B, (W)]. "tags" are in IOB2, whatever the scheme of the labels. "starts"
            and "ends" are int32, and count characters as in Python's `str`. "scores" are float32.
        """
        logits = tf.gather(outputs["logits"], inputs.first_tokens)
        labels = tf.argmax(logits, axis=-1, output_type=tf.int32)
        labels = tf.RaggedTensor.from_row_splits(labels, inputs.row_splits, validate=False)
        scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        inside, starts = entity_words(self._label_tags, labels)
        types, spans = [split_tag(tag)[1] for tag in self._label_tags], inputs.spans
        if spans is None:
            first_tags, next_tags = ([join_tag(prefix, kind) for kind in types] for prefix in "BI")
            tags = tf.where(
                starts,
                tf.gather(first_tags, labels.values),
                tf.where(inside, tf.gather(next_tags, labels.values), OUTSIDE),
            )
            return {"tags": labels.with_values(tags), "scores": labels.with_values(scores)}
        first = tf.where(starts)[:, 0]
        splits = tf.searchsorted(first, labels.row_splits, out_type=tf.int64)
        # The index of each word's entity; -1 for words outside entities.
        entity = tf.where(inside, tf.cumsum(tf.cast(starts, tf.int32)) - 1, -1)
        count = tf.size(first)
        last = tf.math.unsorted_segment_max(tf.range(tf.size(entity)), entity, count)
        bytes_from, bytes_to = tf.gather(spans.byte_starts, first), tf.gather(spans.byte_ends, last)
        answers = {
            "types": tf.gather(types, tf.gather(labels.values, first)),
            "texts": _slices(inputs.text, row_ids(splits), bytes_from, bytes_to),
            "starts": tf.gather(spans.starts, first),
            "ends": tf.gather(spans.ends, last),
            "scores": tf.math.unsorted_segment_mean(scores, entity, count),
        }
        return {
            name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for name, values in answers.items()
        }


# --- examples ---


def prepare_sentences(
    processor: TaggingProcessor,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None = None,
) -> Prepared:
    """Splits sentences, given as lists of words, into windows.

    `documents` has the index of each sentence's document, and extends the windows with words of the
    neighboring sentences of the document. None means no document context.
    """
    preprocess, chunk_size = processor.preprocess_words, CHUNK_SIZE
    if documents is not None:
        documents = tf.constant(documents, tf.int64)
        # Use a single chunk, since a document may have any length.
        preprocess, chunk_size = functools.partial(preprocess, documents=documents), None
    return prepare(preprocess, [sentences], chunk_size, processor.tokenizer)


def prepare_texts(
    processor: TaggingProcessor, texts: Sequence[str]
) -> tuple[Prepared, list[list[tuple[int, int]]]]:
    """Splits texts into windows.

    Returns:
        The windows; and for each text, the (start, end) character offsets of its words.
    """
    prepared = prepare(processor.preprocess, [texts], tokenizer=processor.tokenizer)
    chunks, words = [], []
    for windows in prepared.chunks:
        words += word_offsets(windows.spans, windows.row_splits)
        chunks.append(windows._replace(text=None, spans=None))
    return prepared._replace(chunks=chunks), words


def labeled(prepared: Prepared, tag_ids: np.ndarray) -> Prepared:
    """Adds the label "tags" of each token to the examples.

    `tag_ids`, int32 [N], are the labels of the words of all sentences. The label of a word is
    assigned to its first token. The other tokens have -1.
    """
    tags = np.full(prepared.examples.input_ids.shape, -1, np.int32)
    first_tokens, start = [], 0
    for windows in prepared.chunks:
        first_tokens.append(start + windows.first_tokens.numpy())
        start += len(windows.input_ids.values)
    tags[np.concatenate(first_tokens)] = tag_ids
    examples = replace(prepared.examples, token_labels={"tags": tags})
    return prepared._replace(examples=examples)


# --- words to entities and tags ---

_BYTES = [bytes([value]) for value in range(256)]


def entity_words(labels: Sequence[str], tags: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the words inside entities, as `tag_schemes.entities` does.

    `labels` are the tags of the model's labels, and `tags`, ragged int32 [B, (W)], is the index of
    each word's tag in `labels`. Returns whether each word is inside an entity, and whether it is
    the first word of an entity, bool [N] each.
    """
    inside = tf.gather([is_inside(label) for label in labels], tags.values)
    continues = np.array(
        [[continues_entity(label, previous) for label in labels] for previous in [*labels, OUTSIDE]]
    )
    row = row_ids(tags.row_splits)
    starts_row = tf.concat([tf.ones_like(row[:1], tf.bool), row[1:] != row[:-1]], axis=0)
    previous = tf.concat([tags.values[:1], tags.values[:-1]], axis=0)
    previous = tf.where(starts_row, len(labels), previous)
    continued = tf.gather_nd(continues, tf.stack([previous, tags.values], axis=1))
    return inside, inside & ~continued


def _slices(text: tf.Tensor, row: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns `text[row[i]][starts[i]:ends[i]]` for each i, without copying the texts.

    The offsets `starts` and `ends` count bytes.
    """
    text_bytes, text_starts = bytes_of(text)
    origin = tf.cast(tf.gather(text_starts, row), tf.int32)
    slices = tf.gather(text_bytes, tf.ragged.range(origin + starts, origin + ends))
    letters = tf.gather(_BYTES, tf.cast(slices.values, tf.int32))
    return tf.strings.unsorted_segment_join(letters, row_ids(slices.row_splits), tf.size(row))


# --- answers as Python lists ---

Answers = Mapping[str, np.ndarray]


def listed_entities(texts: Sequence[str], chunks: Iterable[Answers]) -> dict[str, list[list[Any]]]:
    """Converts answers to lists: {"types", "texts", "starts", "ends", "scores": one list per text}.

    The list of a text has one value per entity. `chunks` are the answers for consecutive `texts`,
    as returned by `TaggingProcessor.decode` or by the export. Entities with the start -1 are
    padding.
    """
    chunks = list(chunks)
    counts = [int((starts >= 0).sum()) for chunk in chunks for starts in chunk["starts"]]
    types, starts, ends, scores = (
        _listed(chunks, name, counts) for name in ("types", "starts", "ends", "scores")
    )
    # Slices of the given strings, which may contain characters that UTF-8 cannot encode.
    slices = [
        [text[start:end] for start, end in zip(*spans, strict=True)]
        for text, *spans in zip(texts, starts, ends, strict=True)
    ]
    return {"types": types, "texts": slices, "starts": starts, "ends": ends, "scores": scores}


def listed_tags(
    sentences: Sequence[Sequence[str]], chunks: Iterable[Answers]
) -> dict[str, list[list[Any]]]:
    """Converts answers to lists: {"tags", "scores": one list per sentence, one value per word}.

    `chunks` are the answers for consecutive `sentences`, with or without padding after the last
    word.
    """
    chunks, counts = list(chunks), [len(words) for words in sentences]
    return {name: _listed(chunks, name, counts) for name in ("tags", "scores")}


def _listed(chunks: Sequence[Answers], name: str, counts: Sequence[int]) -> list[list[Any]]:
    """Lists the first values of each row of an answer: as many as in `counts`."""
    rows = (values for chunk in chunks for values in chunk[name])
    return [
        [value.decode() if isinstance(value, bytes) else value for value in values[:count].tolist()]
        for values, count in zip(rows, counts, strict=True)
    ]
