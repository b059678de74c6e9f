"""Defines the serving signatures of a tagger, for texts, for words and for token ids.

B texts or sentences, W words of the longest sentence, E the largest number of entities in a text, S
tokens in a row, C labels.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.serving.engines.opening import NetworkSpec
from keras_bert.serving.inputs import TOKEN_ID_SPECS, UnpaddedRows
from keras_bert.serving.network import Network
from keras_bert.serving.saved_model import Outputs, ServedTask, Steps
from keras_bert.tasks.ner.processor import TaggingProcessor, TextWindows
from keras_bert.tasks.ner.word_windows import WordWindows

# The values after the last entity of a text, or after the last word of a sentence.
PADDING = {"types": "", "texts": "", "starts": -1, "ends": -1, "scores": 0.0, "tags": ""}


class _Sentences(NamedTuple):
    """The windows of sentences, and the place of each word, int32 [B, W], among all words.

    At padding, the place is the number of all words.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    windows: WordWindows
    places: tf.Tensor


class ServedTagger(ServedTask):
    """The SavedModel signatures of a tagger."""

    def __init__(self, network: Network, processor: TaggingProcessor):
        super().__init__(name="tagger")
        self.network = network
        self.processor = processor

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"logits": "token"})

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        text = tf.TensorSpec([None], tf.string, name="text")
        words = tf.TensorSpec([None, None], tf.string, name="words")
        return {
            "serving_default": Steps([text], self.processor.preprocess, self._entities),
            "words": Steps([words], self._sentences, self._tags),
            "token_ids": Steps(TOKEN_ID_SPECS, self._of_token_ids, self._token_tags),
        }

    def _entities(self, outputs: Outputs, inputs: TextWindows) -> dict[str, tf.Tensor]:
        """Finds the entities of texts, as `TaggingProcessor.decode` does, padded to [B, E]."""
        found = self.processor.decode(outputs, inputs)
        return {name: values.to_tensor(PADDING[name]) for name, values in found.items()}

    def _sentences(self, words: tf.Tensor) -> _Sentences:
        """Splits words, strings [B, W] with one sentence per row, padded with "", into windows."""
        is_word = words != ""
        sentences = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(words, is_word),
            tf.math.count_nonzero(is_word, axis=1),
            validate=False,
        )
        places = tf.cumsum(tf.cast(tf.reshape(is_word, [-1]), tf.int32), exclusive=True)
        places = tf.where(is_word, tf.reshape(places, tf.shape(words)), tf.size(sentences.values))
        windows = self.processor.preprocess_words(sentences)
        return _Sentences(windows.input_ids, windows.segment_ids, windows, places)

    def _tags(self, outputs: Outputs, inputs: _Sentences) -> dict[str, tf.Tensor]:
        """Returns the outputs of `TaggingProcessor.decode`, [B, W], with "" and 0 at padding."""
        found = self.processor.decode(outputs, inputs.windows)
        # At padding, gather the padding value, which is appended to the values of the words.
        return {
            name: tf.gather(tf.concat([values.values, [PADDING[name]]], axis=0), inputs.places)
            for name, values in found.items()
        }

    def _of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> UnpaddedRows:
        """Removes the padding of rows that the client has tokenized, int32 [B, S] each."""
        return UnpaddedRows.of_request(input_ids, input_mask, segment_ids, self.network.config)

    def _token_tags(self, outputs: Outputs, rows: UnpaddedRows) -> dict[str, tf.Tensor]:
        """Labels the tokens of rows.

        Returns:
            "tags", strings [B, S], the most probable label of each token, "" at padding; "logits",
            float32 [B, S, C], 0 at padding; and "truncated", bool [B], whether tokens beyond the
            model's positions were ignored.
        """
        logits = outputs["logits"]
        most_probable = rows.padded(1 + tf.argmax(logits, axis=-1, output_type=tf.int32))
        return {
            "tags": tf.gather(["", *self.processor.settings.labels], most_probable),
            "logits": rows.padded(logits),
            "truncated": rows.truncated,
        }
