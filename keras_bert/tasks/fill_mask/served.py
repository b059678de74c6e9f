"""Defines the serving signatures of fill-mask, for texts and for token ids."""

import tensorflow as tf

from keras_bert.serving.engines.opening import NetworkSpec
from keras_bert.tasks.fill_mask.processor import MaskFillingProcessor
from keras_bert.tasks.text_tasks import ServedTexts

# The maximum number of masks per step. It limits the memory for logits, V floats per mask.
_MASKS_AT_ONCE = 256


class ServedFillMask(ServedTexts):
    """The SavedModel signatures of a pre-trained model, which map texts or token ids to tokens."""

    processor: MaskFillingProcessor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        processor = self.processor
        return NetworkSpec(
            {"scores": "mask", "token_ids": "mask"},
            top_k=processor.settings.top_k,
            mask_token_id=processor.tokenizer.mask_token_id,
        )

    def outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Computes the probabilities and ids of the best tokens of each mask, [P, K] each."""
        counts = self.processor.mask_counts(input_ids)
        shape = [self.network.config.hidden_size]
        hidden = self.network.reduced(input_ids, segment_ids, self._of_masks, shape, counts)
        scores, ids = self._best(hidden)
        return {"scores": scores, "token_ids": ids}

    def _of_masks(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Selects the hidden states of the p masks in some rows: [t, H] -> [p, H]."""
        return tf.gather(hidden, tf.where(self.processor.is_mask(input_ids))[:, 0])

    def _best(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the probabilities and ids of the best tokens, [P, K] each, for masks [P, H]."""
        masks = tf.shape(hidden)[0]
        steps = (masks + _MASKS_AT_ONCE - 1) // _MASKS_AT_ONCE
        shape = [None, self.processor.settings.top_k]
        parts = tuple(
            tf.TensorArray(dtype, steps, infer_shape=False, element_shape=shape)
            for dtype in (tf.float32, tf.int32)
        )

        def step(index: tf.Tensor, scores: tf.TensorArray, ids: tf.TensorArray) -> tuple:
            some = hidden[index * _MASKS_AT_ONCE : (index + 1) * _MASKS_AT_ONCE]
            values, indices = self.processor.best_tokens(self.network.masked_lm(some))
            return index + 1, scores.write(index, values), ids.write(index, indices)

        _, scores, ids = tf.while_loop(
            lambda index, *_: index < steps, step, (tf.constant(0), *parts), parallel_iterations=1
        )
        return tf.ensure_shape(scores.concat(), shape), tf.ensure_shape(ids.concat(), shape)
