"""Computes a model in serving graphs, on rows without padding.

Rows are sorted by length and computed in steps of a few rows, and only the requested outputs of
each step are kept. Attention, the only part with padded rows, therefore has little padding, and a
batch of any size needs only the memory of one step in addition to its inputs and outputs.

B rows, S length of a row, T tokens of all rows, H hidden size, C labels, V vocabulary size,
P masked tokens; b rows and t tokens of a step.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.serving.encoder import LayerNorm, ServedDense, ServedEncoder

# On a CPU, more rows per step are hardly faster and need more memory: with 16 heads, the float32
# attention scores of 8 rows of 512 tokens need 134 MB. A GPU needs more rows to be busy.
ROWS_AT_ONCE = 8
ROWS_AT_ONCE_ON_GPU = 64

# Computes the outputs of the rows of one step, in row order, with any number of outputs per row:
# (hidden states [t, H], input ids [t], row splits [b + 1]) -> float32 [number of outputs, ...].
Reduce = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


class Network(tf.Module):
    """Computes a model of keras_bert.models, whose weights it copies to plain TensorFlow variables.

    Inputs are ragged int32 [B, (S)]. No row may be empty or longer than max_position_embeddings.
    `compute_type` is the dtype of the encoder's matmuls, `float32` or `bfloat16`.
    """

    def __init__(self, model: keras.Model, compute_type: str = "float32"):
        super().__init__(name="network")
        self.config = model.config
        weights = weights_of(model)
        inner = {p.partition("/")[2]: value for p, value in weights.items() if p.startswith("enc")}
        self.encoder = ServedEncoder(model.config, inner, compute_type)
        self.per_token = getattr(model, "per_token", False)
        self.pooler = None if self.per_token else ServedDense.of(inner, "pooler/dense")
        self.head = None
        if isinstance(model, BertClassifier | BertTokenClassifier):
            self.head = ServedDense.of(weights, "classifier")
        elif isinstance(model, BertSpanLabeler):
            self.head = ServedDense.of(weights, "span")
        elif isinstance(model, BertPretrainer):
            self.masked_lm = _MaskedLM(model, weights, self.encoder.embeddings[0])
        elif not isinstance(model, BertEncoder):
            raise TypeError(f"{type(model).__name__}: expected one of keras_bert.models")
        self.is_span_labeler = isinstance(model, BertSpanLabeler)

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
        if self.is_span_labeler:
            return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}
        return {"logits": logits}

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
        self.dense = ServedDense.of(weights, "masked_lm/dense", activation=model.config.hidden_act)
        self.norm = LayerNorm(model.config, weights, "masked_lm/LayerNorm")
        self.bias = tf.Variable(weights["masked_lm/output_bias"], trainable=False, name="bias")
        self.table = table

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        x = self.norm(self.dense(hidden))
        return tf.nn.bias_add(tf.matmul(x, self.table, transpose_b=True), self.bias)
