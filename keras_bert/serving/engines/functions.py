"""Runs the signatures of an export with an engine: preprocess, network, decode."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.serving.engines.grouping import Rows
from keras_bert.serving.engines.network import EngineNetwork
from keras_bert.serving.engines.saved_functions import ATTRIBUTE, SavedFunction


class EngineFunction:
    """A signature whose network runs on an engine; called like the SavedModel's function."""

    def __init__(self, loaded: Any, signature: str, network: EngineNetwork):
        functions = getattr(loaded, ATTRIBUTE)
        self._preprocess = SavedFunction(getattr(functions, f"preprocess_{signature}"))
        self._decode = SavedFunction(getattr(functions, f"decode_{signature}"))
        self._network = network

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes the outputs of the signature."""
        rows, parts = self.preprocess(**inputs)
        return self.decode(self._network(rows), parts)

    def preprocess(self, **inputs: tf.Tensor) -> tuple[Rows, list[tf.Tensor]]:
        """Returns the rows for the network, and the tensors for `decode`."""
        prepared = self._preprocess(*(inputs[name] for name in self._preprocess.input_names))
        ids, segments, splits, *parts = prepared
        return Rows(ids.numpy(), segments.numpy(), splits.numpy()), parts

    def decode(self, outputs: list[np.ndarray], parts: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of the signature."""
        return self._decode(*map(tf.constant, outputs), *parts)
