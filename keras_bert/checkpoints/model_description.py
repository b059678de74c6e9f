"""Defines `ModelDescription`, the contents of a saved model except for the weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_bert.checkpoints.sentence_transformers import SentenceTransformer
from keras_bert.config import BertConfig
from keras_bert.text.settings import TokenizerSettings


@dataclass(frozen=True)
class ModelDescription:
    """The contents of a model directory, except for the weights.

    Attributes:
        vocab: the V tokens in the order of their ids; None for a model without a vocabulary.
        tokenizer_settings: the settings of the tokenizer.
        labels: the names of a classifier's labels in the order of its logits; None means LABEL_0,
            LABEL_1, ...
        problem_type: a classifier's loss, as named in transformers: `single_label_classification`,
            `multi_label_classification` or `regression`.
        extra: additional entries of config.json, {key: value}.
        card: the model card (README.md) in Markdown; empty for none.
        sentence_transformer: the settings for sentence-transformers, if it can open the model.
    """

    config: BertConfig
    vocab: Sequence[str] | None = None
    tokenizer_settings: TokenizerSettings = field(default_factory=TokenizerSettings)
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    sentence_transformer: SentenceTransformer | None = None

    def hugging_face_settings(self, architecture: str, num_labels: int | None) -> dict[str, Any]:
        """Returns the content of a config.json that transformers can open.

        `architecture` is the name of the transformers class with the model's heads. `num_labels` is
        the number of a classifier's logits, and None for other models.
        """
        settings = {
            "architectures": [architecture],
            "model_type": "bert",
            "pad_token_id": self.vocab.index("[PAD]") if self.vocab else 0,
            "position_embedding_type": "absolute",
            "dtype": "float32",
        }
        if num_labels is not None:
            labels = self.labels or [f"LABEL_{index}" for index in range(num_labels)]
            if len(labels) != num_labels:
                raise ValueError(f"{len(labels)} label names for {num_labels} logits")
            settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
            settings["label2id"] = {label: index for index, label in enumerate(labels)}
        if self.problem_type is not None:
            settings["problem_type"] = self.problem_type
        return settings | self.config.to_dict() | dict(self.extra)
