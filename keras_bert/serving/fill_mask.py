"""Served mask filling: texts with [MASK] in; the likeliest pieces of each mask and scores out.

    text [B] -> word pieces -> [CLS] a [SEP] -> hidden states of the masks [P, H] -> [B, M, K]

A text's masks come in their order; rows with fewer than the most are padded with "", -1 and 0. A
mask beyond max_seq_length is not seen.

B texts, P masks of all, M masks of the text that has most, K pieces a mask, H hidden, V vocabulary;
t pieces and p masks of a step of the network.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.text.padding import join
from keras_bert.text.tokenizer import BertTokenizer, row_ids

# Masks whose logits are held at once: V floats each.
_MASKS_AT_ONCE = 256


class ServedFillMask(tf.Module):
    """A pre-trained model as signatures of a SavedModel.

    Args:
        network: of a BertPretrainer.
        tokenizer: the model's, with `keep_special_tokens`.
        max_seq_length: pieces of a text at most, with [CLS] and [SEP].
        top_k: pieces a mask.
    """

    def __init__(self, network: Network, tokenizer: BertTokenizer, max_seq_length: int, top_k: int):
        super().__init__(name="fill_mask")
        self.network = network
        self.tokenizer = tokenizer
        self.vocab = tf.constant(tokenizer.vocab, tf.string)
        self.max_seq_length = max_seq_length
        self.top_k = top_k

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, and of token ids."""
        text = tf.TensorSpec([None], tf.string, name="text")
        return {
            "serving_default": tf.function(self.of_texts, input_signature=[text]),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Fills the masks of texts: strings [B]."""
        rows = join(
            self.tokenizer.tokenize(text),
            max_seq_length=self.max_seq_length,
            cls_token_id=self.tokenizer.cls_token_id,
            sep_token_id=self.tokenizer.sep_token_id,
        )
        return self._outputs(*rows)

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Fills the masks of token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self._outputs(rows.input_ids, rows.segment_ids)

    def _outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        splits = input_ids.row_splits
        is_mask = tf.cast(input_ids.values == self.tokenizer.mask_token_id, tf.int32)
        counts = tf.math.unsorted_segment_sum(is_mask, row_ids(splits), tf.size(splits) - 1)
        shape = [self.network.config.hidden_size]
        hidden = self.network.reduced(input_ids, segment_ids, self._of_masks, shape, counts)
        scores, ids = self._best(hidden)
        pieces = tf.gather(self.vocab, ids)

        def by_text(values: tf.Tensor, padding: str | float) -> tf.Tensor:
            rows = tf.RaggedTensor.from_row_lengths(values, counts, validate=False)
            return rows.to_tensor(padding, shape=[None, None, self.top_k])

        return {
            "pieces": by_text(pieces, ""),
            "piece_ids": by_text(ids, -1),
            "scores": by_text(scores, 0.0),
        }

    def _of_masks(self, hidden: tf.Tensor, input_ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Keeps the hidden states of the masks: [t, H] -> [p, H]."""
        return tf.gather(hidden, tf.where(input_ids == self.tokenizer.mask_token_id)[:, 0])

    def _best(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns probabilities and ids of the best pieces, [P, K] each, a few masks at a time."""
        masks = tf.shape(hidden)[0]
        steps = (masks + _MASKS_AT_ONCE - 1) // _MASKS_AT_ONCE
        shape = [None, self.top_k]
        parts = tuple(
            tf.TensorArray(dtype, steps, infer_shape=False, element_shape=shape)
            for dtype in (tf.float32, tf.int32)
        )

        def step(index: tf.Tensor, scores: tf.TensorArray, ids: tf.TensorArray) -> tuple:
            some = hidden[index * _MASKS_AT_ONCE : (index + 1) * _MASKS_AT_ONCE]
            best = tf.math.top_k(tf.nn.softmax(self.network.masked_lm(some)), self.top_k)
            return index + 1, scores.write(index, best.values), ids.write(index, best.indices)

        _, scores, ids = tf.while_loop(
            lambda index, *_: index < steps, step, (tf.constant(0), *parts), parallel_iterations=1
        )
        return tf.ensure_shape(scores.concat(), shape), tf.ensure_shape(ids.concat(), shape)
