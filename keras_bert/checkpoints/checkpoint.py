"""Defines `Checkpoint`, an open checkpoint of any format."""

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
from absl import logging

from keras_bert.checkpoints.earlier_run import CONFIG, SETTINGS_KEY, EarlierRun
from keras_bert.checkpoints.sentence_transformers import CROSS_ENCODER
from keras_bert.checkpoints.weights import LoadReport, StoredWeights, load_weights
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import value_of
from keras_bert.models import NETWORKS
from keras_bert.models.layers import skip_encoder_weights
from keras_bert.text.settings import TokenizerSettings

if TYPE_CHECKING:
    from keras_bert.text.tokenizer import BertTokenizer

# The key of config.json for a change of the weights after which the model has not been trained.
UNTRAINED = "keras_bert_untrained"
# The class in transformers -> the task of its heads.
_TASKS = {network.architecture: network.task for network in NETWORKS}
_TASKS["BertForMaskedLM"] = "fill_mask"
# The tasks of heads that are fine-tuned; such a checkpoint cannot be used for another task.
_FINE_TUNED = ("classification", "ner", "question_answering")

# The maximum number of tokens of a text, if neither the model nor its run records it.
DEFAULT_MAX_SEQ_LENGTH = 128
# The minimum of max_seq_length: [CLS] a [SEP] b [SEP], for two texts of one token each.
SHORTEST = 5


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. Its settings have been read and checked; its weights are still on disk.

    Attributes:
        path: the directory, prefix or file.
        kind: the name of the format in log messages, such as "a KerasHub preset".
        vocab: the V tokens in the order of their ids; None if there is no vocabulary, or if the
            tokenizer is not supported.
        settings: the content of Hugging Face's config.json, or its equivalent in other formats.
        open_weights: opens the weights for reading.
        tokenizer_mismatch: one line with the file, key and value of the first unsupported tokenizer
            setting; None if all are supported.
    """

    path: Path
    kind: str
    config: BertConfig
    vocab: list[str] | None
    tokenizer_settings: TokenizerSettings
    settings: Mapping[str, Any]
    open_weights: Callable[[], StoredWeights]
    tokenizer_mismatch: str | None = None

    # --- the task ---

    @property
    def architecture(self) -> str | None:
        """The name of the transformers class with the same heads; None if unknown."""
        names = self.settings.get("architectures")
        return names[0] if isinstance(names, list) and names else None

    @property
    def task(self) -> str | None:
        """The task of the heads, such as `classification`; None if unknown."""
        return _TASKS.get(self.architecture)

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
    def named_labels(self) -> list[str] | None:
        """The labels; None if they are unknown, or only transformers' default names LABEL_N."""
        labels = self.labels
        is_default = labels and all(re.fullmatch(r"LABEL_\d+", name) for name in labels)
        return None if is_default else labels

    @property
    def problem_type(self) -> str | None:
        """A classifier's loss, as named in transformers, or `reranking`; None if unknown."""
        if CROSS_ENCODER in self.settings and len(self.labels or ()) == 1:
            return "reranking"
        return self.settings.get("problem_type")

    def is_of_other_task(self, task: str) -> bool:
        """Returns whether the checkpoint has the fine-tuned head of another task than `task`."""
        return self.task in _FINE_TUNED and self.task != task

    def check_task(self, task: str, name: str) -> None:
        """Checks that the checkpoint can be used for a task; `name` is the name of its class."""
        self.check_bidirectional(name)
        if task != "embedding" and self.is_of_other_task(task):
            raise InputError(
                f"path={str(self.path)!r}: is a {self.architecture}; {name} expects a model for "
                "its own task or without a head; keras-bert convert SRC DST --noheads removes the "
                "head"
            )

    def check_bidirectional(self, user: str) -> None:
        """Raises an InputError that names the `user` if the model is left-to-right."""
        if self.config.is_decoder:
            raise InputError(
                f"{self.path}: is a left-to-right model (is_decoder); {user} expects a "
                "bidirectional model"
            )

    def check_segments(self) -> None:
        """Raises an InputError if the encoder does not support pairs of texts."""
        count = self.config.type_vocab_size
        if count < 2:
            raise InputError(
                f"{self.path}: type_vocab_size is {count}; expected at least 2, one segment "
                "id for each text of a pair"
            )

    # --- the settings of the model and its run ---

    @functools.cached_property
    def run(self) -> EarlierRun:
        """The run that wrote the checkpoint; without settings if there is none."""
        return EarlierRun(self.path)

    @property
    def saved_settings(self) -> Mapping[str, Any]:
        """The settings of the task that are saved with the model."""
        saved = self.settings.get(SETTINGS_KEY)
        return saved if isinstance(saved, Mapping) else {}

    def setting(self, name: str, kind: type, value: Any = None, default: Any = None) -> Any:
        """Returns `value`, or if it is None the stored setting of this name, or else `default`.

        The setting is saved with the model, or else a flag of the run that wrote it.
        """
        if value is None:
            value = value_of(self.path / CONFIG, self.saved_settings, name, kind, None)
        return self.run.setting(name, kind, default) if value is None else value

    def max_seq_length(self, length: int | None, default: int = DEFAULT_MAX_SEQ_LENGTH) -> int:
        """Returns the maximum number of tokens of a text: `length`, or else the stored setting.

        Without either, it is `default`, or the model's number of positions if that is smaller.
        """
        positions = self.config.max_position_embeddings
        if length is None:
            # Older runs of keras-bert pretrain recorded 0 if records of any length were accepted.
            length = self.setting("max_seq_length", int) or min(default, positions)
        check_max_seq_length(length, positions)
        return length

    # --- the tokenizer ---

    @property
    def do_lower_case(self) -> bool:
        """Whether the tokenizer lower-cases text."""
        return self.tokenizer_settings.do_lower_case

    def require_vocab(self, expected: str) -> list[str]:
        """Returns the vocabulary; raises an InputError that ends with `expected` if it is None."""
        if self.vocab is None:
            reason = self.tokenizer_mismatch or f"{self.path}: has no vocabulary"
            raise InputError(f"{reason}; {expected}")
        return self.vocab

    def tokenizer(
        self, tokenizer: "BertTokenizer | None" = None, *, special: bool = False
    ) -> "BertTokenizer":
        """Returns `tokenizer`, or else creates one for the checkpoint's vocabulary.

        With `special`, a new tokenizer recognizes special tokens such as [MASK] in texts.
        """
        # Imported here, because weights can be loaded without TensorFlow.
        from keras_bert.text.tokenizer import BertTokenizer

        if tokenizer is None:
            vocab = self.require_vocab(
                "expected a checkpoint with a vocabulary, or the argument `tokenizer`"
            )
            settings = self.tokenizer_settings.to_dict()
            return BertTokenizer(vocab, keep_special_tokens=special, **settings)
        if tokenizer.vocab_size != self.config.vocab_size:
            raise InputError(
                f"tokenizer: has {tokenizer.vocab_size} tokens, but {self.path} has "
                f"vocab_size {self.config.vocab_size}; expected the same number"
            )
        return tokenizer

    # --- the weights ---

    @functools.cached_property
    def weights_sha256(self) -> str:
        """A checksum of the weights, with their names and shapes."""
        digest = hashlib.sha256()
        with self.open_weights() as stored:
            for name in sorted(stored.shapes):
                digest.update(f"{name} {[*stored.shapes[name]]}\n".encode())
                digest.update(stored.read(name).tobytes())
        return digest.hexdigest()

    def load_into(self, model: keras.Model) -> LoadReport:
        """Loads the weights into a network of `keras_bert.models`."""
        untrained = self.settings.get(UNTRAINED)
        if isinstance(untrained, str):
            logging.warning(
                "%s: %s, and not trained since; train the model before you use it",
                *(self.path, untrained),
            )
        with self.open_weights() as stored:
            return load_weights(model, stored)

    def make_network(self, network: type, **arguments: Any) -> Any:
        """Creates a network with the weights; implements `BertNetwork.from_pretrained`.

        `arguments` are those of the constructor, without the config.
        """
        with self.open_weights() as stored:
            heads, num_labels = stored.heads, stored.num_labels
        check_dtype(arguments.get("dtype"))
        self._check_network(network, heads)
        if "num_labels" in arguments:
            num_labels = _agreed_num_labels(self.path, arguments["num_labels"], num_labels)
            arguments = {**arguments, "num_labels": num_labels}
        with skip_encoder_weights():
            model = network(self.config, **arguments)
        report = self.load_into(model)
        parts = [variable.split("/") for variable in report.new]
        new = sorted({"/".join(part[: 1 + (part[0] == "encoder")]) for part in parts})
        if model.per_token:
            # The logits do not depend on the pooler, and public models of such tasks have none.
            new = [name for name in new if name != "encoder/pooler"]
        if new:
            logging.warning(
                "%s: weights that are not in the checkpoint are newly initialized: %s",
                self.path,
                ", ".join(new),
            )
        return model

    def _check_network(self, network: type, heads: set[str]) -> None:
        """Rejects a checkpoint that was fine-tuned for another task than that of the network."""
        if not network.heads or self.architecture == network.architecture:
            return
        other = heads & {"classifier", "span"}
        if self.task in _FINE_TUNED or self.architecture == "BertForMultipleChoice":
            problem = f"is a {self.architecture}"
        elif other and not heads & {*network.heads}:
            problem = f"has the head {', '.join(sorted(other))}"
        else:
            return
        raise InputError(
            f"{network.__name__}.from_pretrained: {self.path} {problem}; expected a "
            f"{network.architecture}, or a pre-trained model without a head for another task"
        )

    # --- records ---

    def record(self) -> dict[str, object]:
        """Returns the entries of run.json that detect a changed checkpoint."""
        return {
            "config": self.config.to_dict(),
            "weights_sha256": self.weights_sha256,
            "vocab_sha256": hashlib.sha256("\n".join(self.vocab).encode()).hexdigest(),
            "do_lower_case": self.do_lower_case,
            **self.tokenizer_settings.non_default(),
        }


def config_of(file: Path, settings: Mapping[str, Any]) -> BertConfig:
    """Returns the config in the settings that were read from a file, which messages name."""
    try:
        return BertConfig.from_dict(settings)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def check_max_seq_length(length: int, positions: int, shortest: int = SHORTEST) -> None:
    """Checks that a length is an integer from `shortest` to the model's number of positions."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise InputError(f"max_seq_length={length!r}: expected a whole number")
    if not shortest <= length <= positions:
        raise InputError(
            f"max_seq_length={length}: expected from {shortest} to the model's {positions} "
            "positions (max_position_embeddings)"
        )


def check_dtype(dtype: Any) -> None:
    """Checks that an argument is a dtype policy of floating-point numbers; None for the default."""
    try:
        is_valid = "float" in keras.dtype_policies.get(dtype).compute_dtype
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"dtype={dtype!r:.60}: expected one of float32, mixed_bfloat16, mixed_float16, "
            "bfloat16, float16"
        )


def _agreed_num_labels(path: Path, requested: int | None, stored: int | None) -> int:
    if requested is None and stored is None:
        raise InputError(
            f"num_labels is None; expected the number of labels, since {path} has no classifier"
        )
    if None not in (requested, stored) and requested != stored:
        raise InputError(
            f"num_labels is {requested}; expected {stored}, the number of logits of {path}"
        )
    return stored if requested is None else requested
