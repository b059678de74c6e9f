"""Reads the settings of a `TextEmbedder` from a saved model or an export."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_bert.checkpoints.model_directory import CONFIG
from keras_bert.checkpoints.sentence_transformers import SentenceTransformer
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.pooled_encoder import POOLINGS, SentenceEncoder
from keras_bert.tasks.embedding.data import matryoshka_sizes
from keras_bert.tasks.embedding.processor import EmbedderSettings
from keras_bert.tasks.loading import DEFAULT_MAX_SEQ_LENGTH, SETTINGS_KEY, Source
from keras_bert.tasks.long_text import LongText

POOLER = "encoder/pooler"


def saved_settings(
    source: Source,
    max_seq_length: int | None = None,
    normalize: bool | None = None,
    pooling: str | None = None,
) -> EmbedderSettings:
    """Reads the settings of a checkpoint; arguments that are not None replace them.

    Raises:
        InputError: a setting is out of range.
    """
    if pooling not in (None, *POOLINGS):
        raise InputError(f"pooling={pooling!r:.60}: expected one of {', '.join(POOLINGS)}")
    checkpoint = source.checkpoint
    files = SentenceTransformer.of(checkpoint.path)
    with checkpoint.open_weights() as stored:
        pooled = stored.layout.name(f"{POOLER}/dense/kernel") in stored.shapes
    settings = EmbedderSettings(
        max_seq_length=source.max_seq_length(
            max_seq_length, files.max_seq_length or DEFAULT_MAX_SEQ_LENGTH
        ),
        normalize=source.setting("normalize", bool, normalize, files.normalize),
        pooling=pooling or files.pooling or source.setting("pooling", str, None),
        pooled=pooled,
        long_text=LongText.saved(source),
        dense=files.dense,
        prompts=files.prompts,
        default_prompt_name=files.default_prompt_name,
        truncate_dim=files.truncate_dim,
    )
    sizes = _saved_sizes(source, settings.width(checkpoint.config.hidden_size))
    return replace(settings, matryoshka_sizes=sizes)


def make_encoder(config: BertConfig, settings: EmbedderSettings, dtype: Any) -> BertEncoder:
    """Creates the encoder for some settings, with Dense layers if there are any."""
    if not settings.dense:
        return BertEncoder(config, dtype=dtype)
    names = ("units", "activation", "use_bias")
    dense = [{name: getattr(layer, name) for name in names} for layer in settings.dense]
    return SentenceEncoder(config, dense, dtype=dtype)


def settings_of_export(info: Mapping[str, Any]) -> EmbedderSettings:
    """Restores the settings from the content of an export's export.json."""
    names = info["signatures"]["serving_default"]["outputs"]
    return EmbedderSettings(
        max_seq_length=info["max_seq_length"],
        normalize=info["normalize"],
        pooling=info["pooling"],
        pooled="pooled" in names,
        matryoshka_sizes=tuple(info.get("matryoshka_sizes", ())),
        long_text=LongText.of_export(info),
        prompts=info.get("prompts", {}),
        default_prompt_name=info.get("default_prompt_name"),
    )


def _saved_sizes(source: Source, width: int) -> tuple[int, ...]:
    """Returns the Matryoshka sizes in the config.json of a saved model; () if there are none."""
    checkpoint = source.checkpoint
    saved = checkpoint.settings.get(SETTINGS_KEY)
    sizes = saved.get("matryoshka_sizes", ()) if isinstance(saved, Mapping) else ()
    where = f"{checkpoint.path / CONFIG}: matryoshka_sizes is {sizes!r:.60}"
    if not isinstance(sizes, list | tuple):
        raise InputError(f"{where}; expected a list of whole numbers")
    return matryoshka_sizes(where, sizes, width)
