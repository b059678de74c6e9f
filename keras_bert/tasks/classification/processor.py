"""The graph functions of a classifier: preprocessing of texts and decoding of logits.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; or score for regression       decode

B texts, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.tasks.prepared import TextInputs
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.tokenizer import BertTokenizer

PROBLEM_TYPES = ("single_label", "multi_label", "regression")


@dataclass(frozen=True)
class ClassifierSettings:
    """The labels of a classifier and its settings for texts.

    Attributes:
        labels: names of the C classes in the order of the logits; empty for regression.
        problem_type: `single_label`, `multi_label` or `regression`.
        max_seq_length: maximum number of tokens, with [CLS] and [SEP]; longer texts are truncated.
        pair: whether the exported model takes two texts.

    Raises:
        InputError: an unknown problem type, or regression with labels.
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
        """The number of logits per example."""
        return len(self.labels) or 1


class ClassificationProcessor(TextProcessor):
    """Converts texts into model inputs, and logits into labels."""

    def __init__(self, tokenizer: BertTokenizer, settings: ClassifierSettings):
        super().__init__(tokenizer, settings)
        self._labels = list(settings.labels)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: TextInputs | None = None
    ) -> dict[str, tf.Tensor]:
        """Decodes the logits [B, C] into labels; `inputs` is unused.

        Returns:
            For single_label, `label` [B], `probabilities` and `logits` [B, C]. For multi_label, the
            latter two and `labels` [B, C]: the labels with a probability above 0.5, in descending
            order, padded with "". For regression, `score` [B].
        """
        logits = outputs["logits"]
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
