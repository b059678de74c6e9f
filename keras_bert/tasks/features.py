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

The file gets its name only when it is complete.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.memory import check_batch_fits
from keras_bert.tasks.examples import Batcher, Examples, in_order
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.unknown_words import warn_of_unknown_words
from keras_bert.training.evaluate import make_predict

WINDOW_BYTES = 2**28  # Bytes of features per window.
WINDOW_BATCHES = 64
LOG_LINES = 10_000

# The token ids of a line with [CLS] and [SEP], int32 [t], and the float32 outputs of K layers for
# each token, [t, K, H]; or [K, H] if pooled.
LineFeatures = tuple[np.ndarray, np.ndarray]


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
    layers: Sequence[int],
    pooling: str = "none",
    max_seq_length: int = 128,
    batch_size: int = 32,
    jit_compile: bool = True,
) -> Iterator[LineFeatures]:
    """Yields the features of each line, in order.

    Lines are texts, or pairs "a ||| b", which are truncated to `max_seq_length` tokens. `layers`
    are indices of K layers, as for `check_layers`. `pooling` is `none` for all tokens, `cls` for
    the first token, or `mean` or `max` over all tokens of a line, including [CLS] and [SEP].
    """
    check_layers(layers, len(encoder.blocks))
    if pooling == "cls" and encoder.config.is_decoder:
        raise InputError(
            "--pooling=cls: in a left-to-right model (is_decoder), [CLS] attends only to itself; "
            "expected none, mean or max"
        )

    def forward(inputs: dict[str, tf.Tensor], training: bool) -> dict[str, tf.Tensor]:
        states = encoder.layer_outputs(inputs, attention_probabilities=False)["hidden_states"]
        states = states[1:]  # Without the embeddings.
        states = tf.stack([tf.cast(states[layer], tf.float32) for layer in layers], axis=2)
        return {"features": _pooled(states, inputs["input_mask"], pooling)}

    run = make_predict(tf.distribute.get_strategy(), forward, jit_compile=jit_compile)
    per_token = pooling == "none"
    line_bytes = 4 * len(layers) * encoder.config.hidden_size
    line_bytes *= max_seq_length if per_token else 1
    batches = min(max(WINDOW_BYTES // (line_bytes * batch_size), 1), WINDOW_BATCHES)
    lines, size = iter(lines), batches * batch_size
    first = num_truncated = 0
    while window := list(islice(lines, size)):
        examples, truncated = _tokenize(window, tokenizer, max_seq_length)
        if not first:
            warn_of_unknown_words([examples.input_ids], tokenizer, window)
            # A file of few lines needs no batch of the full size.
            rows = min(batch_size, len(window))
            batcher = Batcher(rows, tokenizer.pad_token_id, max_seq_length)
        longest = int(examples.lengths.max())
        check_batch_fits(encoder.config, rows, longest, f"--batch_size={batch_size}")
        num_truncated += truncated
        values = in_order(examples, run(batcher.evaluation(examples)), per_token)["features"]
        values = examples.rows(values) if per_token else values
        yield from zip(examples.rows(examples.input_ids), values, strict=True)
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


def _pooled(states: tf.Tensor, input_mask: tf.Tensor, pooling: str) -> tf.Tensor:
    """Pools states [B, S, K, H] over the tokens of each line: [B, K, H]; `none` returns them."""
    real = input_mask[:, :, tf.newaxis, tf.newaxis] == 1
    if pooling == "cls":
        return states[:, 0]
    if pooling == "mean":
        counts = tf.reduce_sum(tf.cast(real, tf.float32), axis=1)
        return tf.reduce_sum(tf.where(real, states, 0.0), axis=1) / counts
    if pooling == "max":
        return tf.reduce_max(tf.where(real, states, states.dtype.min), axis=1)
    return states


def _tokenize(
    lines: Sequence[str], tokenizer: BertTokenizer, max_seq_length: int
) -> tuple[Examples, int]:
    """Returns the lines as examples, and the number of truncated lines."""
    # A pair "a ||| b" has two texts; any other line is one text.
    pairs = [re.fullmatch(r"(.*) \|\|\| (.*)", line) for line in lines]
    sides = [pair.groups() if pair else (line,) for pair, line in zip(pairs, lines, strict=True)]
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


# --- files ---


def check_not_input(input_file: str, output_file: Path) -> None:
    """Raises InputError if the output file is the input file; "-" is standard input."""
    both_exist = input_file != "-" and Path(input_file).exists() and output_file.exists()
    if both_exist and output_file.samefile(input_file):
        raise InputError(
            f"--output_file={output_file} is also the --input_file; expected another file"
        )


def check_output_file(path: Path, pooling: str) -> None:
    """Raises InputError if the suffix is unknown, or its format does not support the pooling."""
    array = ".npz" if pooling == "none" else ".npy"
    if path.suffix.lower() not in (".jsonl", array):
        raise InputError(
            f"--output_file={path}: got --pooling={pooling}; expected a file name that ends in "
            f".jsonl or {array}"
        )


def write_features(
    path: Path,
    features: Iterable[LineFeatures],
    layers: Sequence[int],
    pooling: str,
    vocab: Sequence[str],
    hidden_size: int,
) -> None:
    """Writes features to a file, in the format of its suffix (`check_output_file`).

    `layers` are the indices of the K layers as they are written to .jsonl files, and `vocab` are
    the tokens in the order of their ids. `hidden_size` is for the shape of an array without lines.
    """
    with atomic_path(path) as partial:
        if path.suffix.lower() != ".jsonl":
            _write_arrays(partial, features, pooling, (len(layers), hidden_size))
            return
        token = {"none": "", "cls": "[CLS]"}.get(pooling, pooling)
        with open(partial, "w", encoding="utf-8") as file:
            for index, (ids, values) in enumerate(features):
                tokens = [token] if token else [vocab[token_id] for token_id in ids]
                rounded = np.round(values.astype(np.float64), 6).tolist()
                content = _json_features(tokens, layers, [rounded] if token else rounded)
                file.write(json.dumps({"linex_index": index, "features": content}) + "\n")


def _json_features(
    tokens: Sequence[str], layers: Sequence[int], values: Sequence[Any]
) -> list[dict[str, Any]]:
    return [
        {
            "token": token,
            "layers": [
                {"index": layer, "values": of_layer}
                for layer, of_layer in zip(layers, by_layer, strict=True)
            ],
        }
        for token, by_layer in zip(tokens, values, strict=True)
    ]


def _write_arrays(
    path: Path, features: Iterable[LineFeatures], pooling: str, shape: tuple[int, int]
) -> None:
    """Writes an .npy or .npz file; the values are collected in a temporary file beside it."""
    input_ids, lengths, rows = [np.zeros([0], np.int32)], [0], 0
    with tempfile.TemporaryFile(dir=path.parent) as values_file, open(path, "wb") as file:
        for ids, values in features:
            values_file.write(np.ascontiguousarray(values, np.float32))
            input_ids.append(ids)
            lengths.append(len(ids))
            rows += 1 if pooling != "none" else len(ids)
        values_file.flush()
        values = np.zeros([0, *shape], np.float32)
        if rows:
            values = np.memmap(values_file, np.float32, "r", shape=(rows, *shape))
        if pooling != "none":
            np.save(file, values)
        else:
            starts = np.cumsum(lengths, dtype=np.int64)
            np.savez(file, values=values, input_ids=np.concatenate(input_ids), starts=starts)
