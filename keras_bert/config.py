"""Reads, checks and writes BERT configs: JSON files like bert_config.json in Google's releases.

`configs/*.json` are bundled configs in the sizes of Google's releases, from tiny to large.
"""

import dataclasses
import json
import os
import warnings
from pathlib import Path
from typing import Any

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.options import option, options_of

# `gelu` is the erf form, as in Hugging Face. Google's released code computes the tanh form, so the
# bundled configs have `gelu_new`; `gelu_tanh` is another name for `gelu_new`.
HIDDEN_ACTS = ("gelu", "gelu_new", "gelu_tanh", "relu")

_SIZE = {"min": 1, "max": 2**31 - 1}  # Shapes and token ids have 32 bits.
_LAYERS = {"min": 1, "max": 1000}  # Each layer takes time to build, however small it is.
_PROBABILITY = {"min": 0, "below": 1}

# Keys in the configs of other libraries that change the computation, each with the only accepted
# value: the one for plain BERT.
_FIXED_KEYS = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}

# Keys in the configs of other libraries that do not change the encoder's computation.
_IGNORED_KEYS = frozenset(
    """
    _name_or_path architectures bos_token_id chunk_size_feed_forward
    cls_token_id decoder_start_token_id directionality dtype eos_token_id finetuning_task
    gradient_checkpointing id2label keras_bert keras_bert_untrained label2id mask_token_id
    name_or_path num_labels output_attentions output_hidden_states output_past pad_token_id
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    problem_type return_dict sbert_ce_default_activation_function sentence_transformers sep_token_id
    task_specific_params tokenizer_class torch_dtype torchscript transformers_version use_bfloat16
    use_cache
    """.split()  # noqa: SIM905
)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The configuration of a BERT model, checked on construction.

    Attributes:
        vocab_size: V, the number of tokens in the vocabulary.
        hidden_size: H, the width of the encoder; a multiple of `num_attention_heads`.
        num_hidden_layers: the number of transformer layers.
        num_attention_heads: N, the number of attention heads in a layer; a head has size D = H / N.
        intermediate_size: the width of the feed-forward layer.
        hidden_act: `gelu` (erf), `gelu_new` or `gelu_tanh` (tanh approximation), or `relu`.
        hidden_dropout_prob: dropout rate after the embeddings and after each sublayer.
        attention_probs_dropout_prob: dropout rate of the attention probabilities.
        max_position_embeddings: the maximum sequence length in tokens.
        type_vocab_size: the number of different values in `segment_ids`.
        initializer_range: standard deviation of the truncated normal weight initializer.
        layer_norm_eps: added to the variance in each LayerNorm.
        classifier_dropout: dropout rate of the input of a classifier; None for that of
            `hidden_dropout_prob`. Google's configs do not have this key.
        is_decoder: whether a token attends only to itself and earlier tokens. Google's configs do
            not have this key.

    Raises:
        InputError: a value is not allowed.
    """

    vocab_size: int = option(dataclasses.MISSING, **_SIZE)
    hidden_size: int = option(768, **_SIZE)
    num_hidden_layers: int = option(12, **_LAYERS)
    num_attention_heads: int = option(12, **_SIZE)
    intermediate_size: int = option(3072, **_SIZE)
    hidden_act: str = option("gelu_new", choices=HIDDEN_ACTS)
    hidden_dropout_prob: float = option(0.1, **_PROBABILITY)
    attention_probs_dropout_prob: float = option(0.1, **_PROBABILITY)
    max_position_embeddings: int = option(512, **_SIZE)
    type_vocab_size: int = option(2, **_SIZE)
    initializer_range: float = option(0.02, above=0)
    layer_norm_eps: float = option(1e-12, above=0)
    classifier_dropout: float | None = option(None, **_PROBABILITY)
    is_decoder: bool = option(False)

    def __post_init__(self) -> None:
        for key, declaration in options_of(BertConfig).items():
            value = getattr(self, key)
            try:
                object.__setattr__(self, key, declaration.check(value))
            except ValueError as error:
                raise _invalid_value(key, value, str(error)) from None
        if self.hidden_size % self.num_attention_heads:
            raise _invalid_value(
                "hidden_size",
                self.hidden_size,
                f"expected a multiple of num_attention_heads, which is {self.num_attention_heads}",
            )

    @property
    def num_encoder_weights(self) -> int:
        """The number of parameters of the encoder: embeddings, layers and pooler."""
        h, wide = self.hidden_size, self.intermediate_size
        norm = 2 * h
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * h
        layer = 4 * (h * h + h) + (h * wide + wide) + (wide * h + h) + 2 * norm
        pooler = h * h + h
        return tables + norm + self.num_hidden_layers * layer + pooler

    def flops_per_row(self, length: Any, predictions: Any = 0) -> Any:
        """Counts the floating-point operations of a forward pass's matrix products for one row.

        Args:
            length: the number of tokens in the row, with padding.
            predictions: the number of positions whose token the masked-LM head predicts.

        Both are numbers or float tensors.
        """
        h = float(self.hidden_size)  # The sums do not fit in 32-bit integers.
        token = 4 * h * h + 2 * h * self.intermediate_size + 2 * h * length
        head = predictions * (h * self.vocab_size + h * h)
        return 2.0 * (self.num_hidden_layers * token * length + head)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BertConfig":
        """Creates a config from the content of Google's or Hugging Face's config file.

        Only `vocab_size` is required. Known keys that do not affect the encoder are ignored;
        unknown keys are ignored with a warning.

        Raises:
            InputError: `vocab_size` is missing, or a value is not allowed.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        for key, allowed in _FIXED_KEYS.items():
            value = values.get(key)
            if value is not None and value != allowed:
                raise _invalid_value(
                    key,
                    value,
                    f"expected {json.dumps(allowed)}; other values change the computation",
                )
        unknown = sorted(set(values) - fields - _IGNORED_KEYS - set(_FIXED_KEYS))
        if unknown:
            warnings.warn(f"unknown config keys are ignored: {', '.join(unknown)}", stacklevel=2)
        if "vocab_size" not in values:
            raise InputError("vocab_size is missing; expected the number of tokens in vocab.txt")
        return cls(**{key: value for key, value in values.items() if key in fields})

    @classmethod
    def from_json(cls, path: str | os.PathLike) -> "BertConfig":
        """Reads a config from a JSON file, or a bundled config.

        `path` is a JSON file or, if no such file exists, the name of a bundled config, such as
        `large`.

        Raises:
            InputError: the file does not exist or is not a valid config.
        """
        values = read_json(_find(path))
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{os.fspath(path)}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as {name: value}, without those that have Google's default."""
        values = dataclasses.asdict(self)
        for name, default in (("classifier_dropout", None), ("is_decoder", False)):
            if values[name] is default:
                del values[name]
        return values

    def to_json(self, path: str | os.PathLike) -> None:
        """Writes the config as a JSON file that `from_json` reads."""
        write_json(path, self.to_dict())

    def check_vocab_size(self, size: int, vocab_path: str | os.PathLike) -> None:
        """Raises an InputError if a vocabulary of `size` tokens does not match `vocab_size`.

        The message starts with `vocab_path`.
        """
        if size != self.vocab_size:
            raise InputError(
                f"{os.fspath(vocab_path)}: has {size} tokens, but vocab_size in the config is "
                f"{self.vocab_size}; expected the same number"
            )


def bundled_names() -> list[str]:
    """Returns the names of the bundled configs, smallest model first."""
    return ["tiny", "mini", "small", "medium", "base", "large"]


def _find(path: str | os.PathLike) -> Path:
    file, name = Path(path), os.fspath(path).removesuffix(".json")
    if file.is_file():
        return file
    if name in bundled_names():
        return Path(__file__).with_name("configs") / f"{name}.json"
    raise InputError(
        f"{file}: no such file; expected a JSON file or one of {', '.join(bundled_names())}"
    )


def _invalid_value(key: str, value: object, expected: str) -> InputError:
    return InputError(f"{key} is {json.dumps(value, default=repr)}; {expected}")
