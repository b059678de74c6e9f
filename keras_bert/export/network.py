"""Computes a model in serving graphs, on rows without padding, with fewer ops than its layers.

Rows are sorted by length and computed in steps of a few rows, and only the requested outputs of
each step are kept. Attention, the only part with padded rows, therefore has little padding, and a
batch of any size needs only the memory of one step in addition to its inputs and outputs. Elsewhere
the tokens of a step are concatenated, [T, H].

Query, key and value are computed by one matmul, in which the query's kernel and bias are divided
by √D, so that the attention scores need no scaling. TensorFlow fuses each matmul with its bias and
activation. Weights are plain variables, because TensorFlow Serving cannot load a Keras model in a
SavedModel.

B rows, S length of the longest row, T tokens of all rows, H hidden size, N heads, D head size,
C labels, V vocabulary size, P masked tokens; b rows and t tokens of a step.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.models.encoder import BertNetwork

# On a CPU, more rows per step are hardly faster and need more memory: with 16 heads, the float32
# attention scores of 8 rows of 512 tokens need 134 MB. A GPU needs more rows to be busy.
ROWS_AT_ONCE = 8
ROWS_AT_ONCE_ON_GPU = 64

# Computes the outputs of the rows of one step, in row order, with any number of outputs per row:
# (hidden states [t, H], input ids [t], row splits [b + 1]) -> float32 [number of outputs, ...].
Reduce = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

# Added to the attention scores of padding, as in Google's released code.
_MASKED_SCORE = -10000.0

_ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
}


class Network(tf.Module):
    """Computes a model of keras_bert.models, whose weights it copies to plain TensorFlow variables.

    Inputs are ragged int32 [B, (S)]. No row may be empty or longer than max_position_embeddings.
    `compute_type` is the dtype of the encoder's matmuls, `float32` or `bfloat16`.
    """

    def __init__(self, model: BertNetwork, compute_type: str = "float32"):
        super().__init__(name="network")
        self.config = model.config
        weights = weights_of(model)
        inner = {p.partition("/")[2]: value for p, value in weights.items() if p.startswith("enc")}
        self.encoder = _Encoder(model.config, inner, compute_type)
        self.per_token = model.per_token
        self.pooler = None if self.per_token else _Dense.of(inner, "pooler/dense")
        self.head = None
        if "masked_lm" in model.heads:
            self.masked_lm = _MaskedLM(model, weights, self.encoder.embeddings[0])
        elif model.heads:
            [name] = model.heads
            self.head = _Dense.of(weights, name)
            self.output_names = model.output_names

    def __call__(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes float32 logits from ragged int32 inputs [B, (S)] with [CLS] and [SEP].

        Returns {"logits" [B, C]} for a classifier, {"logits" [T, C]} for a token classifier, and
        {"start_logits" [T], "end_logits" [T]} for a span labeler. The T tokens are ordered as in
        `input_ids.values`.
        """
        counts = input_ids.row_lengths() if self.per_token else None
        logits = self.reduced(
            input_ids, segment_ids, self._logits, self.head.bias.shape.as_list(), counts
        )
        if len(self.output_names) == 1:
            return {self.output_names[0]: logits}
        return {name: logits[:, column] for column, name in enumerate(self.output_names)}

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
                self.encoder(input_ids.values, segment_ids.values, splits), input_ids.values, splits
            ),
            lambda: self._step_by_step(input_ids, segment_ids, reduce, shape, counts, rows_at_once),
        )

    def pooled(self, first: tf.Tensor) -> tf.Tensor:
        """Computes the pooled output from the hidden states of [CLS]: [b, H] -> [b, H]."""
        return tf.tanh(self.pooler(first))

    def _logits(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        return self.head(hidden if self.per_token else self.pooled(tf.gather(hidden, splits[:-1])))

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
            hidden = self.encoder(ids, segments, step_splits)
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


class _MaskedLM(tf.Module):
    """The masked-LM head: hidden states [P, H] -> logits [P, V]."""

    def __init__(self, model: BertPretrainer, weights: dict, table: tf.Variable):
        super().__init__(name="masked_lm")
        self.dense = _Dense.of(weights, "masked_lm/dense", activation=model.config.hidden_act)
        self.norm = _LayerNorm(model.config, weights, "masked_lm/LayerNorm")
        self.bias = tf.Variable(weights["masked_lm/output_bias"], trainable=False, name="bias")
        self.table = table

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        x = self.norm(self.dense(hidden))
        return tf.nn.bias_add(tf.matmul(x, self.table, transpose_b=True), self.bias)


class _Encoder(tf.Module):
    """Computes BERT's encoder on rows without padding.

    `weights` maps variable paths below the encoder, such as `layer_0/output/dense/bias`, to float32
    arrays. `compute_type` is the dtype of the matmuls, `float32` or `bfloat16`; residual sums and
    layer norms are float32.
    """

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray], compute_type: str):
        super().__init__(name="encoder")
        self.config = config
        self.compute_type = tf.as_dtype(compute_type)
        self.embeddings = [
            tf.Variable(weights[f"embeddings/{kind}_embeddings"], trainable=False, name=kind)
            for kind in ("word", "position", "token_type")
        ]
        self.embeddings_norm = _LayerNorm(config, weights, "embeddings/LayerNorm")
        self.blocks = [
            _Block(config, weights, f"layer_{index}", self.compute_type)
            for index in range(config.num_hidden_layers)
        ]

    def __call__(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, row_splits: tf.Tensor
    ) -> tf.Tensor:
        """Computes hidden states, float32 [T, H], from input and segment ids, int32 [T] each.

        `row_splits`, int32 [B + 1], has the start of each row, followed by T.
        """
        lengths = row_splits[1:] - row_splits[:-1]
        longest = tf.reduce_max(lengths)
        column = tf.range(longest)[tf.newaxis]
        real = column < lengths[:, tf.newaxis]  # [B, S]
        # [B * S]: the token index at each position. Padding points to token 0 and is masked.
        to_rows = tf.reshape(tf.where(real, row_splits[:-1, tf.newaxis] + column, 0), [-1])
        # [T]: the position of each token in [B * S].
        to_tokens = tf.cast(tf.where(tf.reshape(real, [-1]))[:, 0], tf.int32)
        mask = (1.0 - tf.cast(real, tf.float32))[:, tf.newaxis, tf.newaxis] * _MASKED_SCORE
        mask = tf.cast(mask, self.compute_type)

        word, position, token_type = self.embeddings
        hidden = self.embeddings_norm(
            tf.gather(word, input_ids)
            + tf.gather(position, to_tokens % longest)
            + tf.gather(token_type, segment_ids)
        )
        heads = self.config.num_attention_heads
        width = self.config.hidden_size // heads
        # Computed once for all layers: in a batch of one row, launching ops takes longer than
        # executing them.
        shape = tf.stack([tf.size(lengths), longest, 3, heads, width])
        for block in self.blocks:
            hidden = block(hidden, mask, shape, to_rows, to_tokens)
        return hidden


class _Block(tf.Module):
    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, np.ndarray],
        name: str,
        compute_type: tf.DType,
    ):
        super().__init__(name=name)
        width = config.hidden_size // config.num_attention_heads
        attention = f"{name}/attention"
        # Scaling the query weights scales the attention scores.
        scales = (1.0 / math.sqrt(width), 1.0, 1.0)
        kernel, bias = (
            np.concatenate(
                [
                    scale * weights[f"{attention}/self/{kind}/{part}"]
                    for scale, kind in zip(scales, ("query", "key", "value"), strict=True)
                ],
                axis=-1,
            )
            for part in ("kernel", "bias")
        )
        self.query_key_value = _Dense(kernel, bias, compute_type)
        self.attended = _Dense.of(weights, f"{attention}/output/dense", compute_type)
        self.attention_norm = _LayerNorm(config, weights, f"{attention}/output/LayerNorm")
        self.intermediate = _Dense.of(
            weights, f"{name}/intermediate/dense", compute_type, config.hidden_act
        )
        self.output = _Dense.of(weights, f"{name}/output/dense", compute_type)
        self.output_norm = _LayerNorm(config, weights, f"{name}/output/LayerNorm")

    def __call__(
        self,
        hidden: tf.Tensor,
        mask: tf.Tensor,
        shape: tf.Tensor,
        to_rows: tf.Tensor,
        to_tokens: tf.Tensor,
    ) -> tf.Tensor:
        """Computes the hidden states after one transformer layer, [T, H].

        Args:
            hidden: [T, H].
            mask: added to the attention scores, [B, 1, 1, S]: -10000 at padding, 0 elsewhere.
            shape: int32 [5] with the values B, S, 3, N, D.
            to_rows: int32 [B * S], the token index at each position.
            to_tokens: int32 [T], the position of each token.
        """
        projected = tf.gather(self.query_key_value(hidden), to_rows)
        projected = tf.reshape(projected, shape)
        query, key, value = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]), 3)  # [B, N, S, D]
        probabilities = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + mask)
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
        context = tf.gather(tf.reshape(context, [-1, hidden.shape[-1]]), to_tokens)
        hidden = self.attention_norm(tf.cast(self.attended(context), tf.float32) + hidden)
        widened = self.output(self.intermediate(hidden))
        return self.output_norm(tf.cast(widened, tf.float32) + hidden)


class _Dense(tf.Module):
    """A dense layer, act(x · kernel + bias), in the compute dtype."""

    def __init__(
        self, kernel: np.ndarray, bias: np.ndarray, compute_type: tf.DType, activation: str = ""
    ):
        super().__init__()
        self.kernel = tf.Variable(tf.cast(kernel, compute_type), trainable=False, name="kernel")
        self.bias = tf.Variable(tf.cast(bias, compute_type), trainable=False, name="bias")
        self.activation = _ACTIVATIONS[activation] if activation else None

    @classmethod
    def of(
        cls,
        weights: Mapping[str, np.ndarray],
        path: str,
        compute_type: tf.DType = tf.float32,
        activation: str = "",
    ) -> "_Dense":
        """Creates the layer from the weights `path`/kernel and `path`/bias."""
        return cls(weights[f"{path}/kernel"], weights[f"{path}/bias"], compute_type, activation)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Applies the layer: [T, in] -> [T, out]."""
        x = tf.nn.bias_add(tf.matmul(tf.cast(x, self.kernel.dtype), self.kernel), self.bias)
        return self.activation(x) if self.activation else x


class _LayerNorm(tf.Module):
    """Layer normalization over the last axis, in float32."""

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray], path: str):
        super().__init__()
        self.gamma = tf.Variable(weights[f"{path}/gamma"], trainable=False, name="gamma")
        self.beta = tf.Variable(weights[f"{path}/beta"], trainable=False, name="beta")
        self.epsilon = config.layer_norm_eps

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes [T, H]."""
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta
