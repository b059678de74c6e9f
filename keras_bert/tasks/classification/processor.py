"""Preprocesses texts for a classifier and decodes its logits, in TensorFlow graphs.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; or score for regression       decode

With `long_text="windows"`, a text can have several windows, whose logits are pooled before they are
decoded. B texts, n windows, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.long_text import TRUNCATED, LongText, LongTextProcessor
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import TextWindows

PROBLEM_TYPES = ("single_label", "multi_label", "regression")


@dataclass(frozen=True)
class ClassifierSettings:
    """The labels and the text settings of a classifier.

    Attributes:
        labels: the names of the C classes in the order of the logits; empty for regression.
        problem_type: `single_label`, `multi_label` or `regression`.
        max_seq_length: maximum number of tokens, including [CLS] and [SEP]; for longer texts, see
            `long_text`.
        pair: whether the exported model takes two texts.
        long_text: the settings for single texts with more tokens.

    Raises:
        InputError: a value is invalid, the problem type is regression but there are labels, or
            pairs are not truncated at the end.
    """

    labels: tuple[str, ...]
    problem_type: str = "single_label"
    max_seq_length: int = 128
    pair: bool = False
    long_text: LongText = TRUNCATED

    def __post_init__(self):
        self.long_text.check_stride(self.max_seq_length)
        if self.pair and self.long_text != TRUNCATED:
            raise InputError(
                f"long_text={self.long_text.strategy!r}: got pairs of texts; expected single "
                "texts, or 'truncate'"
            )
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


class ClassificationProcessor(LongTextProcessor):
    """Converts texts to model inputs, and logits to labels."""

    def __init__(self, tokenizer: BertTokenizer, settings: ClassifierSettings):
        super().__init__(tokenizer, settings)
        self._labels = list(settings.labels)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: Segments | TextWindows
    ) -> dict[str, tf.Tensor]:
        """Decodes logits, [B, C] or for windows [n, C], into `TextClassifier.predict`'s outputs."""
        logits = self.pooled(outputs["logits"], inputs)
        return self._decided(logits) | {"truncated": inputs.truncated}

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
