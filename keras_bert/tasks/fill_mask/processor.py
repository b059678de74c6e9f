"""Converts texts to token ids, and logits to tokens, with TensorFlow operations.

    text [B] -> tokens -> [CLS] a [SEP]                                  preprocess
    logits of masks [P, V] -> best tokens of each mask [P, K]            best_tokens
    -> best tokens grouped by text [B, M, K]                             decode

B texts, P masks in all texts, M masks in the text with the most masks, K tokens per mask, V tokens
in the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer


@dataclass(frozen=True)
class MaskFillerSettings:
    """Settings of a `MaskFiller`.

    Attributes:
        max_seq_length: maximum number of tokens in a text, including [CLS] and [SEP]. A longer text
            is truncated, and masks in the truncated part are ignored.
        top_k: number of tokens to return for each mask.
    """

    max_seq_length: int = 128
    top_k: int = 5

    def __post_init__(self):
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise InputError(f"top_k={self.top_k!r}: expected a whole number of at least 1")


class MaskFillingProcessor(TextProcessor):
    """Converts texts to inputs of the network, and its logits at [MASK] to the best tokens."""

    def __init__(self, tokenizer: BertTokenizer, settings: MaskFillerSettings):
        super().__init__(tokenizer, settings)
        self._vocab = tokenizer.vocab

    def is_mask(self, input_ids: tf.Tensor) -> tf.Tensor:
        """Returns whether each token is [MASK], bool [T], for token ids int32 [T]."""
        return input_ids == self.tokenizer.mask_token_id

    def mask_counts(self, input_ids: tf.RaggedTensor) -> tf.Tensor:
        """Counts the masks of each text, int32 [B]."""
        is_mask = tf.cast(self.is_mask(input_ids.values), tf.int32)
        rows = tf.size(input_ids.row_splits) - 1
        return tf.math.unsorted_segment_sum(is_mask, row_ids(input_ids.row_splits), rows)

    def best_tokens(self, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the probabilities and ids of the best tokens, [P, K] each, for logits [P, V]."""
        return tf.math.top_k(tf.nn.softmax(logits), self.settings.top_k)

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: Segments) -> dict[str, tf.Tensor]:
        """Groups the best tokens of all masks, `scores` and `token_ids` [P, K], by text.

        Returns:
            `tokens` (strings), `token_ids` (int32) and `scores` (float32), [B, M, K] each, padded
            with "", -1 and 0 after the last mask of a text; and `truncated`, bool [B].
        """
        counts = self.mask_counts(inputs.input_ids)

        def by_text(values: tf.Tensor, padding: str | int | float) -> tf.Tensor:
            rows = tf.RaggedTensor.from_row_lengths(values, counts, validate=False)
            return rows.to_tensor(padding, shape=[None, None, self.settings.top_k])

        return {
            "tokens": by_text(tf.gather(self._vocab, outputs["token_ids"]), ""),
            "token_ids": by_text(outputs["token_ids"], -1),
            "scores": by_text(outputs["scores"], 0.0),
            "truncated": inputs.truncated,
        }
