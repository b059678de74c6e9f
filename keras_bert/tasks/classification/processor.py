"""Preprocesses texts for a classifier and decodes its logits, in TensorFlow graphs.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; or score for regression       decode

B texts, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer

PROBLEM_TYPES = ("single_label", "multi_label", "regression")


@dataclass(frozen=True)
class ClassifierSettings:
    """The labels and the text settings of a classifier.

    Attributes:
        labels: the names of the C classes in the order of the logits; empty for regression.
        problem_type: `single_label`, `multi_label` or `regression`.
        max_seq_length: maximum number of tokens, including [CLS] and [SEP]; longer texts are
            truncated.
        pair: whether the exported model takes two texts.

    Raises:
        InputError: the problem type is unknown, or is regression but there are labels.
    """

    labels: tuple[str, ...]
    problem_type: str = "single_label"
    max_seq_length: int = 128
    pair: bool = False

    def __post_init__(self):
        if self.problem_type not in PROBLEM_TYPES:
            raise InputError(
                f"problem_type is {self.problem_type!r}; expected one of {', '.join(PROBLEM_TYPES)}"
            )
        if self.problem_type == "regression" and self.labels:
            raise InputError(
                f"labels={list(self.labels)}: expected none for problem_type='regression'"
            )

    @property
    def num_logits(self) -> int:
        """The number of logits per example: C, or 1 for regression."""
        return len(self.labels) or 1


class ClassificationProcessor(TextProcessor):
    """Converts texts to model inputs, and logits to labels."""

    def __init__(self, tokenizer: BertTokenizer, settings: ClassifierSettings):
        super().__init__(tokenizer, settings)
        self._labels = list(settings.labels)

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: Segments) -> dict[str, tf.Tensor]:
        """Decodes the logits [B, C] into the outputs of `TextClassifier.predict`, as tensors."""
        return self._decided(outputs["logits"]) | {"truncated": inputs.truncated}

    def _decided(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.settings.problem_type == "regression":
            return {"score": logits[:, 0]}
        if self.settings.problem_type == "multi_label":
            order = tf.argsort(logits, direction="DESCENDING", stable=True)
            on = tf.gather(logits, order, batch_dims=1) > 0
            return {
                "labels": tf.where(on, tf.gather(self._labels, order), ""),
                "probabilities": tf.sigmoid(logits),
                "logits": logits,
            }
        return {
            "label": tf.gather(self._labels, tf.argmax(logits, axis=-1)),
            "probabilities": tf.nn.softmax(logits),
            "logits": logits,
        }
