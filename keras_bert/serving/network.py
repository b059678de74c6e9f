"""A fine-tuned model as served graphs call it: ragged pieces in, its outputs out.

In: input_ids and segment_ids, ragged int32 [B, (S)], any number of rows, none over
max_position_embeddings. Out: the model's outputs, [B, ...] for those of an example, and flat
[T, ...] in the order of `input_ids.values` for those of the pieces.

Rows are sorted by length and computed some at a time, so that little is padded, one step's values
stay in the processor's cache, and memory is bounded whatever the batch.

B rows, S pieces of one, T pieces of all, H hidden, V vocabulary, P masked pieces.
"""

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
from keras_bert.serving.encoder import LayerNorm, Product, ServedEncoder

ROWS_AT_ONCE = 16


class Network(tf.Module):
    """The arithmetic of a model for serving, on plain TensorFlow variables.

    Args:
        model: one of keras_bert.models, or the encoder.
        compute_type: of the encoder's products, `float32` or `bfloat16`.
    """

    def __init__(self, model: keras.Model, compute_type: str = "float32"):
        super().__init__(name="network")
        self.config = model.config
        weights = weights_of(model)
        inner = {p.partition("/")[2]: value for p, value in weights.items() if p.startswith("enc")}
        self.encoder = ServedEncoder(model.config, inner, compute_type)
        self.per_piece = getattr(model, "per_piece", False)
        self.pooler = None if self.per_piece else Product.of(inner, "pooler/dense")
        self.head = None
        if isinstance(model, BertClassifier | BertTokenClassifier):
            self.head = Product.of(weights, "classifier")
        elif isinstance(model, BertSpanLabeler):
            self.head = Product.of(weights, "span")
        elif isinstance(model, BertPretrainer):
            self.masked_lm = _MaskedLM(model, weights, self.encoder.embeddings[0])
        elif not isinstance(model, BertEncoder):
            raise TypeError(f"{type(model).__name__}: expected one of keras_bert.models")
        self.is_span_labeler = isinstance(model, BertSpanLabeler)

    def __call__(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Runs the model.

        Args:
            input_ids: ragged int32 [B, (S)], with [CLS] and [SEP].
            segment_ids: ragged int32 [B, (S)].

        Returns:
            Of a classifier {"logits" [B, C]}, of a tagger {"logits" [T, C]}, of a span labeler
            {"start_logits" [T], "end_logits" [T]}, of the others {"sequence_output" [T, H],
            "pooled_output" [B, H]}; float32.
        """
        splits = tf.cast(input_ids.row_splits, tf.int32)
        rows = tf.size(splits) - 1
        outputs = tf.cond(
            tf.logical_and(rows > 0, rows <= ROWS_AT_ONCE),
            lambda: self._some_rows(input_ids.values, segment_ids.values, splits),
            lambda: self._all_rows(input_ids, segment_ids),
        )
        if self.is_span_labeler:
            logits = outputs["logits"]
            return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}
        return outputs

    def _some_rows(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, splits: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Computes rows whose padded form fits into memory; ids [T], splits [B + 1]."""
        hidden = self.encoder(input_ids, segment_ids, splits)
        if self.per_piece:
            return {"logits": self.head(hidden)}
        pooled = tf.tanh(self.pooler(tf.gather(hidden, splits[:-1])))
        if self.head is not None:
            return {"logits": self.head(pooled)}
        return {"sequence_output": hidden, "pooled_output": pooled}

    def _all_rows(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes any number of rows, the shortest first, ROWS_AT_ONCE at a time."""
        lengths = tf.cast(input_ids.row_lengths(), tf.int32)
        rows = tf.size(lengths)
        order = tf.argsort(lengths, stable=True)
        input_ids, segment_ids = tf.gather(input_ids, order), tf.gather(segment_ids, order)
        splits = tf.cast(input_ids.row_splits, tf.int32)
        steps = (rows + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
        shapes = self._shapes()
        parts = tuple(
            tf.TensorArray(tf.float32, steps, infer_shape=False, element_shape=shape)
            for shape in shapes.values()
        )

        def step(index: tf.Tensor, parts: tuple) -> tuple:
            first = index * ROWS_AT_ONCE
            own = splits[first : tf.minimum(first + ROWS_AT_ONCE, rows) + 1]
            some = slice(own[0], own[-1])
            outputs = self._some_rows(
                input_ids.values[some], segment_ids.values[some], own - own[0]
            )
            written = (
                part.write(index, outputs[name]) for name, part in zip(shapes, parts, strict=True)
            )
            return index + 1, tuple(written)

        _, parts = tf.while_loop(
            lambda index, _: index < steps, step, (tf.constant(0), parts), parallel_iterations=1
        )
        back = tf.argsort(order)
        outputs = {}
        for (name, shape), part in zip(shapes.items(), parts, strict=True):
            values = tf.ensure_shape(part.concat(), shape)
            if self.per_piece or name == "sequence_output":
                ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
                outputs[name] = tf.gather(ragged, back).values
            else:
                outputs[name] = tf.gather(values, back)
        return outputs

    def _shapes(self) -> dict[str, tf.TensorShape]:
        """Returns the shapes of what `_some_rows` returns."""
        if self.head is not None:
            return {"logits": tf.TensorShape([None, self.head.bias.shape[0]])}
        shape = tf.TensorShape([None, self.config.hidden_size])
        return {"sequence_output": shape, "pooled_output": shape}


class _MaskedLM(tf.Module):
    """The masked-LM head: hidden states [P, H] -> logits [P, V]."""

    def __init__(self, model: BertPretrainer, weights: dict, table: tf.Variable):
        super().__init__(name="masked_lm")
        self.dense = Product.of(weights, "masked_lm/dense", activation=model.config.hidden_act)
        self.norm = LayerNorm(model.config, weights, "masked_lm/LayerNorm")
        self.bias = tf.Variable(weights["masked_lm/output_bias"], trainable=False, name="bias")
        self.table = table

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """Scores every piece of the vocabulary."""
        x = self.norm(self.dense(hidden))
        return tf.nn.bias_add(tf.matmul(x, self.table, transpose_b=True), self.bias)
