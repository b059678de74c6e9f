"""Defines the serving signatures of a tagger, for texts, for words and for token ids.

B texts or sentences, W words of the longest sentence, E the largest number of entities in a text, S
tokens in a row, C labels.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.tasks.ner.processor import TaggingProcessor, TextWindows
from keras_bert.tasks.ner.word_windows import WordWindows

# The values after the last entity of a text, or after the last word of a sentence.
PADDING = {"types": "", "texts": "", "starts": -1, "ends": -1, "scores": 0.0, "tags": ""}


class ServedTagger(tf.Module):
    """The SavedModel signatures of a tagger."""

    def __init__(self, network: Network, processor: TaggingProcessor):
        super().__init__(name="tagger")
        self.network = network
        self.processor = processor

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        text = tf.TensorSpec([None], tf.string, name="text")
        words = tf.TensorSpec([None, None], tf.string, name="words")
        return {
            "serving_default": tf.function(self.entities, input_signature=[text]),
            "words": tf.function(self.tags, input_signature=[words]),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def entities(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Finds the entities of texts, as `TaggingProcessor.decode` does, padded to [B, E]."""
        found = self._answers(self.processor.preprocess(tf.convert_to_tensor(text, tf.string)))
        return {name: values.to_tensor(PADDING[name]) for name, values in found.items()}

    def tags(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tags words, strings [B, W] with one sentence per row, padded with "".

        Returns the outputs of `TaggingProcessor.decode`, [B, W], with "" and 0 at padding.
        """
        words = tf.convert_to_tensor(words, tf.string)
        is_word = words != ""
        sentences = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(words, is_word),
            tf.math.count_nonzero(is_word, axis=1),
            validate=False,
        )
        found = self._answers(self.processor.preprocess_words(sentences))
        # At padding, gather the padding value, which is appended to the values of the words.
        place = tf.cumsum(tf.cast(tf.reshape(is_word, [-1]), tf.int32), exclusive=True)
        place = tf.where(is_word, tf.reshape(place, tf.shape(words)), tf.size(sentences.values))
        return {
            name: tf.gather(tf.concat([values.values, [PADDING[name]]], axis=0), place)
            for name, values in found.items()
        }

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Labels the tokens of rows that the client has tokenized, given as int32 [B, S] each.

        Returns:
            "tags", strings [B, S], the most probable label of each token, "" at padding; "logits",
            float32 [B, S, C], 0 at padding; and "truncated", bool [B], whether tokens beyond the
            model's positions were ignored.
        """
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, self.network.config)
        logits = self.network(rows.input_ids, rows.segment_ids)["logits"]
        most_probable = rows.padded(1 + tf.argmax(logits, axis=-1, output_type=tf.int32))
        return {
            "tags": tf.gather(["", *self.processor.settings.labels], most_probable),
            "logits": rows.padded(logits),
            "truncated": rows.truncated,
        }

    def _answers(self, inputs: TextWindows | WordWindows) -> dict[str, tf.RaggedTensor]:
        outputs = self.network(inputs.input_ids, inputs.segment_ids)
        return self.processor.decode(outputs, inputs)
