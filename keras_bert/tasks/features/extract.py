"""Computes the hidden states of chosen encoder layers for lines of text.

    lines -> windows of several batches -> [CLS] a [SEP] or [CLS] a [SEP] b [SEP] -> batches of
    similar length (fine_tuning/batches.py) -> encoder -> [pooling] -> original order of the lines

One window is processed at a time, so memory does not depend on the number of lines. A line
"a ||| b" is a pair. An empty line becomes [CLS] [SEP], to keep outputs and lines aligned.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.memory import check_batch_fits
from keras_bert.tasks.fine_tuning.batches import BatchSettings, evaluation_batches
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.unknown_words import warn_of_unknown_words
from keras_bert.training.fusion import compiled

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
    forward = _make_forward(encoder, settings)
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
        rows: list[np.ndarray | None] = [None] * len(window)
        for batch in evaluation_batches(examples, batching):
            values = forward({name: batch[name] for name in _INPUTS}).numpy()
            for place, row in zip(batch["example_index"].numpy(), values, strict=True):
                if place >= 0:
                    rows[place] = row[: examples.lengths[place]] if pooling == "none" else row
        for place, ids in enumerate(examples.rows(examples.input_ids)):
            yield LineFeatures(first + place, ids, rows[place])
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
        places = [place for place, texts in enumerate(sides) if len(texts) == count]
        if not places:
            continue
        tokens = [tokenizer.tokenize([sides[p][side] for p in places]) for side in range(count)]
        joined.append(
            combine_segments(
                *tokens,
                max_seq_length=max_seq_length,
                cls_token_id=tokenizer.cls_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )
        order += places
    ids, segments, truncated = (tf.concat(parts, axis=0) for parts in zip(*joined, strict=True))
    examples = Examples(ids.values.numpy(), segments.values.numpy(), ids.row_splits.numpy())
    return examples.take(np.argsort(order)), int(np.count_nonzero(truncated))


def _sides(line: str) -> list[str]:
    """Splits a pair "a ||| b" into two texts; any other line is one text."""
    pair = re.fullmatch(r"(.*) \|\|\| (.*)", line)
    return [*pair.groups()] if pair else [line]
