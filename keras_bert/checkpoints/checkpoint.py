"""Defines `Checkpoint`, an open checkpoint of any format, and `ModelDescription`, for saving."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
from absl import logging

from keras_bert.checkpoints.sentence_transformers import SentenceTransformer
from keras_bert.checkpoints.weights import LoadReport, StoredWeights, load_weights
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings

# Model class of this library -> the transformers class with the same heads.
ARCHITECTURES = {
    "BertEncoder": "BertModel",
    "SentenceEncoder": "BertModel",
    "BertPretrainer": "BertForPreTraining",
    "BertClassifier": "BertForSequenceClassification",
    "BertTokenClassifier": "BertForTokenClassification",
    "BertSpanLabeler": "BertForQuestionAnswering",
}

# The key of config.json for a change of the weights after which the model has not been trained.
UNTRAINED = "keras_bert_untrained"

# Keys of config.json that this library sets itself when it writes a checkpoint.
_ALWAYS_WRITTEN = frozenset(
    """
    _name_or_path architectures dtype id2label label2id model_type num_labels pad_token_id
    position_embedding_type problem_type torch_dtype transformers_version
    """.split()  # noqa: SIM905
)


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


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. Its settings have been read and checked; its weights are still on disk.

    Attributes:
        path: the directory, prefix or file.
        kind: the name of the format in log messages, such as "a KerasHub preset".
        vocab: the V tokens in the order of their ids; None if there is no vocabulary, or if the
            tokenizer is not supported.
        tokenizer_settings: the settings of the tokenizer.
        settings: the content of Hugging Face's config.json, or its equivalent in other formats.
        open_weights: returns a context manager that opens the weights for reading.
        tokenizer_mismatch: one line with the file, key and value of the first unsupported tokenizer
            setting; None if all are supported.
    """

    path: Path
    kind: str
    config: BertConfig
    vocab: list[str] | None
    tokenizer_settings: TokenizerSettings
    settings: Mapping[str, Any]
    open_weights: Callable[[], AbstractContextManager[StoredWeights]]
    tokenizer_mismatch: str | None = None

    @property
    def do_lower_case(self) -> bool:
        """Whether the tokenizer lower-cases text."""
        return self.tokenizer_settings.do_lower_case

    @property
    def why_no_vocab(self) -> str:
        """The reason why `vocab` is None, as the start of an error message."""
        return self.tokenizer_mismatch or f"{self.path}: has no vocabulary"

    @property
    def labels(self) -> list[str] | None:
        """The names of a classifier's labels in the order of its logits; None if unknown.

        A label without a name up to the last one with a name is LABEL_N, as in transformers.
        """
        names = self.settings.get("id2label")
        if not isinstance(names, dict) or not names or not all(map(str.isdecimal, names)):
            return None
        count = 1 + max(map(int, names))
        return [str(names.get(str(index), f"LABEL_{index}")) for index in range(count)]

    @property
    def problem_type(self) -> str | None:
        """A classifier's loss, as named in `ModelDescription`; None if unknown."""
        return self.settings.get("problem_type")

    @property
    def architecture(self) -> str | None:
        """The name of the transformers class with the same heads; None if unknown."""
        names = self.settings.get("architectures")
        return names[0] if isinstance(names, list) and names else None

    @property
    def extra(self) -> dict[str, Any]:
        """The settings that are not in `config` and that this library does not write itself."""
        known = self.config.to_dict().keys() | _ALWAYS_WRITTEN
        return {key: value for key, value in self.settings.items() if key not in known}

    @property
    def description(self) -> ModelDescription:
        """The `ModelDescription` for saving the model again."""
        return ModelDescription(
            self.config,
            self.vocab,
            self.tokenizer_settings,
            self.labels,
            self.problem_type,
            self.extra,
        )

    def check_segments(self) -> None:
        """Raises an InputError if the encoder does not support pairs of texts."""
        count = self.config.type_vocab_size
        if count < 2:
            raise InputError(
                f"{self.path}: type_vocab_size is {count}; expected at least 2, one segment "
                "id for each text of a pair"
            )

    def load_into(self, model: keras.Model) -> LoadReport:
        """Loads the weights into a network of `keras_bert.models`.

        Raises:
            InputError: the weights do not match the model; all mismatches are listed.
        """
        untrained = self.settings.get(UNTRAINED)
        if isinstance(untrained, str):
            logging.warning(
                "%s: %s, and not trained since; train the model before you use it",
                *(self.path, untrained),
            )
        with self.open_weights() as stored:
            return load_weights(model, stored)
