"""What every checkpoint says of itself, whatever wrote it, and how to fill a model from it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_bert.checkpoints.weights import LoadReport, StoredWeights, load_weights
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig

# Our model's class -> the transformers class that has the same heads.
ARCHITECTURES = {
    "BertEncoder": "BertModel",
    "BertPretrainer": "BertForPreTraining",
    "BertClassifier": "BertForSequenceClassification",
    "BertTokenClassifier": "BertForTokenClassification",
    "BertSpanLabeler": "BertForQuestionAnswering",
}

# Keys of config.json that are written anew each time.
_WRITTEN_ANEW = frozenset(
    """
    _name_or_path architectures dtype id2label label2id model_type num_labels pad_token_id
    position_embedding_type problem_type torch_dtype transformers_version
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of itself, read and checked; the weights are still on disk.

    Attributes:
        path: the directory, prefix or file.
        kind: what wrote it, in words.
        config: sizes and settings.
        vocab: the V pieces in the order of their ids, or None if there is no vocabulary, or one
            of another tokenizer than ours.
        do_lower_case: whether text is lower-cased before it is cut into pieces.
        settings: the keys of Hugging Face's config.json that it has.
        open_weights: opens the file of its weights.
        tokenizer_misfit: what asks for another tokenizer than ours: one line with file, key and
            value; None where nothing does.
    """

    path: Path
    kind: str
    config: BertConfig
    vocab: list[str] | None
    do_lower_case: bool
    settings: Mapping[str, Any]
    open_weights: Callable[[], AbstractContextManager[StoredWeights]]
    tokenizer_misfit: str | None = None

    @property
    def why_no_vocab(self) -> str:
        """Says why there is no vocabulary, as an error begins."""
        return self.tokenizer_misfit or f"{self.path}: has no vocabulary"

    @property
    def labels(self) -> list[str] | None:
        """The names of a classifier's labels in the order of its logits, if they are known."""
        names = self.settings.get("id2label")
        if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(len(names)))):
            return None
        return [str(names[str(index)]) for index in range(len(names))]

    @property
    def problem_type(self) -> str | None:
        """The word of transformers for a classifier's loss, if it is known."""
        return self.settings.get("problem_type")

    @property
    def architecture(self) -> str | None:
        """The transformers class that has the same heads, if it is known."""
        names = self.settings.get("architectures")
        return names[0] if isinstance(names, list) and names else None

    @property
    def extra(self) -> dict[str, Any]:
        """The settings that are neither the config nor written anew with every checkpoint."""
        own = self.config.to_dict().keys() | _WRITTEN_ANEW
        return {key: value for key, value in self.settings.items() if key not in own}

    def check_segments(self) -> None:
        """Refuses an encoder that cannot tell two texts apart.

        Raises:
            InputError: it has one segment.
        """
        count = self.config.type_vocab_size
        if count < 2:
            raise InputError(
                f"{self.path}: type_vocab_size is {count}; expected 2 segments, one for each of "
                "two texts"
            )

    def load_into(self, model: keras.Model) -> LoadReport:
        """Fills a model with the checkpoint's weights.

        Args:
            model: one of keras_bert.models, or the encoder.

        Returns:
            What was loaded, what is new, what was ignored.

        Raises:
            InputError: the weights do not fit the model; all misfits are listed.
        """
        with self.open_weights() as stored:
            return load_weights(model, stored)


def hugging_face_settings(
    architecture: str,
    config: BertConfig,
    vocab: Sequence[str] | None,
    num_labels: int | None,
    labels: Sequence[str] | None,
    problem_type: str | None,
    extra: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the keys of a config.json that transformers opens.

    Args:
        architecture: the transformers class that has the model's heads.
        config: sizes and settings.
        vocab: the V pieces, if there is a vocabulary.
        num_labels: a classifier's logits; None for other models.
        labels: their names; by default LABEL_0, LABEL_1, ...
        problem_type: transformers' word for the loss.
        extra: further keys.
    """
    settings = {
        "architectures": [architecture],
        "model_type": "bert",
        "pad_token_id": vocab.index("[PAD]") if vocab else 0,
        "position_embedding_type": "absolute",
        "dtype": "float32",
    }
    if num_labels is not None:
        labels = labels or [f"LABEL_{index}" for index in range(num_labels)]
        if len(labels) != num_labels:
            raise ValueError(f"{len(labels)} label names for {num_labels} logits")
        settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
        settings["label2id"] = {label: index for index, label in enumerate(labels)}
    if problem_type is not None:
        settings["problem_type"] = problem_type
    return settings | config.to_dict() | dict(extra or {})


def guess_lower_case(vocab: Sequence[str] | None, path: Path) -> bool:
    """Tells whether a vocabulary is of lower-cased text, where nothing else says so.

    A piece with a capital letter can only come of text that keeps them. Where no piece tells,
    Google's names do: `cased_L-12...`, `multi_cased_L-12...`.

    Args:
        vocab: the V pieces, if there is a vocabulary.
        path: where the checkpoint lies; its folder's name may tell.
    """
    if vocab:
        # Not [CLS], nor <S>, which even the Chinese vocabulary has.
        words = (piece for piece in vocab if piece[0] not in "[<" or len(piece) == 1)
        return all(piece == piece.lower() for piece in words)
    name = path.name if path.is_dir() or path.suffix == ".zip" else path.parent.name
    return "uncased" in name or "cased" not in name
