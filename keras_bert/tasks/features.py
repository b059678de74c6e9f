"""Computes the hidden states of chosen encoder layers for lines of text, and writes them to a file.

    lines -> windows of several batches -> [CLS] a [SEP] or [CLS] a [SEP] b [SEP] -> batches of
    similar length (examples.py) -> encoder -> [pooling] -> original order of the lines

One window is processed at a time, so memory does not depend on the number of lines. A line
"a ||| b" is a pair. An empty line becomes [CLS] [SEP], to keep outputs and lines aligned.

The suffix of the file selects its format, with K layers and hidden size H:

    .jsonl     {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
               "values": [0.123456, ...]}, ...]}, ...]}, one object per line, in the format of
               Google's tool; pooled features have one entry, whose token is [CLS], mean or max
    .npy       pooled features: float32 [lines, K, H]
    .npz       features of tokens: values float32 [tokens, K, H], input_ids int32 [tokens], starts
               int64 [lines + 1]: line i has the tokens starts[i] to starts[i + 1]

Features are written as they are computed. The file gets its name only when it is complete.
"""

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.memory import check_batch_fits
from keras_bert.tasks.examples import BatchSettings, Examples, evaluation_batches, in_order
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.unknown_words import warn_of_unknown_words
from keras_bert.training.objective import Batch
from keras_bert.training.step import compiled

WINDOW_BYTES = 2**28  # Bytes of features per window.
WINDOW_BATCHES = 64
LOG_LINES = 10_000

_INPUTS = ("input_ids", "input_mask", "segment_ids")


@dataclass(frozen=True)
class LineFeatures:
    """The features of one line.

    Attributes:
        index: the line number, from 0.
        input_ids: int32 [t], the tokens of the line with [CLS] and [SEP].
        values: float32 [t, K, H], the outputs of K layers for each token; [K, H] if pooled.
    """

    index: int
    input_ids: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class FeatureSettings:
    """The layers to extract, their pooling, and batching.

    Attributes:
        layers: indices of K layers, as for `check_layers`.
        pooling: `none` for all tokens; `cls` for the first token; `mean` or `max` over all tokens
            of a line, including [CLS] and [SEP].
        max_seq_length: maximum number of tokens in a line; longer lines are truncated.
        batch_size: number of lines per batch.
        jit_compile: whether to compile with XLA.
    """

    layers: Sequence[int]
    pooling: str = "none"
    max_seq_length: int = 128
    batch_size: int = 32
    jit_compile: bool = True


def check_layers(layers: Sequence[int], num_hidden_layers: int) -> None:
    """Raises InputError if a layer does not exist in the encoder, or no layer is given.

    Layers are numbered from 0, the first one, or from -1, the last one, backwards.
    """
    if not layers or any(not -num_hidden_layers <= layer < num_hidden_layers for layer in layers):
        raise InputError(
            f"--layers={','.join(map(str, layers))}: expected numbers from 0 (the first layer) to "
            f"{num_hidden_layers - 1} (the last), or from {-num_hidden_layers} to -1"
        )


def extract_features(
    lines: Iterable[str],
    encoder: BertEncoder,
    tokenizer: BertTokenizer,
    settings: FeatureSettings,
) -> Iterator[LineFeatures]:
    """Yields the features of each line, in order.

    A line is a text or a pair "a ||| b". The tokenizer must have the encoder's vocabulary. Raises
    InputError if a layer does not exist, `max_seq_length` leaves no room for a token of the line,
    the pooling is `cls` with a left-to-right encoder, or a batch does not fit in memory.
    """
    layers, pooling = settings.layers, settings.pooling
    batch_size, max_seq_length = settings.batch_size, settings.max_seq_length
    check_layers(layers, len(encoder.blocks))
    if pooling == "cls" and encoder.config.is_decoder:
        raise InputError(
            "--pooling=cls: in a left-to-right model (is_decoder), [CLS] attends only to itself; "
            "expected none, mean or max"
        )
    run = _make_forward(encoder, settings)

    def forward(batch: Batch) -> tuple[Batch, dict[str, np.ndarray]]:
        features = run({name: batch[name] for name in _INPUTS}).numpy()
        return {name: value.numpy() for name, value in batch.items()}, {"features": features}

    line_bytes = 4 * len(layers) * encoder.config.hidden_size
    line_bytes *= max_seq_length if pooling == "none" else 1
    batches = min(max(WINDOW_BYTES // (line_bytes * batch_size), 1), WINDOW_BATCHES)
    batching = BatchSettings(batch_size, tokenizer.pad_token_id, max_seq_length)
    lines = iter(lines)
    first = num_truncated = 0
    while window := list(islice(lines, batches * batch_size)):
        examples, truncated = _tokenize(window, tokenizer, max_seq_length)
        if not first:
            warn_of_unknown_words([examples.input_ids], tokenizer, window)
            # A file of few lines needs no batch of the full size.
            batching = replace(batching, batch_size=min(batch_size, len(window)))
        check_batch_fits(
            encoder.config,
            batching.batch_size,
            int(examples.lengths.max()),
            f"--batch_size={batch_size}",
        )
        num_truncated += truncated
        values = in_order(
            examples, map(forward, evaluation_batches(examples, batching)), pooling == "none"
        )["features"]
        rows = examples.rows(values) if pooling == "none" else values
        input_ids = examples.rows(examples.input_ids)
        for index, (ids, row) in enumerate(zip(input_ids, rows, strict=True), first):
            yield LineFeatures(index, ids, row)
        if (first + len(window)) // LOG_LINES > first // LOG_LINES:
            logging.info("Processed %d lines", first + len(window))
        first += len(window)
    if num_truncated:
        logging.warning(
            "%d of %d lines had more than %d tokens and were truncated",
            num_truncated,
            first,
            max_seq_length,
        )


def _make_forward(
    encoder: BertEncoder, settings: FeatureSettings
) -> Callable[[dict[str, tf.Tensor]], tf.Tensor]:
    """Creates the function that maps a batch to float32 [B, S, K, H], or [B, K, H] if pooled."""
    layers, pooling = settings.layers, settings.pooling

    def forward(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        outputs = encoder.layer_outputs(batch, attention_probabilities=False)["hidden_states"]
        outputs = outputs[1:]  # Without the embeddings.
        chosen = tf.stack([tf.cast(outputs[layer], tf.float32) for layer in layers], axis=2)
        if pooling == "cls":
            return chosen[:, 0]
        real = batch["input_mask"][:, :, tf.newaxis, tf.newaxis] == 1
        if pooling == "mean":
            counts = tf.reduce_sum(tf.cast(real, tf.float32), axis=1)
            return tf.reduce_sum(tf.where(real, chosen, 0.0), axis=1) / counts
        if pooling == "max":
            return tf.reduce_max(tf.where(real, chosen, chosen.dtype.min), axis=1)
        return chosen

    # One trace for batches of all lengths.
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in _INPUTS}
    return compiled(forward, settings.jit_compile).get_concrete_function(spec)


def _tokenize(
    lines: Sequence[str], tokenizer: BertTokenizer, max_seq_length: int
) -> tuple[Examples, int]:
    """Returns the lines as examples, and the number of truncated lines."""
    sides = [_sides(line) for line in lines]
    joined, order = [], []
    for count in (1, 2):
        indices = [index for index, texts in enumerate(sides) if len(texts) == count]
        if not indices:
            continue
        tokens = [
            tokenizer.tokenize([sides[index][side] for index in indices]) for side in range(count)
        ]
        joined.append(
            combine_segments(
                *tokens,
                max_seq_length=max_seq_length,
                cls_token_id=tokenizer.cls_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )
        order += indices
    ids, segments, truncated = (tf.concat(parts, axis=0) for parts in zip(*joined, strict=True))
    examples = Examples(ids.values.numpy(), segments.values.numpy(), ids.row_splits.numpy())
    return examples.take(np.argsort(order)), int(np.count_nonzero(truncated))


def _sides(line: str) -> list[str]:
    """Splits a pair "a ||| b" into two texts; any other line is one text."""
    pair = re.fullmatch(r"(.*) \|\|\| (.*)", line)
    return [*pair.groups()] if pair else [line]


# --- files ---


def check_not_input(input_file: str, output_file: Path) -> None:
    """Raises InputError if the output file is the input file; "-" is standard input."""
    both_exist = input_file != "-" and Path(input_file).exists() and output_file.exists()
    if both_exist and output_file.samefile(input_file):
        raise InputError(
            f"--output_file={output_file} is also the --input_file; expected another file"
        )


def make_writer(
    path: Path,
    layers: Sequence[int],
    pooling: str,
    vocab: Sequence[str],
    hidden_size: int | None = None,
) -> Callable[[Path, Iterable[LineFeatures]], None]:
    """Returns a function that writes features to a file, in the format of the suffix of `path`.

    Args:
        path: its suffix is .jsonl, .npy or .npz.
        layers: indices of the K layers, as they are written to .jsonl files.
        pooling: the pooling of the features, as in `FeatureSettings`.
        vocab: the tokens in the order of their ids.
        hidden_size: H, for the shape of an array without lines.

    Raises:
        InputError: the suffix is unknown, or the format does not support the pooling.
    """
    pooled = pooling != "none"
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        token = {"cls": "[CLS]"}.get(pooling, pooling)
        return lambda path, features: _write_jsonl(path, features, layers, vocab, pooled and token)
    shape = (len(layers), hidden_size) if hidden_size else ()
    if suffix == ".npy" and pooled:
        return lambda path, features: _write_npy(path, features, shape)
    if suffix == ".npz" and not pooled:
        return lambda path, features: _write_npz(path, features, shape)
    expected = ".jsonl or " + (".npy" if pooled else ".npz")
    raise InputError(
        f"--output_file={path}: got --pooling={pooling}; expected a file name that ends in "
        f"{expected}"
    )


def _write_jsonl(
    path: Path,
    features: Iterable[LineFeatures],
    layers: Sequence[int],
    vocab: Sequence[str],
    token: str | bool,
) -> None:
    with atomic_path(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for line in features:
            tokens = [token] if token else [vocab[index] for index in line.input_ids]
            rounded = np.round(line.values.astype(np.float64), 6).tolist()
            content = [
                {
                    "token": token,
                    "layers": [
                        {"index": layer, "values": values}
                        for layer, values in zip(layers, by_layer, strict=True)
                    ],
                }
                for token, by_layer in zip(tokens, [rounded] if token else rounded, strict=True)
            ]
            file.write(json.dumps({"linex_index": line.index, "features": content}) + "\n")


def _write_npy(path: Path, features: Iterable[LineFeatures], shape: tuple[int, ...]) -> None:
    with atomic_path(path) as partial, open(partial, "wb") as file:
        array = _GrowingArray(file, shape)
        for line in features:
            array.append(line.values[np.newaxis])
        array.close()


def _write_npz(path: Path, features: Iterable[LineFeatures], shape: tuple[int, ...]) -> None:
    with atomic_path(path) as partial, tempfile.TemporaryFile(dir=path.parent) as values_file:
        values, input_ids, starts = _GrowingArray(values_file, shape), [], [0]
        for line in features:
            values.append(line.values)
            input_ids.append(line.input_ids)
            starts.append(starts[-1] + len(line.input_ids))
        values.close()
        with zipfile.ZipFile(partial, "w") as archive:
            values_file.seek(0)
            with archive.open("values.npy", "w", force_zip64=True) as member:
                shutil.copyfileobj(values_file, member, 2**20)
            for name, array in (
                ("input_ids", np.concatenate([np.zeros([0], np.int32), *input_ids])),
                ("starts", np.array(starts, np.int64)),
            ):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


class _GrowingArray:
    """A float32 .npy file that grows along its first axis.

    The header is rewritten in place when the size is known; NumPy adds enough padding for this.
    """

    def __init__(self, file: BinaryIO, shape: tuple[int, ...]):
        self._file = file
        self._rows, self._rest = 0, shape  # `_rest`: the shape of a row, replaced by the first row.

    def append(self, values: np.ndarray) -> None:
        if not self._rows:
            self._rest = values.shape[1:]
            self._write_header()
        self._rows += len(values)
        self._file.write(np.ascontiguousarray(values, np.float32))

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.flush()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": "<f4", "fortran_order": False, "shape": (self._rows, *self._rest)},
        )
