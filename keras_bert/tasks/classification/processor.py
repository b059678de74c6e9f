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
from keras_bert.tasks.text_tasks import TextProcessor
from keras_bert.text.padding import Segments, combine_segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import TextWindows, head_and_tail, make_text_windows

LONG_TEXT = ("truncate", "head_tail", "windows")
WINDOW_POOLINGS = ("mean", "max")
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
        long_text: what happens to single texts with more tokens. `truncate` removes tokens at the
            end, `head_tail` in the middle; `windows` splits the text into overlapping windows.
        window_stride: number of tokens between the starts of two windows; 0 for half of a window.
        window_pooling: how the logits of the windows are pooled, `mean` or `max`.

    Raises:
        InputError: a value is invalid, the problem type is regression but there are labels, or
            `long_text` is not `truncate` for pairs.
    """

    labels: tuple[str, ...]
    problem_type: str = "single_label"
    max_seq_length: int = 128
    pair: bool = False
    long_text: str = "truncate"
    window_stride: int = 0
    window_pooling: str = "mean"

    def __post_init__(self):
        self._check_long_text()
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

    @property
    def stride(self) -> int:
        """The number of tokens between the starts of two windows."""
        return self.window_stride or max(1, (self.max_seq_length - 2) // 2)

    def long_text_settings(self) -> dict[str, object]:
        """Returns the settings of long texts; empty if they are truncated."""
        if self.long_text != "windows":
            return {"long_text": self.long_text} if self.long_text != LONG_TEXT[0] else {}
        names = ("long_text", "window_stride", "window_pooling")
        return {name: getattr(self, name) for name in names}

    def _check_long_text(self) -> None:
        for name, known in (("long_text", LONG_TEXT), ("window_pooling", WINDOW_POOLINGS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}"
                )
        if self.pair and self.long_text != LONG_TEXT[0]:
            raise InputError(
                f"long_text={self.long_text!r}: got pairs of texts; expected single texts, or "
                f"{LONG_TEXT[0]!r}"
            )
        room, stride = self.max_seq_length - 2, self.window_stride
        is_number = isinstance(stride, int) and not isinstance(stride, bool)
        if not is_number or not 0 <= stride <= max(room, 0):
            raise InputError(
                f"window_stride={stride!r}: expected 0, or from 1 to the {room} tokens of a window"
            )
        if stride and self.long_text != "windows":
            raise InputError(
                f"window_stride={stride}: has no effect with long_text={self.long_text!r}; "
                "expected 'windows'"
            )


class ClassificationProcessor(TextProcessor):
    """Converts texts to model inputs, and logits to labels."""

    def __init__(self, tokenizer: BertTokenizer, settings: ClassifierSettings):
        super().__init__(tokenizer, settings)
        self._labels = list(settings.labels)

    def preprocess(
        self, text: tf.Tensor, text_pair: tf.Tensor | None = None
    ) -> Segments | TextWindows:
        """Converts texts [B] or pairs of texts, [B] each, into model inputs (see the settings)."""
        settings = self.settings
        if settings.long_text == LONG_TEXT[0] or text_pair is not None:
            return super().preprocess(text, text_pair)
        tokens = self.tokenizer.tokenize(text)
        special = {
            "max_seq_length": settings.max_seq_length,
            "cls_token_id": self.tokenizer.cls_token_id,
            "sep_token_id": self.tokenizer.sep_token_id,
        }
        if settings.long_text == "windows":
            return make_text_windows(tokens, stride=settings.stride, **special)
        shortened, truncated = head_and_tail(tokens, settings.max_seq_length - 2)
        return combine_segments(shortened, **special)._replace(truncated=truncated)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: Segments | TextWindows
    ) -> dict[str, tf.Tensor]:
        """Decodes logits, [B, C] or for windows [n, C], into `TextClassifier.predict`'s outputs."""
        logits = outputs["logits"]
        if isinstance(inputs, TextWindows):
            by_mean = self.settings.window_pooling == "mean"
            pool = tf.math.segment_mean if by_mean else tf.math.segment_max
            logits = pool(logits, inputs.text)
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
