"""Provides preprocessing and serving signatures for the tasks that operate on whole texts."""

import tensorflow as tf

from keras_bert.export.inputs import TOKEN_ID_SPECS, same_shape
from keras_bert.export.saved_model import ServedTask, Steps
from keras_bert.tasks.prepared import Processor
from keras_bert.text.padding import Segments, combine_segments


class TextProcessor(Processor):
    """Converts texts or pairs of texts into model inputs; subclasses implement `decode`."""

    def preprocess(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Segments:
        """Tokenizes texts [B] or pairs of texts, [B] each, truncated to `max_seq_length` tokens."""
        if text_pair is None:
            sides = [self.tokenizer.tokenize(text)]
        else:  # One call for both: for a single text, most time is spent on launching ops.
            text, text_pair = same_shape(text=text, text_pair=text_pair)
            tokens = self.tokenizer.tokenize(tf.concat([text, text_pair], axis=0))
            count = tf.size(text)
            sides = [tokens[:count], tokens[count:]]
        return combine_segments(
            *sides,
            max_seq_length=self.settings.max_seq_length,
            cls_token_id=self.tokenizer.cls_token_id,
            sep_token_id=self.tokenizer.sep_token_id,
        )


class ServedTexts(ServedTask):
    """The SavedModel signatures of a task on texts, which map strings or token ids to answers.

    The signature `serving_default` is for texts, and `token_ids` for token ids.
    """

    input_names: tuple[str, ...] = ("text",)
    processor: TextProcessor

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in self.input_names]
        decode = self.processor.decode
        return {
            "serving_default": Steps(texts, self.processor.preprocess, decode),
            "token_ids": Steps(TOKEN_ID_SPECS, self._of_token_ids, decode),
        }

    def _of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Segments:
        rows = self.unpadded(input_ids, input_mask, segment_ids)
        return Segments(rows.input_ids, rows.segment_ids, rows.truncated)
