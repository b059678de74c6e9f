"""Converts texts or words to windows for a tagger, and its logits to entities or tags.

    text      "Jean-Paul of AT&T, U.S."           [B]
    words      Jean-Paul of AT&T , U.S.           [B, (W)]
    logits     of the first token of each word    [N, C]
    tags       B-PER     O  B-ORG O B-LOC         [B, (W)]
    entities   PER "Jean-Paul" 0-9  ORG "AT&T" 13-17  LOC "U.S." 19-23                [B, (E)]

B texts or sentences, W words of one text, N words of all texts, T tokens of all windows, C labels,
E entities of one text. word_windows.py explains the windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    continues_entity,
    iob2_tag,
    is_inside,
    label_tags,
    split_tag,
)
from keras_bert.tasks.ner.text_words import Spans, TextWords
from keras_bert.tasks.ner.word_windows import WordWindows, word_windows
from keras_bert.text.offsets import bytes_of, row_ids
from keras_bert.text.tokenizer import BertTokenizer

MIN_SEQ_LENGTH = 3  # [CLS], one token and [SEP].

_BYTES = [bytes([value]) for value in range(256)]


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
        # For each label: its tag, its entity type, and the B and I tags of this type.
        self._label_tags = label_tags(settings.labels)
        self._types = [split_tag(tag)[1] for tag in self._label_tags]
        self._first_tags, self._next_tags = (
            [iob2_tag(prefix, kind) for kind in self._types] for prefix in "BI"
        )

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
            return self._entities(labels, scores, inputs)
        return self._tags(labels, scores)

    def _tags(self, labels: tf.RaggedTensor, scores: tf.Tensor) -> dict[str, tf.RaggedTensor]:
        inside, starts = entity_words(self._label_tags, labels)
        tags = tf.where(
            starts,
            tf.gather(self._first_tags, labels.values),
            tf.where(inside, tf.gather(self._next_tags, labels.values), OUTSIDE),
        )
        return {"tags": labels.with_values(tags), "scores": labels.with_values(scores)}

    def _entities(
        self, labels: tf.RaggedTensor, scores: tf.Tensor, inputs: TextWindows
    ) -> dict[str, tf.RaggedTensor]:
        inside, starts = entity_words(self._label_tags, labels)
        first = tf.where(starts)[:, 0]
        splits = tf.searchsorted(first, labels.row_splits, out_type=tf.int64)
        # The index of each word's entity; -1 for words outside entities.
        entity = tf.where(inside, tf.cumsum(tf.cast(starts, tf.int32)) - 1, -1)
        count = tf.size(first)
        last = tf.math.unsorted_segment_max(tf.range(tf.size(entity)), entity, count)
        spans = inputs.spans
        bytes_from, bytes_to = tf.gather(spans.byte_starts, first), tf.gather(spans.byte_ends, last)
        answers = {
            "types": tf.gather(self._types, tf.gather(labels.values, first)),
            "texts": _slices(inputs.text, row_ids(splits), bytes_from, bytes_to),
            "starts": tf.gather(spans.starts, first),
            "ends": tf.gather(spans.ends, last),
            "scores": tf.math.unsorted_segment_mean(scores, entity, count),
        }
        return {
            name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for name, values in answers.items()
        }


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
