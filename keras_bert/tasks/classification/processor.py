"""The graph functions of a classifier: texts to token ids, logits to labels.

    text [B] (and text_pair [B]) -> tokens -> [CLS] a [SEP] b [SEP]      preprocess
    logits [B, C] -> label, probabilities; a regression's score          decode

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
    """What a classifier predicts, and how it reads texts.

    Attributes:
        labels: names of the C classes in the order of the logits; none for a regression.
        problem_type: `single_label`, `multi_label` or `regression`.
        max_seq_length: tokens of a text or pair, with [CLS] and [SEP]; the rest is truncated.
        pair: whether the exported model takes two texts.

    Raises:
        InputError: an unknown problem type, or a regression with labels.
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
        """The width of the logits."""
        return len(self.labels) or 1


class ClassificationProcessor(TextProcessor):
    """Turns texts into the network's inputs, and its logits into labels.

    Args:
        tokenizer: of the model's vocabulary.
        settings: labels and lengths.
    """

    def __init__(self, tokenizer: BertTokenizer, settings: ClassifierSettings):
        super().__init__(tokenizer, settings)
        self._labels = list(settings.labels)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: TextInputs | None = None
    ) -> dict[str, tf.Tensor]:
        """Reads labels from logits.

        Args:
            outputs: {"logits": float [B, C]}.
            inputs: not needed.

        Returns:
            Of one label a text: `label` [B], `probabilities` and `logits` [B, C]. Of several:
            `labels` [B, C], those with a probability above one half, best first, then "". Of a
            regression: `score` [B].
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
