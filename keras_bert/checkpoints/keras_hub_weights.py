"""Reads the weights of a KerasHub preset from its HDF5 files.

HDF5 files can refer to other files of the machine; such weights are rejected.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from keras_bert.checkpoints.weights import Layout, StoredWeights
from keras_bert.common.errors import InputError

WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"

# A damaged file raises any of these: names that are not UTF-8, types that NumPy does not have.
_FAILURES = (OSError, RuntimeError, KeyError, TypeError, ValueError)


@contextlib.contextmanager
def open_weights(path: Path, layout: Layout) -> Iterator[StoredWeights]:
    """Opens the weights of a preset; they can be read while the context is open.

    Raises:
        InputError: a file is damaged, or refers to other files.
    """
    files = {"backbone": path / WEIGHTS, "task": path / TASK_WEIGHTS}
    values: dict[str, h5py.Dataset] = {}
    with contextlib.ExitStack() as stack:
        for part, file in files.items():
            if not file.is_file():
                continue
            try:
                opened = stack.enter_context(h5py.File(file, "r"))
                opened.visititems(partial(_collect, values, part, file))
            except InputError:
                raise
            except _FAILURES as error:
                raise InputError(f"{file}: not a valid HDF5 file ({error})") from None
        slots = [name for name in values if name.startswith("task/optimizer/")]
        for name in slots:
            del values[name]
        yield StoredWeights(
            source=str(path),
            layout=layout,
            shapes={name: tuple(value.shape) for name, value in values.items()},
            read=lambda name: _array(path, values[name]),
            skipped=len(slots),
        )


def _collect(values: dict[str, h5py.Dataset], part: str, file: Path, name: str, found: Any) -> None:
    if isinstance(found, h5py.Dataset):
        # The values of such a dataset are in other files. `visititems` skips links to other files.
        if found.external or found.is_virtual:
            kind = "has external storage" if found.external else "is a virtual dataset"
            raise InputError(
                f"{file}: {name} {kind}, which refers to other files; expected all weights in "
                "this file"
            )
        if found.shape is None:
            raise InputError(f"{file}: {name} is empty; expected an array of numbers")
        # The first versions of Keras used another name for the group of a model's layers.
        values[f"{part}/{name.replace('_layer_checkpoint_dependencies/', 'layers/', 1)}"] = found


def _array(path: Path, value: h5py.Dataset) -> np.ndarray:
    try:
        array = value[()]
        # HDF5 has no bfloat16: Keras stores the raw bytes, and the dtype as an attribute.
        is_bfloat16 = value.attrs.get("dtype") == "bfloat16" and value.dtype.itemsize == 2
    except _FAILURES as error:
        raise InputError(f"{path}: {value.name} cannot be read ({error})") from None
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
