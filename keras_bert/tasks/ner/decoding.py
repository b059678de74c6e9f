"""Decodes the label of each word into entities or tags."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.tasks.ner.tag_schemes import (
    OUTSIDE,
    continues_entity,
    is_inside,
    join_tag,
    split_tag,
)
from keras_bert.text.offsets import bytes_of, row_ids


class Spans(NamedTuple):
    """The start and end offsets of words in their texts, int32 [N] each.

    Characters are counted as in Python's `str`, and bytes in UTF-8. An end is the offset after the
    last character or byte.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    byte_starts: tf.Tensor
    byte_ends: tf.Tensor


# --- words to entities and tags ---

_BYTES = [bytes([value]) for value in range(256)]


def decode_tags(
    label_tags: Sequence[str], labels: tf.RaggedTensor, scores: tf.Tensor
) -> dict[str, tf.RaggedTensor]:
    """Converts the labels of words to the outputs of `EntityTagger.predict` for words.

    `label_tags` are the tags of the model's labels, `labels`, ragged int32 [B, (W)], is the label
    of each word, and `scores`, float32 [N], its probability.
    """
    inside, starts = entity_words(label_tags, labels)
    first_tags, next_tags = (
        [join_tag(prefix, split_tag(tag)[1]) for tag in label_tags] for prefix in "BI"
    )
    tags = tf.where(
        starts,
        tf.gather(first_tags, labels.values),
        tf.where(inside, tf.gather(next_tags, labels.values), OUTSIDE),
    )
    return {"tags": labels.with_values(tags), "scores": labels.with_values(scores)}


def decode_entities(
    label_tags: Sequence[str],
    labels: tf.RaggedTensor,
    scores: tf.Tensor,
    text: tf.Tensor,
    spans: Spans,
) -> dict[str, tf.RaggedTensor]:
    """Converts the labels of words to the outputs of `EntityTagger.predict` for texts.

    The first three arguments are as for `decode_tags`. `text`, strings [B], are the texts, and
    `spans` the offsets of their words.
    """
    inside, starts = entity_words(label_tags, labels)
    first = tf.where(starts)[:, 0]
    splits = tf.searchsorted(first, labels.row_splits, out_type=tf.int64)
    # The index of each word's entity; -1 for words outside entities.
    entity = tf.where(inside, tf.cumsum(tf.cast(starts, tf.int32)) - 1, -1)
    count = tf.size(first)
    last = tf.math.unsorted_segment_max(tf.range(tf.size(entity)), entity, count)
    bytes_from, bytes_to = tf.gather(spans.byte_starts, first), tf.gather(spans.byte_ends, last)
    types = [split_tag(tag)[1] for tag in label_tags]
    answers = {
        "types": tf.gather(types, tf.gather(labels.values, first)),
        "texts": _slices(text, row_ids(splits), bytes_from, bytes_to),
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
