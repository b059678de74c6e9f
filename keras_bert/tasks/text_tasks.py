"""The graphs that tasks on whole texts share: preprocessing, and the signatures of an export."""

from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.inputs import same_shape
from keras_bert.serving.network import Network
from keras_bert.tasks.prepared import TextInputs
from keras_bert.text.padding import combine_segments
from keras_bert.text.tokenizer import BertTokenizer


class TextProcessor:
    """Turns texts or pairs into the network's inputs; subclasses decode its outputs.

    Args:
        tokenizer: of the model's vocabulary.
        settings: a frozen dataclass with `max_seq_length`.
    """

    per_token: ClassVar[bool] = False

    def __init__(self, tokenizer: BertTokenizer, settings: Any):
        self.tokenizer = tokenizer
        self.settings = settings

    def preprocess(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> TextInputs:
        """Tokenizes texts or pairs and truncates them to `max_seq_length`.

        Args:
            text: strings [B].
            text_pair: strings [B], the second text of each; None for single texts.
        """
        if text_pair is None:
            sides = [self.tokenizer.tokenize(text)]
        else:  # Both in one call: a batch of one spends more time on starting ops than in them.
            text, text_pair = same_shape(text=text, text_pair=text_pair)
            tokens = self.tokenizer.tokenize(tf.concat([text, text_pair], axis=0))
            count = tf.size(text)
            sides = [tokens[:count], tokens[count:]]
        return TextInputs(
            *combine_segments(
                *sides,
                max_seq_length=self.settings.max_seq_length,
                cls_token_id=self.tokenizer.cls_token_id,
                sep_token_id=self.tokenizer.sep_token_id,
            )
        )


class ServedTexts(tf.Module):
    """A task on texts as signatures of a SavedModel: preprocess, network, decode.

    Args:
        network: of the task's model.
        processor: the task's graph functions.
    """

    input_names: tuple[str, ...] = ("text",)

    def __init__(self, network: Network, processor: TextProcessor):
        super().__init__()
        self.network = network
        self.processor = processor

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, and of token ids."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in self.input_names]
        return {
            "serving_default": tf.function(self.of_texts, input_signature=texts),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers texts: strings [B], once or twice."""
        return self.answer(self.processor.preprocess(*texts))

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Answers token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self.answer(TextInputs(rows.input_ids, rows.segment_ids))

    def answer(self, inputs: TextInputs) -> dict[str, tf.Tensor]:
        """Runs the network and decodes its outputs."""
        return self.processor.decode(self.network(*inputs), inputs)
