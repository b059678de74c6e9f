"""Preprocessed texts: what the network reads, and what decoding needs besides.

    texts -> preprocess, a chunk of texts at a time -> Prepared
    outputs of the network over Prepared.examples -> decode, chunk by chunk -> answers

A task's processor has the two graph functions, `preprocess` and `decode`; its SavedModel calls them
in one graph. Programs and `Task.predict` call them here, with the network run in between over all
examples at once, so that examples of one length share a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.text.strings import encode_texts
from keras_bert.training.progress import progress

CHUNK_SIZE = 1024  # texts


class NetworkInputs(Protocol):
    """What `preprocess` returns: a NamedTuple with at least these fields.

    Attributes:
        input_ids: ragged int32 [n, (S)], one row for each row that the network reads.
        segment_ids: ragged int32 [n, (S)].
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class TextInputs(NamedTuple):
    """Texts or pairs as the network reads them.

    Attributes:
        input_ids: ragged int32 [B, (S)], with [CLS] and [SEP].
        segment_ids: ragged int32 [B, (S)], 1 on the second text and its [SEP].
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class Processor(Protocol):
    """The graph functions of a task between strings and answers.

    Attributes:
        per_token: whether the network's outputs are flat over tokens, [T, ...], or [n, ...].
    """

    per_token: ClassVar[bool]

    def preprocess(self, *texts: tf.Tensor) -> NetworkInputs:
        """Turns strings [B] into what the network reads."""

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: NetworkInputs
    ) -> dict[str, tf.Tensor]:
        """Turns the network's outputs into answers, one row for each text."""


@dataclass(frozen=True)
class Chunk:
    """Some texts that were preprocessed in one call.

    Attributes:
        inputs: what `preprocess` returned.
        rows: the chunk's rows among all examples.
        tokens: the chunk's tokens among those of all examples.
    """

    inputs: Any
    rows: slice
    tokens: slice


@dataclass(frozen=True, eq=False)
class Prepared:
    """Preprocessed texts.

    Attributes:
        examples: the rows that the network reads, of all chunks.
        chunks: what decoding needs besides.
    """

    examples: Examples
    chunks: Sequence[Chunk]


def prepare(
    preprocess: Callable[..., NetworkInputs],
    columns: Sequence[Sequence[Any]],
    chunk_size: int = CHUNK_SIZE,
) -> Prepared:
    """Preprocesses texts.

    Args:
        preprocess: a processor's.
        columns: its arguments, each a list of n strings, or of n lists of strings.
        chunk_size: texts a call.

    Returns:
        The texts as the network reads them, in order.
    """
    count = len(columns[0])
    chunks: list[Chunk] = []
    rows = tokens = 0
    ids, segments = ([np.zeros([0], np.int32)] for _ in range(2))
    lengths = [np.zeros([0], np.int64)]
    with progress("tokenizing", count, "texts") as advance:
        for start in range(0, max(count, 1), chunk_size):
            some = [column[start : start + chunk_size] for column in columns]
            inputs = preprocess(*map(as_tensor, some))
            ids.append(inputs.input_ids.values.numpy())
            segments.append(inputs.segment_ids.values.numpy())
            lengths.append(inputs.input_ids.row_lengths().numpy())
            more_rows, more_tokens = len(lengths[-1]), len(ids[-1])
            chunks.append(
                Chunk(inputs, slice(rows, rows + more_rows), slice(tokens, tokens + more_tokens))
            )
            rows, tokens = rows + more_rows, tokens + more_tokens
            advance(len(some[0]))
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    return Prepared(Examples(np.concatenate(ids), np.concatenate(segments), starts), chunks)


def decoded(
    processor: Processor,
    prepared: Prepared,
    outputs: Mapping[str, np.ndarray],
    parts: Sequence[slice] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Decodes the network's outputs.

    Args:
        processor: the one that prepared the texts.
        prepared: the texts.
        outputs: those of the network over `prepared.examples`, in their order.
        parts: which of the outputs belong to each chunk; by default those of its rows or tokens.

    Yields:
        The answers of each chunk, one row for each text.
    """
    if parts is None:
        per_token = processor.per_token
        parts = [chunk.tokens if per_token else chunk.rows for chunk in prepared.chunks]
    for chunk, part in zip(prepared.chunks, parts, strict=True):
        some = {name: tf.constant(values[part]) for name, values in outputs.items()}
        answers = processor.decode(some, chunk.inputs)
        yield {name: value.numpy() for name, value in answers.items()}


def gathered(chunks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Joins the answers of chunks.

    Args:
        chunks: {name: [B, ...]} of each.

    Returns:
        {name: [n, ...]}, or a list of n arrays where chunks differ in width.
    """
    joined: dict[str, Any] = {}
    for name in chunks[0]:
        values = [chunk[name] for chunk in chunks]
        if len({value.shape[1:] for value in values}) == 1:
            joined[name] = np.concatenate(values)
        else:
            joined[name] = [row for value in values for row in value]
    return joined


def as_tensor(column: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    """Turns strings [n], or lists of strings, into a tensor of byte strings."""
    if isinstance(column, np.ndarray) or not column or isinstance(column[0], str | bytes):
        return tf.constant(encode_texts(column), tf.string)
    values = encode_texts(text for row in column for text in row)
    lengths = np.array([len(row) for row in column], np.int64)
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, tf.string), lengths)
