"""Preprocesses texts and decodes model outputs for whole datasets, chunk by chunk.

    texts -> preprocess each chunk -> Prepared -> model -> decode each chunk -> answers

The model runs over the examples of all chunks together, so that examples of similar length share a
batch. A SavedModel runs the same `preprocess` and `decode` in its graph.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.models import memory
from keras_bert.tasks.examples import Examples, row_splits
from keras_bert.text.offsets import decode_texts, encode_texts
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.unknown_words import warn_of_unknown_words
from keras_bert.text.windows import TooManyTokens
from keras_bert.training.log import progress

Arrays = Mapping[str, np.ndarray]  # {output of the model: array}

CHUNK_SIZE = 1024  # texts, or pairs of texts, per chunk
# A chunk with more characters has fewer texts, because tokenization and windows need much memory.
_CHUNK_CHARACTERS = 2**22
# The number of texts that an export shows, and their maximum number of characters.
_SHOWN, _SHOWN_CHARACTERS = 3, 200


class Processor:
    """The preprocessing of strings and the decoding of model outputs for a task, in TensorFlow.

    With `per_token`, the model's outputs have one row per token, [T, ...]; otherwise they have one
    row per sequence, [n, ...].
    """

    per_token: ClassVar[bool] = False

    def __init__(self, tokenizer: BertTokenizer, settings: Any):
        self.tokenizer = tokenizer
        self.settings = settings

    def preprocess(self, *texts: tf.Tensor) -> Any:
        """Converts B texts, strings [B] for each argument, into model inputs.

        Returns:
            A NamedTuple with at least `input_ids` and `segment_ids`, ragged int32 [n, (S)] each,
            for n sequences. Tasks that split long texts into windows have several per text.
        """
        raise NotImplementedError

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: Any) -> dict[str, tf.Tensor]:
        """Converts model outputs into answers {name: [B, ...]}, one row per text."""
        raise NotImplementedError


class Prepared(NamedTuple):
    """Preprocessed texts.

    Attributes:
        examples: the sequences of all texts.
        chunks: the result of each call of `Processor.preprocess`, in order, which `decoded` needs.
    """

    examples: Examples
    chunks: Sequence[Any]

    @property
    def truncated(self) -> np.ndarray:
        """Whether tokens of each text were removed, bool [n]; for tasks that truncate texts."""
        return np.concatenate([inputs.truncated for inputs in self.chunks])

    def split(self, values: np.ndarray, per_token: bool) -> Iterator[np.ndarray]:
        """Splits values for all sequences, or if `per_token` for all tokens, by chunk."""
        counts = [
            tf.size(inputs.input_ids.values) if per_token else inputs.input_ids.nrows()
            for inputs in self.chunks
        ]
        yield from np.split(values, np.cumsum(counts)[:-1])


class PreparedSet(NamedTuple):
    """The items of a training, development or test set, preprocessed once.

    Attributes:
        labels: the labels of the items, as `score_outputs` takes them; None if they are unknown, or
            part of the items.
        items: the texts, sentences or questions of a file. run.json has a checksum of the `repr` of
            each.
    """

    prepared: Prepared
    labels: Any = None
    items: Any = None


def prepare(
    preprocess: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    chunk_size: int | None = CHUNK_SIZE,
    tokenizer: BertTokenizer | None = None,
) -> Prepared:
    """Preprocesses n texts, up to `chunk_size` texts at a time; None for all at once.

    `columns` contains, for each argument of `preprocess`, n strings or n lists of strings. Chunks
    of long texts have fewer texts. With `tokenizer`, logs a warning if many words become
    [UNK].
    """
    count = len(columns[0])
    chunks: list[Any] = []
    rows = tokens = 0
    with progress("tokenizing", count, "texts") as advance:
        for part in _chunk_slices(columns, chunk_size):
            for inputs in _preprocessed(preprocess, [column[part] for column in columns]):
                chunks.append(inputs)
                rows += int(inputs.input_ids.nrows())
                tokens += int(tf.size(inputs.input_ids.values))
            # A second copy of the token ids and the segment ids, int32 each.
            what = f"{rows} sequences of the first {part.stop} texts have {tokens} tokens, which"
            check_memory(what, 8 * tokens)
            advance(part.stop - part.start)
    ids, segments = (
        np.concatenate([getattr(inputs, name).values.numpy() for inputs in chunks])
        for name in ("input_ids", "segment_ids")
    )
    if tokenizer is not None:
        texts = (text for row in zip(*columns, strict=True) for v in row for text in _strings(v))
        warn_of_unknown_words([ids], tokenizer, texts)
    lengths = np.concatenate([inputs.input_ids.row_lengths() for inputs in chunks])
    examples = Examples(ids, segments, row_splits(lengths), shown=short_rows(columns))
    return Prepared(examples, chunks)


def short_rows(columns: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Returns up to three short rows of texts from different parts of the columns.

    The rows of a file may be sorted by label. The words of a sentence are joined by spaces.
    """
    count, rows = len(columns[0]), []
    for start in range(0, count, max(1, -(-count // _SHOWN))):
        for index in range(start, min(start + 100, count)):
            row = [" ".join(map(_text, _strings(column[index]))) for column in columns]
            is_short = sum(map(len, row)) <= _SHOWN_CHARACTERS and all(map(str.strip, row))
            if is_short and row not in rows:
                rows.append(row)
                break
    return rows


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _preprocessed(preprocess: Callable[..., Any], chunk: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Preprocesses a chunk, in halves if its windows have too many tokens for one call."""
    try:
        yield preprocess(*map(as_tensor, chunk))
        return
    except TooManyTokens:
        count = len(chunk[0])
        if count == 1:
            raise
    for half in (slice(count // 2), slice(count // 2, count)):
        yield from _preprocessed(preprocess, [column[half] for column in chunk])


def _chunk_slices(columns: Sequence[Sequence[Any]], chunk_size: int | None) -> Iterator[slice]:
    """Yields the slices of the chunks; without texts, that of one empty chunk."""
    if chunk_size is None:
        yield slice(0, len(columns[0]))
        return
    start = size = 0
    for index, row in enumerate(zip(*columns, strict=True)):
        more = sum(len(part) for value in row for part in _strings(value))
        if index > start and (index - start == chunk_size or size + more > _CHUNK_CHARACTERS):
            yield slice(start, index)
            start, size = index, 0
        size += more
    yield slice(start, len(columns[0]))


def _strings(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str | bytes) else value


def check_memory(what: str, needed: int) -> None:
    """Raises an InputError if the arrays of texts, of `needed` bytes, do not fit in memory."""
    available = memory.available_memory()
    if available is not None and needed > available:
        raise InputError(
            f"the {what} need {needed / 1e9:,.1f} GB more, but {available / 1e9:,.1f} GB of memory "
            "are available; expected fewer or shorter texts, or if they are split into windows, a "
            "larger stride"
        )


def decoded(
    processor: Processor,
    prepared: Prepared,
    outputs: Mapping[str, np.ndarray],
    split: Callable[[np.ndarray], Iterable[np.ndarray]] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Decodes model outputs and yields the answers of each chunk, one row per text.

    `split` splits them by chunk; None for one row per sequence, or token if `processor.per_token`.
    """
    split = split or functools.partial(prepared.split, per_token=processor.per_token)
    columns = [split(values) for values in outputs.values()]
    for inputs, *parts in zip(prepared.chunks, *columns, strict=True):
        answers = processor.decode(dict(zip(outputs, map(tf.constant, parts), strict=True)), inputs)
        yield {name: value.numpy() for name, value in answers.items()}


def gathered(chunks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Concatenates the answers of all chunks, {name: [B, ...]} each, to {name: [n, ...]}.

    An answer whose shape [...] differs between the chunks becomes a list of n arrays.
    """
    joined: dict[str, Any] = {}
    for name in chunks[0]:
        values = [chunk[name] for chunk in chunks]
        if len({value.shape[1:] for value in values}) == 1:
            joined[name] = np.concatenate(values)
        else:
            joined[name] = [row for value in values for row in value]
    return joined


def with_strings(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns answers with the arrays of byte strings decoded to Python strings."""
    return {
        name: decode_texts(values)
        if isinstance(values, np.ndarray) and values.dtype == object
        else values
        for name, values in answers.items()
    }


def as_tensor(column: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    """Converts strings [n], or n lists of strings, into a dense or ragged string tensor."""
    if _is_flat(column):
        return tf.constant(encode_texts(column), tf.string)
    values = encode_texts(text for row in column for text in row)
    lengths = np.array([len(row) for row in column], np.int64)
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, tf.string), lengths)


def as_array(column: Sequence[Any]) -> np.ndarray:
    """Converts strings [n], or n lists of strings, into an array of byte strings."""
    if _is_flat(column):
        return encode_texts(column)
    return as_tensor(column).to_tensor().numpy()


def _is_flat(column: Sequence[Any]) -> bool:
    is_array = isinstance(column, np.ndarray)
    return is_array or not column or isinstance(column[0], str | bytes)
