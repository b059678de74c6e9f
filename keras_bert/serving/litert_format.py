"""A model -> a LiteRT (TensorFlow Lite) file: inference written in few TensorFlow ops, converted.

In: one of keras_bert.models, or the encoder. Out: a file for the LiteRT runtime, of its built-in
operators alone, with one signature, `serving_default`:

    inputs   input_ids, input_mask, segment_ids, int32 [B, S]; any B, any S up to
             max_position_embeddings; for the pre-trainer masked_lm_positions, int32 [B, P] too
    outputs  the model's own, by its own names, float32: logits [B, C] or [B, S, C]; start_logits
             and end_logits [B, S]; sequence_output [B, S, H] and pooled_output [B, H];
             masked_lm_logits [B, P, V] and next_sentence_logits [B, 2]

The layers of keras_bert are not used: they are written for training on every backend, and some of
what Keras makes of them has no counterpart among LiteRT's operators.

B batch, S length, P predictions, H hidden size, N heads, D = H / N, C labels, V vocabulary.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.encoder import BertEncoder
from keras_bert.errors import InputError
from keras_bert.files import write_bytes
from keras_bert.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)

_MASKED_SCORE = -10000.0  # layers/attention.py
_MOST_BYTES = 2**31 - 2**24  # Of a flat buffer, less room for the operators.


def write_litert(model: keras.Model, path: Path, *, int8: bool = False) -> None:
    """Writes a model as a LiteRT file, whole or not at all.

    Args:
        model: one of keras_bert.models, or the encoder.
        path: the file.
        int8: whether weights are stored as int8, a scale for each column of a kernel; products
            are of integers then (dynamic-range quantization).

    Raises:
        InputError: the weights take more than the 2 GiB of a LiteRT file, or the place cannot be
            written.
    """
    weights = weights_of(model)
    size = sum(value.nbytes for value in weights.values())
    if size > _MOST_BYTES:
        raise InputError(
            f"{path}: the weights take {size / 2**30:.1f} GiB; expected at most the 2 GiB that a "
            "LiteRT file holds"
        )
    names = ["input_ids", "input_mask", "segment_ids"]
    if isinstance(model, BertPretrainer):
        names.append("masked_lm_positions")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}

    @tf.function(input_signature=[specs], autograph=False)
    def inference(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        constants = {path: tf.constant(value) for path, value in weights.items()}
        return _Inference(model, constants)(inputs)

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [inference.get_concrete_function()], tf.Module()
    )
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    write_bytes(path, converter.convert())


class _Inference:
    """The arithmetic of a model without training, in float32.

    Args:
        model: one of keras_bert.models, or the encoder.
        weights: its variables' paths -> tensors.
    """

    def __init__(self, model: keras.Model, weights: Mapping[str, tf.Tensor]):
        self.model = model
        self.config = model.config
        self.weights = weights

    def __call__(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the model's outputs, from int32 [B, S] each, and [B, P] positions."""
        hidden = self._embeddings(inputs["input_ids"], inputs["segment_ids"])
        # [B, 1, 1, S]: 0, or -10000 at padding.
        padding = 1.0 - tf.cast(inputs["input_mask"], tf.float32)
        mask = tf.expand_dims(tf.expand_dims(padding * _MASKED_SCORE, 1), 1)
        for index in range(self.config.num_hidden_layers):
            hidden = self._block(hidden, mask, f"encoder/layer_{index}")
        return self._heads(hidden, inputs)

    def _heads(self, hidden: tf.Tensor, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Hidden states [B, S, H] -> what the model's heads make of them (models.py)."""
        if isinstance(self.model, BertPretrainer):
            return {
                "masked_lm_logits": self._masked_lm(hidden, inputs["masked_lm_positions"]),
                "next_sentence_logits": self._dense(self._pooled(hidden), "next_sentence"),
            }
        if isinstance(self.model, BertSpanLabeler):
            start, end = tf.unstack(self._dense(hidden, "span"), axis=-1)
            return {"start_logits": start, "end_logits": end}
        if isinstance(self.model, BertClassifier | BertTokenClassifier):
            seen = hidden if self.model.per_piece else self._pooled(hidden)
            return {"logits": self._dense(seen, "classifier")}
        if isinstance(self.model, BertEncoder):
            return {"sequence_output": hidden, "pooled_output": self._pooled(hidden)}
        kind = type(self.model).__name__
        raise TypeError(f"{kind} is neither of keras_bert.models nor the encoder")

    def _embeddings(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        """int32 [B, S] each -> LN(words + positions + segments) [B, S, H]."""
        words, positions, segments = (
            self.weights[f"encoder/embeddings/{name}_embeddings"]
            for name in ("word", "position", "token_type")
        )
        total = tf.gather(words, input_ids) + positions[: tf.shape(input_ids)[1]]
        return self._layer_norm(
            total + tf.gather(segments, segment_ids), "encoder/embeddings/LayerNorm"
        )

    def _block(self, x: tf.Tensor, mask: tf.Tensor, path: str) -> tf.Tensor:
        """[B, S, H] -> [B, S, H]: attention, then feed-forward, each LN(x + dense(...))."""
        context = self._self_attention(x, mask, f"{path}/attention/self")
        x = self._residual(context, x, f"{path}/attention/output")
        wide = self._activation(self._dense(x, f"{path}/intermediate/dense"))
        return self._residual(wide, x, f"{path}/output")

    def _self_attention(self, x: tf.Tensor, mask: tf.Tensor, path: str) -> tf.Tensor:
        """[B, S, H] -> [B, S, H]: softmax(QKᵀ/√D + mask)V for each head, side by side."""
        heads = self.config.num_attention_heads
        batch, length = tf.unstack(tf.shape(x)[:2])
        width = self.config.hidden_size // heads

        def projected(name: str) -> tf.Tensor:
            cut = tf.reshape(self._dense(x, f"{path}/{name}"), [batch, length, heads, width])
            return tf.transpose(cut, [0, 2, 1, 3])  # [B, N, S, D]

        query = projected("query") * (1.0 / math.sqrt(width))
        scores = tf.matmul(query, projected("key"), transpose_b=True) + mask  # [B, N, S, S]
        context = tf.matmul(tf.nn.softmax(scores), projected("value"))
        return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch, length, heads * width])

    def _residual(self, y: tf.Tensor, x: tf.Tensor, path: str) -> tf.Tensor:
        return self._layer_norm(self._dense(y, f"{path}/dense") + x, f"{path}/LayerNorm")

    def _pooled(self, hidden: tf.Tensor) -> tf.Tensor:
        """[B, S, H] -> tanh(W h + b) of the first piece, [B, H]."""
        return tf.tanh(self._dense(hidden[:, 0], "encoder/pooler/dense"))

    def _masked_lm(self, hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """[B, S, H], int32 [B, P] -> logits [B, P, V] (layers/heads.py)."""
        x = tf.gather(hidden, positions, batch_dims=1)
        x = self._activation(self._dense(x, "masked_lm/dense"))
        x = self._layer_norm(x, "masked_lm/LayerNorm")
        words = self.weights["encoder/embeddings/word_embeddings"]
        return tf.matmul(x, words, transpose_b=True) + self.weights["masked_lm/output_bias"]

    def _dense(self, x: tf.Tensor, path: str) -> tf.Tensor:
        """[..., inputs] -> [..., units]."""
        return tf.matmul(x, self.weights[f"{path}/kernel"]) + self.weights[f"{path}/bias"]

    def _activation(self, x: tf.Tensor) -> tf.Tensor:
        """[...] -> [...]: the activation that the config names, as layers/activations.py has it."""
        if self.config.hidden_act == "relu":
            return tf.nn.relu(x)
        return tf.nn.gelu(x, approximate=self.config.hidden_act != "gelu")

    def _layer_norm(self, x: tf.Tensor, path: str) -> tf.Tensor:
        """[..., H] -> [..., H]: mean 0 and variance 1, then gamma and beta."""
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        scaled = centred * tf.math.rsqrt(variance + self.config.layer_norm_eps)
        return scaled * self.weights[f"{path}/gamma"] + self.weights[f"{path}/beta"]
