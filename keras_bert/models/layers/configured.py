"""Defines the base class of the layers that are configured by a `BertConfig`."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_bert.config import BertConfig


def bert_config(config: BertConfig | Mapping[str, Any]) -> BertConfig:
    """Converts a dict to a `BertConfig`; returns a `BertConfig` unchanged."""
    return config if isinstance(config, BertConfig) else BertConfig.from_dict(dict(config))


class ConfiguredLayer(keras.layers.Layer):
    """A layer that is configured by a `BertConfig` or its dict."""

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.config = bert_config(config)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "config": self.config.to_dict()}
