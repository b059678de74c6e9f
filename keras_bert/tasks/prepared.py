"""Applies a task's preprocessing and decoding to whole datasets, chunk by chunk.

    texts -> preprocess, one chunk at a time -> Prepared
    model outputs for Prepared.examples -> decode, one chunk at a time -> answers

A task's processor provides the graph functions `preprocess` and `decode`. A SavedModel calls both
in one graph. The programs and `Task.predict` call them here, and run the model in between over the
examples of all chunks, so that examples of similar length share a batch.
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
    """The result of `preprocess`: a NamedTuple with at least these fields, one row per sequence.

    Attributes:
        input_ids: ragged int32 [n, (S)].
        segment_ids: ragged int32 [n, (S)].
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class TextInputs(NamedTuple):
    """Model inputs for single texts or pairs of texts, with [CLS] and [SEP].

    Attributes:
        input_ids: ragged int32 [B, (S)].
        segment_ids: ragged int32 [B, (S)], 1 for the second text and its [SEP].
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class Processor(Protocol):
    """The graph functions of a task: preprocessing of strings and decoding of model outputs.

    Attributes:
        per_token: whether the outputs have one row per token, [T, ...], or per sequence, [n, ...].
    """

    per_token: ClassVar[bool]

    def preprocess(self, *texts: tf.Tensor) -> NetworkInputs:
        """Converts strings [B] into model inputs."""

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: NetworkInputs
    ) -> dict[str, tf.Tensor]:
        """Converts model outputs into answers, one row per text."""


@dataclass(frozen=True)
class Chunk:
    """The texts of one `preprocess` call.

    Attributes:
        inputs: the result of `preprocess`.
        rows: the chunk's sequences within all examples.
        tokens: the chunk's tokens within the tokens of all examples.
    """

    inputs: Any
    rows: slice
    tokens: slice


@dataclass(frozen=True, eq=False)
class Prepared:
    """Preprocessed texts: the sequences of all chunks, and the chunks, which decoding needs."""

    examples: Examples
    chunks: Sequence[Chunk]


def prepare(
    preprocess: Callable[..., NetworkInputs],
    columns: Sequence[Sequence[Any]],
    chunk_size: int = CHUNK_SIZE,
) -> Prepared:
    """Preprocesses columns of n strings, or of n lists of strings, for `decoded` to use in order.

    Args:
        preprocess: the `preprocess` method of a processor.
        columns: one column for each argument of `preprocess`.
        chunk_size: number of texts per call.
    """
    count = len(columns[0])
    chunks: list[Chunk] = []
    rows = tokens = 0
    ids, segments = ([np.zeros([0], np.int32)] for _ in range(2))
    lengths = [np.zeros([0], np.int64)]
    with progress("tokenizing", count, "texts") as advance:
        for start in range(0, max(count, 1), chunk_size):
            chunk = [column[start : start + chunk_size] for column in columns]
            inputs = preprocess(*map(as_tensor, chunk))
            ids.append(inputs.input_ids.values.numpy())
            segments.append(inputs.segment_ids.values.numpy())
            lengths.append(inputs.input_ids.row_lengths().numpy())
            more_rows, more_tokens = len(lengths[-1]), len(ids[-1])
            chunks.append(
                Chunk(inputs, slice(rows, rows + more_rows), slice(tokens, tokens + more_tokens))
            )
            rows, tokens = rows + more_rows, tokens + more_tokens
            advance(len(chunk[0]))
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    return Prepared(Examples(np.concatenate(ids), np.concatenate(segments), starts), chunks)


def decoded(
    processor: Processor,
    prepared: Prepared,
    outputs: Mapping[str, np.ndarray],
    parts: Sequence[slice] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Decodes model outputs chunk by chunk, one row of answers per text.

    Args:
        processor: the processor that prepared the texts.
        prepared: the preprocessed texts.
        outputs: the model outputs for `prepared.examples`, in the same order.
        parts: the slice of `outputs` for each chunk; by default its rows or tokens.
    """
    if parts is None:
        per_token = processor.per_token
        parts = [chunk.tokens if per_token else chunk.rows for chunk in prepared.chunks]
    for chunk, part in zip(prepared.chunks, parts, strict=True):
        chunk_outputs = {name: tf.constant(values[part]) for name, values in outputs.items()}
        answers = processor.decode(chunk_outputs, chunk.inputs)
        yield {name: value.numpy() for name, value in answers.items()}


def gathered(chunks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Concatenates the answers of chunks, {name: [B, ...]}, into {name: [n, ...]}.

    A value is a list of n arrays if its width differs between the chunks.
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
    """Converts strings [n], or n lists of strings, into a dense or ragged string tensor."""
    if isinstance(column, np.ndarray) or not column or isinstance(column[0], str | bytes):
        return tf.constant(encode_texts(column), tf.string)
    values = encode_texts(text for row in column for text in row)
    lengths = np.array([len(row) for row in column], np.int64)
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, tf.string), lengths)
