"""Checks that an engine gives the answers of the SavedModel, before it serves.

The check runs the texts below through both. The outputs of the network may differ by TOLERANCE, the
root of the sum of squared differences divided by that of the SavedModel's values. Of the decoded
strings and integers, such as labels, at least the share EQUAL must be equal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.serving.engines.functions import EngineFunction
from keras_bert.serving.engines.grouping import Rows
from keras_bert.serving.engines.network import EngineNetwork
from keras_bert.serving.engines.saved_functions import ATTRIBUTE

# Rounding to bfloat16 changes a value by up to 0.4 %, and quantization of weights and activations
# to int8 by about 1 %; both add up over the layers. The SavedModel itself may be in bfloat16.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.3}
EQUAL = {"float32": 1.0, "bfloat16": 0.9, "int8": 0.7}

SIGNATURE = "serving_default"
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "",
    "In 911, Rollo became the first duke of Normandy, and swore fealty to King Charles III.",
    "Yes",
    "The company said that its profit rose by 12 percent in the third quarter, to $ 4.2 million.",
    "What is the capital of France? Paris is the capital and the largest city of France.",
    "A truly [MASK] film, in which every scene is worth watching twice.",
    "Angela Merkel met Barack Obama in Berlin on Monday, before she flew to New York. " * 4,
)


def example_inputs(names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns the texts of the check for each input; inputs get the texts in different order."""
    return {
        name: tf.constant(_TEXTS[index:] + _TEXTS[:index], tf.string)
        for index, name in enumerate(names)
    }


def difference(
    loaded: Any, network: EngineNetwork, names: Sequence[str], precision: str
) -> str | None:
    """Compares an engine with the SavedModel; returns the difference, or None if it is small.

    Args:
        loaded: the loaded SavedModel.
        network: the network on the engine.
        names: the inputs of the signature `serving_default`.
        precision: the engine's precision.
    """
    function = EngineFunction(loaded, SIGNATURE, network)
    rows, parts = function.preprocess(**example_inputs(names))
    expected = _saved_outputs(loaded, rows, network)
    found = network(rows)
    for name, one, other in zip(network.spec.per, found, expected, strict=True):
        if one.shape != other.shape:
            return f"{name} has the shape {one.shape}; expected {other.shape}"
        if not np.issubdtype(one.dtype, np.floating):
            continue
        error = float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-6))
        if not error <= TOLERANCE[precision]:  # Also true for NaN.
            return (
                f"{name} differs by {error:.2g}; expected at most {TOLERANCE[precision]:g} in "
                f"{precision}"
            )
    return _different_answers(
        function.decode(found, parts), function.decode(expected, parts), precision
    )


def _saved_outputs(loaded: Any, rows: Rows, network: EngineNetwork) -> list[np.ndarray]:
    outputs = getattr(loaded, ATTRIBUTE).network(*map(tf.constant, rows))
    return [outputs[name].numpy() for name in network.spec.per]


def _different_answers(
    found: Mapping[str, tf.Tensor], expected: Mapping[str, tf.Tensor], precision: str
) -> str | None:
    for name, value in expected.items():
        one, other = found[name].numpy(), value.numpy()
        if np.issubdtype(other.dtype, np.floating):
            continue
        if one.shape != other.shape:
            # The width is that of the row with the most entities.
            if precision == "float32":
                return f"{name} has the shape {one.shape}; expected {other.shape}"
            continue
        equal = float(np.mean(one == other)) if one.size else 1.0
        if equal < EQUAL[precision]:
            return (
                f"{equal:.0%} of {name} are equal; expected at least {EQUAL[precision]:.0%} in "
                f"{precision}"
            )
    return None
