"""Writes a model as a LiteRT (TensorFlow Lite) file.

    inputs   input_ids, input_mask, segment_ids, int32 [B, S]; any B, any S up to
             max_position_embeddings; for the pre-trainer also masked_lm_positions, int32 [B, P]
    outputs  float32, depending on the model: logits [B, C] or [B, S, C]; start_logits and
             end_logits [B, S]; sequence_output [B, S, H] and pooled_output [B, H];
             masked_lm_logits [B, P, V] and next_sentence_logits [B, 2]

The only signature is `serving_default`, and all operators are built-in. Hidden states are computed
at padding too, and masked in attention, because LiteRT must know the sizes of gathers in advance.

B batch, S length, P predictions, H hidden size, C labels, V vocabulary size.
"""

from collections.abc import Collection
from pathlib import Path

import keras
import tensorflow as tf

from keras_bert.checkpoints.weights import weights_of
from keras_bert.common.errors import InputError
from keras_bert.common.files import write_bytes
from keras_bert.models import BertPretrainer
from keras_bert.serving.encoder import MASKED_SCORE, ServedDense
from keras_bert.serving.network import Network
from keras_bert.serving.saved_model import describe

_MAX_BYTES = 2**31 - 2**24  # The limit of a FlatBuffer, with room left for the operators.


def write_litert(
    model: keras.Model, path: Path, *, int8: bool = False, omitted_outputs: Collection[str] = ()
) -> dict[str, dict[str, dict[str, list]]]:
    """Writes a model as a LiteRT file, completely or not at all.

    With `int8`, weights are stored as int8 with one scale per kernel column, and matmuls are
    computed on integers (dynamic-range quantization). `omitted_outputs` are the names of outputs
    that the file does not contain: `pooled_output`, `next_sentence_logits`.

    Returns:
        The inputs and outputs of `serving_default`, in the format of `saved_model.describe`.

    Raises:
        InputError: the weights exceed the 2 GiB limit of a LiteRT file, or the path is not
            writable.
    """
    size = sum(value.nbytes for value in weights_of(model).values())
    if size > _MAX_BYTES:
        raise InputError(
            f"{path}: the weights take {size / 2**30:.1f} GiB; expected at most 2 GiB, the limit "
            "of a LiteRT file"
        )
    inference = _Inference(model)
    names = ["input_ids", "input_mask", "segment_ids"]
    if inference.next_sentence is not None:
        names.append("masked_lm_positions")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}

    @tf.function(input_signature=[specs], autograph=False)
    def call(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            key: value for key, value in inference(inputs).items() if key not in omitted_outputs
        }

    function = call.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], inference)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    write_bytes(path, converter.convert())
    return describe({"serving_default": function})


class _Inference(tf.Module):
    def __init__(self, model: keras.Model):
        super().__init__(name="inference")
        self.network = Network(model)
        self.next_sentence = None
        if isinstance(model, BertPretrainer):
            self.next_sentence = ServedDense.of(weights_of(model), "next_sentence")

    def __call__(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Computes {output name: tensor} from {input name: tensor}; see the top of the file."""
        network = self.network
        batch, length = tf.unstack(tf.shape(inputs["input_ids"]))
        hidden = self._hidden_states(inputs)  # [B · S, H]
        if network.per_token:
            logits = network.head(hidden)
            logits = tf.reshape(logits, [batch, length, logits.shape[-1]])
            if not network.is_span_labeler:
                return {"logits": logits}
            start, end = tf.unstack(logits, axis=-1)
            return {"start_logits": start, "end_logits": end}
        hidden = tf.reshape(hidden, [batch, length, hidden.shape[-1]])
        pooled = network.pooled(hidden[:, 0])
        if network.head is not None:
            return {"logits": network.head(pooled)}
        if self.next_sentence is None:
            return {"sequence_output": hidden, "pooled_output": pooled}
        masked = tf.gather(hidden, inputs["masked_lm_positions"], batch_dims=1)  # [B, P, H]
        logits = network.masked_lm(tf.reshape(masked, [-1, hidden.shape[-1]]))
        return {
            "masked_lm_logits": tf.reshape(logits, [batch, -1, logits.shape[-1]]),
            "next_sentence_logits": self.next_sentence(pooled),
        }

    def _hidden_states(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        encoder = self.network.encoder
        batch, length = tf.unstack(tf.shape(inputs["input_ids"]))
        word, position, token_type = encoder.embeddings
        hidden = tf.gather(word, inputs["input_ids"]) + position[:length]
        hidden = encoder.embeddings_norm(hidden + tf.gather(token_type, inputs["segment_ids"]))
        # [B, 1, 1, S]; LiteRT does not support indexing with tf.newaxis.
        padding = 1.0 - tf.cast(inputs["input_mask"], tf.float32)
        mask = tf.expand_dims(tf.expand_dims(padding * MASKED_SCORE, 1), 1)
        width, heads = hidden.shape[-1], encoder.config.num_attention_heads
        hidden = tf.reshape(hidden, [-1, width])
        shape = tf.stack([batch, length, 3, heads, width // heads])
        for block in encoder.blocks:
            hidden = block(hidden, mask, shape)
        return hidden
