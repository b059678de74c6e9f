"""Computes a model in serving graphs: its Keras layers, on rows without padding.

The encoder exists twice: as Keras layers (models/), which train on every backend and are traced
into SavedModels here, and as the ONNX graph of onnx.py, which other engines run. Each export
compares an ONNX graph with the layers.

Rows are sorted by length and computed in steps of a few rows, and only the requested outputs of
each step are kept. Attention, the only part with padded rows, therefore has little padding, and a
batch of any size needs only the memory of one step in addition to its inputs and outputs. Elsewhere
the tokens of a step are concatenated, [T, H].

For speed, two things differ from the layers in training. Query, key and value are computed by one
matmul, in which the query's kernel and bias are divided by √D, so that the attention scores need no
scaling. Biases are added in the compute dtype, so that TensorFlow fuses each matmul with its bias
and activation.

B rows, S length of the longest row, T tokens of all rows, H hidden size, N heads, D head size,
C labels, V vocabulary size, P masked tokens; b rows and t tokens of a step.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.models.attention import biased_activation, residual_norm
from keras_bert.models.encoder import BertNetwork
from keras_bert.models.layers import BiasAndNorm, compile_chains_with

# On a CPU, more rows per step are hardly faster and need more memory: with 16 heads, the float32
# attention scores of 8 rows of 512 tokens need 134 MB. A GPU needs more rows to be busy.
ROWS_AT_ONCE = 8
ROWS_AT_ONCE_ON_GPU = 64

# Computes the outputs of the rows of one step, in row order, with any number of outputs per row:
# (hidden states [t, H], input ids [t], row splits [b + 1]) -> float32 [number of outputs, ...].
Reduce = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

# Added to the attention scores of padding, as in Google's released code.
_MASKED_SCORE = -10000.0


class Network(tf.Module):
    """Computes a model of keras_bert.models, whose layers and weights it copies.

    Inputs are ragged int32 [B, (S)]. No row may be empty or longer than max_position_embeddings.
    `compute_type` is the dtype of the encoder's matmuls, `float32` or `bfloat16`; residual sums,
    layer norms and heads are float32.
    """

    def __init__(self, model: BertNetwork, compute_type: str = "float32"):
        super().__init__(name="network")
        self.config = model.config
        self.per_token = model.per_token
        weights = weights_of(model)
        copy = _copy(model, weights, compute_type)
        # A function of its own, so that a SavedModel contains the graph of the encoder only once.
        encode = tf.function(
            self._hidden_states,
            input_signature=[tf.TensorSpec([None], tf.int32)] * 3,
            autograph=False,
        )
        # Set without tracking: TensorFlow Serving cannot load a Keras model in a SavedModel. The
        # `partial` hides the function, which would be traced again when it is saved.
        vars(self).update(
            _model=copy,
            _encoder=getattr(copy, "encoder", copy),
            hidden_states=functools.partial(encode),
        )
        self._weights = [v.value for v in copy.weights if "/attention/self/" not in v.path]
        self._projections = [
            _query_key_value(self.config, weights, f"encoder/layer_{index}", compute_type)
            for index in range(self.config.num_hidden_layers)
        ]

    def __call__(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes float32 logits from ragged int32 inputs [B, (S)] with [CLS] and [SEP].

        Returns {"logits" [B, C]} for a classifier, {"logits" [T, C]} for a token classifier, and
        {"start_logits" [T], "end_logits" [T]} for a span labeler. The T tokens are ordered as in
        `input_ids.values`.
        """
        counts = input_ids.row_lengths() if self.per_token else None
        [head] = self._model.heads
        shape = [getattr(self._model, head).units]
        logits = self.reduced(input_ids, segment_ids, self._logits, shape, counts)
        names = self._model.output_names
        if len(names) == 1:
            return {names[0]: logits}
        return {name: logits[:, column] for column, name in enumerate(names)}

    def reduced(
        self,
        input_ids: tf.RaggedTensor,
        segment_ids: tf.RaggedTensor,
        reduce: Reduce,
        shape: Sequence[int],
        counts: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Runs the encoder, and returns the outputs of `reduce`, float32 [n, *shape], in row order.

        Args:
            input_ids: ragged int32 [B, (S)], with [CLS] and [SEP].
            segment_ids: ragged int32 [B, (S)].
            reduce: computes the outputs of the rows of one step.
            shape: the shape of one output.
            counts: integers [B], the number of outputs of each row, n in total; None for one each.
        """
        splits = tf.cast(input_ids.row_splits, tf.int32)
        rows = tf.size(splits) - 1
        # 0 on a CPU, else 1: the device that runs the graph, not the one that exported it.
        device = tf.minimum(tf.raw_ops.DeviceIndex(device_names=["CPU"]), 1)
        rows_at_once = ROWS_AT_ONCE + device * (ROWS_AT_ONCE_ON_GPU - ROWS_AT_ONCE)
        return tf.cond(
            tf.logical_and(rows > 0, rows <= rows_at_once),
            lambda: reduce(
                self.hidden_states(input_ids.values, segment_ids.values, splits),
                input_ids.values,
                splits,
            ),
            lambda: self._step_by_step(input_ids, segment_ids, reduce, shape, counts, rows_at_once),
        )

    def _hidden_states(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, row_splits: tf.Tensor
    ) -> tf.Tensor:
        """Computes hidden states, float32 [T, H], from input and segment ids, int32 [T] each.

        `row_splits`, int32 [B + 1], has the start of each row, followed by T.
        """
        attention = _Attention(self.config, row_splits)
        positions = attention.positions[tf.newaxis]
        with compile_chains_with(lambda function: _FUSED.get(function, function)):
            rows = input_ids[tf.newaxis], segment_ids[tf.newaxis]
            hidden = self._encoder.embeddings(*rows, None, positions)[0]
            for block, projection in zip(self._encoder.blocks, self._projections, strict=True):
                context = attention(hidden, *projection)
                attended = block.attention.residual_output(context, hidden)
                hidden = block.residual_output(block.intermediate(attended), attended)
        return hidden

    def pooled(self, first: tf.Tensor) -> tf.Tensor:
        """Computes the pooled output from the hidden states of [CLS]: [b, H] -> [b, H]."""
        return self._encoder.pooler(first[:, tf.newaxis])

    def masked_lm(self, hidden: tf.Tensor) -> tf.Tensor:
        """Scores the tokens of the vocabulary: hidden states [P, H] -> logits [P, V]."""
        table = self._encoder.embeddings.word_embeddings
        return self._model.masked_lm(hidden[tf.newaxis], None, table)[0]

    def _logits(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        [head] = self._model.heads
        if not self.per_token:
            hidden = self.pooled(tf.gather(hidden, splits[:-1]))
        return getattr(self._model, head)(hidden)

    def _step_by_step(
        self,
        input_ids: tf.RaggedTensor,
        segment_ids: tf.RaggedTensor,
        reduce: Reduce,
        shape: Sequence[int],
        counts: tf.Tensor | None,
        rows_at_once: tf.Tensor,
    ) -> tf.Tensor:
        """Computes any number of rows, the shortest first, `rows_at_once` at a time."""
        order = tf.argsort(input_ids.row_lengths(), stable=True)
        rows = tf.size(order)
        input_ids, segment_ids = tf.gather(input_ids, order), tf.gather(segment_ids, order)
        splits = tf.cast(input_ids.row_splits, tf.int32)
        steps = (rows + rows_at_once - 1) // rows_at_once
        shape = [None, *shape]
        parts = tf.TensorArray(tf.float32, steps, infer_shape=False, element_shape=shape)

        def step(index: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            first = index * rows_at_once
            step_splits = splits[first : tf.minimum(first + rows_at_once, rows) + 1]
            ids, segments = (
                x.values[step_splits[0] : step_splits[-1]] for x in (input_ids, segment_ids)
            )
            step_splits -= step_splits[0]
            hidden = self.hidden_states(ids, segments, step_splits)
            return index + 1, parts.write(index, reduce(hidden, ids, step_splits))

        _, parts = tf.while_loop(
            lambda index, _: index < steps, step, (tf.constant(0), parts), parallel_iterations=1
        )
        values = tf.ensure_shape(parts.concat(), shape)
        original_order = tf.argsort(order)
        if counts is None:
            return tf.gather(values, original_order)
        ragged = tf.RaggedTensor.from_row_lengths(values, tf.gather(counts, order), validate=False)
        return tf.gather(ragged, original_order).values


def _copy(model: BertNetwork, weights: Mapping[str, np.ndarray], compute_type: str) -> BertNetwork:
    """Creates a model with these weights, whose blocks have kernels of the dtype `compute_type`.

    Its residual sums and layer norms are float32.
    """
    dtype = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    dtype[r"encoder/layer_(?!.*LayerNorm).*"] = keras.dtype_policies.DTypePolicy(compute_type)
    copy = type(model).from_config({**model.get_config(), "dtype": dtype})
    for block in getattr(copy, "encoder", copy).blocks:
        for layer in (block.attention.residual_output, block.residual_output):
            layer.autocast = False  # The hidden states that they add stay float32.
    for variable in copy.weights:
        variable.assign(weights[variable.path])
    return copy


def _query_key_value(
    config: BertConfig, weights: Mapping[str, np.ndarray], block: str, compute_type: str
) -> list[tf.Variable]:
    """Returns the kernel [H, 3H] and the bias [3H] of a block's query, key and value."""
    # Scaling the query weights scales the attention scores.
    scales = (1.0 / math.sqrt(config.hidden_size // config.num_attention_heads), 1.0, 1.0)
    variables = []
    for part in ("kernel", "bias"):
        values = [
            scale * weights[f"{block}/attention/self/{projection}/{part}"]
            for scale, projection in zip(scales, ("query", "key", "value"), strict=True)
        ]
        value = tf.cast(np.concatenate(values, axis=-1), compute_type)
        variables.append(tf.Variable(value, trainable=False))
    return variables


class _Attention:
    """Computes the self-attention of concatenated rows, which `row_splits` [B + 1] int32 divides.

    It is shared by all layers: in a batch of one row, launching the ops that prepare it takes
    longer than executing them.
    """

    def __init__(self, config: BertConfig, row_splits: tf.Tensor):
        lengths = row_splits[1:] - row_splits[:-1]
        longest = tf.reduce_max(lengths)
        column = tf.range(longest)[tf.newaxis]
        real = column < lengths[:, tf.newaxis]  # [B, S]
        # [B * S]: the token index at each position. Padding points to token 0 and is masked.
        self._to_rows = tf.reshape(tf.where(real, row_splits[:-1, tf.newaxis] + column, 0), [-1])
        # [T]: the index of each token in [B * S].
        self._to_tokens = tf.cast(tf.where(tf.reshape(real, [-1]))[:, 0], tf.int32)
        self._mask = (1.0 - tf.cast(real, tf.float32))[:, tf.newaxis, tf.newaxis] * _MASKED_SCORE
        width = config.hidden_size // config.num_attention_heads
        self._shape = tf.stack([tf.size(lengths), longest, 3, config.num_attention_heads, width])
        # [T]: the position of each token in its row.
        self.positions = self._to_tokens % longest

    def __call__(self, hidden: tf.Tensor, kernel: tf.Variable, bias: tf.Variable) -> tf.Tensor:
        """Computes the context of each token: hidden states [T, H] -> [T, H].

        `kernel` and `bias` are those of `_query_key_value`, in the compute dtype.
        """
        projected = tf.nn.bias_add(tf.matmul(tf.cast(hidden, kernel.dtype), kernel), bias)
        projected = tf.reshape(tf.gather(projected, self._to_rows), self._shape)
        query, key, value = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]), 3)  # [B, N, S, D]
        scores = tf.matmul(query, key, transpose_b=True)
        probabilities = tf.nn.softmax(scores + tf.cast(self._mask, scores.dtype))
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
        return tf.gather(tf.reshape(context, [-1, hidden.shape[-1]]), self._to_tokens)


# --- chains whose bias TensorFlow fuses with the matmul ---


def _biased_activation(product: tf.Tensor, bias: Any, *, activation: Callable) -> tf.Tensor:
    return activation(tf.nn.bias_add(product, bias))


def _residual_norm(
    product: tf.Tensor, x: tf.Tensor, weights: BiasAndNorm, drop_key: None, **settings: float
) -> tf.Tensor:
    product = tf.nn.bias_add(product, weights.bias)
    return residual_norm.__wrapped__(product, x, weights._replace(bias=None), drop_key, **settings)


_FUSED = {
    biased_activation.__wrapped__: _biased_activation,
    residual_norm.__wrapped__: _residual_norm,
}
