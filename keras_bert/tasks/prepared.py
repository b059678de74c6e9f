"""Preprocesses texts and decodes model outputs for whole datasets, chunk by chunk.

    texts -> preprocess each chunk -> Prepared -> model -> decode each chunk -> answers

The model runs over the examples of all chunks together, so that examples of similar length share a
batch. A SavedModel runs the same `preprocess` and `decode` in its graph.

`TextProcessor` is for the tasks that operate on whole texts:

    text [B] -> tokens -> one sequence per text, truncated at the end or in the middle
                       or n windows -> network -> values [n, ...] -> pooled values [B, ...]

B texts, n windows.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.export.engine_network import Rows
from keras_bert.export.inputs import TOKEN_ID_SPECS, same_shape
from keras_bert.export.saved_model import ServedTask, Steps
from keras_bert.models import memory
from keras_bert.tasks.examples import Examples, row_splits
from keras_bert.text.offsets import decode_texts, encode_texts
from keras_bert.text.padding import NUMPY, Segments, combine_segments, gather_segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.unknown_words import warn_of_unknown_words
from keras_bert.text.windows import TextWindows, TooManyTokens, head_and_tail, make_text_windows
from keras_bert.text.word_cache import WordCache
from keras_bert.training.log import progress

Arrays = Mapping[str, np.ndarray]  # {output of the model: array}

CHUNK_SIZE = 1024  # texts, or pairs of texts, per chunk
# A chunk with more characters has fewer texts, because tokenization and windows need much memory.
_CHUNK_CHARACTERS = 2**22
# The number of texts that an export shows, and their maximum number of characters.
_SHOWN, _SHOWN_CHARACTERS = 3, 200


class Processor:
    """The preprocessing of strings and the decoding of model outputs for a task, in TensorFlow.

    Attributes:
        tokenizer: the tokenizer.
        settings: the settings of the task.
        per_token: whether the model's outputs have one row per token, [T, ...]; otherwise they have
            one row per sequence, [n, ...].
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
        prepared: the preprocessed items.
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

    Raises:
        InputError: the token ids of all sequences do not fit in memory.
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
    """Raises an InputError if the arrays of texts, of `needed` bytes, do not fit in memory.

    `what` describes them in the error message.
    """
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

    `outputs` are the model's outputs for `prepared.examples`, in the same order. `split` splits
    them by chunk; None for one row per sequence, or token if `processor.per_token`.
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
    """Converts strings [n], or n lists of strings, into an array of byte strings.

    The lists are padded with empty strings.
    """
    if _is_flat(column):
        return encode_texts(column)
    return as_tensor(column).to_tensor().numpy()


def _is_flat(column: Sequence[Any]) -> bool:
    is_array = isinstance(column, np.ndarray)
    return is_array or not column or isinstance(column[0], str | bytes)


# --- tasks on whole texts ---

TRUNCATE, WINDOWS = "truncate", "windows"
LONG_TEXT = (TRUNCATE, "head_tail", WINDOWS)


@dataclass(frozen=True)
class LongText:
    """The settings for single texts with more than `max_seq_length` tokens.

    Attributes:
        strategy: `truncate` removes tokens at the end, `head_tail` in the middle; `windows` splits
            the text into overlapping windows.
        window_stride: number of tokens between the starts of two windows; 0 for half of a window.

    Raises:
        InputError: a value is invalid.
    """

    strategy: str = TRUNCATE
    window_stride: int = 0

    def __post_init__(self):
        if self.strategy not in LONG_TEXT:
            raise InputError(f"long_text={self.strategy!r}: expected one of {', '.join(LONG_TEXT)}")
        if self.window_stride and self.strategy != WINDOWS:
            raise InputError(
                f"window_stride={self.window_stride!r}: has no effect with "
                f"long_text={self.strategy!r}; expected long_text={WINDOWS!r}"
            )

    @classmethod
    def saved(
        cls, checkpoint: Checkpoint, strategy: str | None = None, max_seq_length: int | None = None
    ) -> "LongText":
        """Reads the settings of a saved model; another `strategy` has its defaults.

        A saved stride that does not fit into windows of `max_seq_length` is ignored.
        """
        saved_strategy = checkpoint.setting("long_text", str, None, TRUNCATE)
        if strategy not in (None, saved_strategy):
            return cls(strategy)
        strategy = saved_strategy
        stride = checkpoint.setting("window_stride", int, None, 0) if strategy == WINDOWS else 0
        stride = 0 if max_seq_length and stride > max_seq_length - 2 else stride
        return cls(strategy, stride)

    def to_dict(self) -> dict[str, object]:
        """Returns the settings that are saved with a model and in exports."""
        if self.strategy != WINDOWS:
            return {"long_text": self.strategy}
        return {"long_text": self.strategy, "window_stride": self.window_stride}

    def check_stride(self, max_seq_length: int) -> None:
        """Raises InputError if the stride is not a whole number of tokens within a window."""
        room, stride = max_seq_length - 2, self.window_stride
        is_number = isinstance(stride, int) and not isinstance(stride, bool)
        if not is_number or not 0 <= stride <= max(room, 0):
            raise InputError(
                f"window_stride={stride!r}: expected 0, or from 1 to the {room} tokens of a window"
            )

    def stride(self, max_seq_length: int) -> int:
        """Returns the number of tokens between the starts of two windows."""
        return self.window_stride or max(1, (max_seq_length - 2) // 2)


TRUNCATED = LongText()


class TextProcessor(Processor):
    """Converts texts or pairs of texts into model inputs; subclasses implement `decode`.

    `settings.long_text` applies to single texts, if the settings have it, and
    `truncates_as_transformers`, an argument of `combine_segments`, to pairs.
    """

    input_names: tuple[str, ...] = ("text",)
    truncates_as_transformers: bool = False

    def preprocess(
        self, text: tf.Tensor, text_pair: tf.Tensor | None = None
    ) -> Segments | TextWindows:
        """Converts texts [B] or pairs of texts, [B] each, into model inputs.

        Raises:
            TooManyTokens: the windows of all texts have too many tokens for one call. In a graph,
                the operation fails instead, with a tf.errors.InvalidArgumentError.
        """
        length = self.settings.max_seq_length
        special = {
            "max_seq_length": length,
            "cls_token_id": self.tokenizer.cls_token_id,
            "sep_token_id": self.tokenizer.sep_token_id,
        }
        if text_pair is not None:
            # One call for both: for a single text, most time is spent on launching ops.
            text, text_pair = same_shape(text=text, text_pair=text_pair)
            tokens = self.tokenizer.tokenize(tf.concat([text, text_pair], axis=0))
            count = tf.size(text)
            special["truncates_as_transformers"] = self.truncates_as_transformers
            return combine_segments(tokens[:count], tokens[count:], **special)
        tokens = self.tokenizer.tokenize(text)
        long_text: LongText = getattr(self.settings, "long_text", TRUNCATED)
        if long_text.strategy == WINDOWS:
            return make_text_windows(tokens, stride=long_text.stride(length), **special)
        if long_text.strategy == TRUNCATE:
            return combine_segments(tokens, **special)
        shortened, truncated = head_and_tail(tokens, length - 2)
        return combine_segments(shortened, **special)._replace(truncated=truncated)

    def pooled(self, values: tf.Tensor, inputs: Segments | TextWindows) -> tf.Tensor:
        """Returns the mean over the windows of each text: [n, ...] -> [B, ...].

        Returns the values as they are if `inputs` are not windows.
        """
        if not isinstance(inputs, TextWindows):
            return values
        return tf.math.segment_mean(values, inputs.text)


def window_counts(prepared: Prepared) -> np.ndarray:
    """Returns the number of sequences of each text, int [n]: of its windows, or 1."""
    counts = [
        np.bincount(inputs.text, minlength=len(inputs.truncated))
        if isinstance(inputs, TextWindows)
        else np.ones(len(inputs.truncated), np.int64)
        for inputs in prepared.chunks
    ]
    return np.concatenate(counts)


# --- serving signatures ---


class ServedTexts(ServedTask):
    """The SavedModel signatures of a task on texts, which map strings or token ids to answers.

    The signature `serving_default` is for texts, and `token_ids` for token ids.
    """

    processor: TextProcessor

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        texts = [tf.TensorSpec([None], tf.string, name=x) for x in self.processor.input_names]
        decode = self.processor.decode
        return {
            "serving_default": Steps(texts, self.processor.preprocess, decode),
            "token_ids": Steps(TOKEN_ID_SPECS, self._of_token_ids, decode),
        }

    def _of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Segments:
        rows = self.unpadded(input_ids, input_mask, segment_ids)
        return Segments(rows.input_ids, rows.segment_ids, rows.truncated)


# The estimated bytes after which a cache starts again; and those of a word and of a token.
_CACHE_BYTES, _WORD_BYTES, _TOKEN_BYTES = 1 << 26, 256, 40


class ArraySteps:
    """The steps of `serving_default` without TensorFlow, for an engine and truncated texts.

    For one short text, TensorFlow's calls would take half as much time as the network. Here, the
    ids of words between spaces are in a dict, and those of new words come from `WordCache`. Several
    threads may call it.

    Args:
        processor: its `decode` has the argument `ops`; its tokenizer is not used.
        tokenize: the function `ServedTask.tokenize` of the SavedModel.
        info: the content of export.json.
    """

    def __init__(
        self, processor: TextProcessor, tokenize: Callable[..., Any], info: Mapping[str, Any]
    ):
        def tokens_of(units: Sequence[bytes]) -> tuple[list[np.ndarray], np.ndarray]:
            ids = tokenize(tf.constant(units, tf.string))["ids"].numpy()
            return [ids[ids >= 0]], np.count_nonzero(ids >= 0, axis=1)

        self.processor = processor
        self._tokenize = WordCache(
            tokens_of, 1, splits_punctuation=True, do_lower_case=info["do_lower_case"]
        )
        self._ids: dict[bytes, list[int]] = {}
        self._bytes = 0
        self._special_ids = [info["cls_token_id"], info["sep_token_id"]]

    def preprocess(self, *columns: Sequence[bytes]) -> tuple[Rows, Segments]:
        """Converts byte strings [B], or pairs of them, into the rows of the network."""
        cls, sep = self._special_ids
        words = [[text.split(b" ") for text in column] for column in columns]
        ids_of = self._ids_of({word for column in words for text in column for word in text})
        first, *second = (
            [[token for word in text for token in ids_of[word]] for text in column]
            for column in words
        )
        room = self.processor.settings.max_seq_length - 1 - len(columns)
        if any(len(a) + sum(map(len, b)) > room for a, *b in zip(first, *second, strict=True)):
            return self._truncated(room, first, *second)
        ids, segments, splits = [], [], [0]
        for a, *rest in zip(first, *second, strict=True):
            ids += [cls, *a, sep]
            segments += [0] * (len(a) + 2)
            for b in rest:
                ids += [*b, sep]
                segments += [1] * (len(b) + 1)
            splits.append(len(ids))
        rows = Rows(np.array(ids, np.int32), np.array(segments, np.int32), np.array(splits))
        return rows, Segments(*rows[:2], np.zeros(len(first), bool))

    def decode(self, outputs: Arrays, inputs: Segments) -> dict[str, np.ndarray]:
        """Decodes the outputs of the network."""
        return self.processor.decode(outputs, inputs, ops=NUMPY)

    def _ids_of(self, words: set[bytes]) -> Mapping[bytes, list[int]]:
        """Returns the ids of these words, and of others."""
        cache = self._ids
        if new := [word for word in words if word not in cache]:
            [ids], splits = self._tokenize(new)
            rows = [ids[start:end].tolist() for start, end in itertools.pairwise(splits)]
            entries = dict(zip(new, rows, strict=True))
            self._bytes += sum(_WORD_BYTES + len(word) for word in new) + _TOKEN_BYTES * len(ids)
            if self._bytes > _CACHE_BYTES:
                self._ids, self._bytes = {}, 0
                return {**cache, **entries}
            cache.update(entries)
        return cache

    def _truncated(self, room: int, *columns: Sequence[list[int]]) -> tuple[Rows, Segments]:
        sides = []
        for column in columns:
            lengths = np.array([*map(len, column)])
            values = np.array([index for ids in column for index in ids], np.int32)
            sides.append((values, np.cumsum(lengths) - lengths, lengths))
        ids, segments, splits, truncated = gather_segments(
            *(sides[0], sides[1] if len(sides) > 1 else None, room),
            np.array(self._special_ids, np.int32),
            truncates_as_transformers=self.processor.truncates_as_transformers,
            ops=NUMPY,
        )
        return Rows(ids, segments, splits), Segments(ids, segments, truncated)
