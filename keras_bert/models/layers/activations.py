"""Defines the activations of BERT's feed-forward layers, by their name in the config."""

import math
from collections.abc import Callable
from typing import Any

from keras import ops


def gelu_erf(x: Any) -> Any:
    """Computes the exact GELU, x·Φ(x) (Hendrycks and Gimpel 2016).

    It uses erf because ONNX runtimes lack erfc, which `keras.activations.gelu` uses.
    """
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """Computes the tanh approximation of GELU, which Google's BERT uses."""
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_tanh": gelu_tanh,
    "relu": ops.relu,
}
