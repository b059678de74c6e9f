"""Keeps some layers of a model, or extends its table of positions.

    layers       0 1 2 3 4 5 -> the weights of 0, 2 and 4 as layers 0, 1 and 2
    positions    512 rows -> 1024 rows, interpolated between the old rows or repeating them

Both give an initial model: it computes other outputs than its source, and needs training.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig

POSITIONS = "encoder/embeddings/position_embeddings"
_LAYER = re.compile(r"encoder/layer_(\d+)/")


def keep_layers(config: BertConfig, layers: Sequence[int], where: str) -> BertConfig:
    """Returns the config of a model that has only the given layers of another one.

    `layers` are indices from 0, the layer after the embeddings, in increasing order. Error messages
    start with `where`.

    Raises:
        InputError: there are no layers, or one does not exist or is out of order.
    """
    count = config.num_hidden_layers
    is_sorted = all(a < b for a, b in itertools.pairwise(layers))
    if not layers or not is_sorted or layers[0] < 0 or layers[-1] >= count:
        raise InputError(
            f"{where}: the model has {count} layers; expected different layers from 0 to "
            f"{count - 1} in increasing order"
        )
    return replace(config, num_hidden_layers=len(layers))


def select_layers(
    weights: Mapping[str, np.ndarray], layers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns the weights {variable path: array} without those of the other layers.

    The given layers get the indices 0, 1, and so on; other weights stay as they are.
    """
    new_index = {old: new for new, old in enumerate(layers)}
    selected = {}
    for path, value in weights.items():
        match = _LAYER.match(path)
        if match is None:
            selected[path] = value
        elif int(match[1]) in new_index:
            rest = path[match.end() :]
            selected[f"encoder/layer_{new_index[int(match[1])]}/{rest}"] = value
    return selected


def extend_positions(config: BertConfig, count: int, where: str) -> BertConfig:
    """Returns the config with `count` positions; error messages start with `where`.

    Raises:
        InputError: the model has that many positions already.
    """
    if count <= config.max_position_embeddings:
        raise InputError(
            f"{where}: the model has {config.max_position_embeddings} positions; expected more"
        )
    return replace(config, max_position_embeddings=count)


def new_positions(table: np.ndarray, count: int, method: str) -> np.ndarray:
    """Returns a table of position embeddings with more rows, [count, H].

    Args:
        table: the table of the model, [positions, H].
        count: the number of rows of the new table.
        method: `interpolate` stretches the table, so that its first and last row stay the first and
            the last (linear, as Chen et al. 2023 do for rotary positions); `tile` repeats it, so
            that the first rows stay the same (Beltagy et al. 2020, section 5).
    """
    old = len(table)
    if method == "tile":
        return table[np.arange(count) % old]
    places = np.linspace(0.0, old - 1.0, count)
    lower = np.minimum(places.astype(np.int64), old - 1)
    upper = np.minimum(lower + 1, old - 1)
    share = (places - lower)[:, np.newaxis]
    return ((1.0 - share) * table[lower] + share * table[upper]).astype(table.dtype)
