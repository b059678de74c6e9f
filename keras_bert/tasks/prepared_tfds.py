"""Opens datasets that TensorFlow Datasets has prepared on this machine.

Nothing is downloaded, because without a network `tfds.load` would retry for minutes. If a dataset
is not prepared, the error message shows the command that prepares it.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert.errors import InputError
from keras_bert.tasks.tables import Row


def find_prepared(name: str, data_dir: str = "") -> Path | None:
    """Returns the folder of the newest prepared version of a dataset; None if there is none.

    `name` is a dataset and config, such as `glue/mrpc`. `data_dir` is the folder of TensorFlow
    Datasets; empty for the environment variable TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    versions = (_root(data_dir) / name).glob("*/dataset_info.json")
    return max((path.parent for path in versions), key=_number, default=None)


def open_prepared(name: str, data_dir: str = "") -> Any:
    """Opens a prepared dataset (see `find_prepared`) as a tfds.core.DatasetBuilder.

    Raises:
        InputError: the dataset is not prepared, or tensorflow-datasets is not installed.
    """
    folder, root = find_prepared(name, data_dir), _root(data_dir)
    if folder is None:
        raise InputError(
            f"--tfds: {root / name}: no prepared dataset {name} was found, and nothing is "
            f"downloaded automatically; prepare it once with: tfds build {name} --data_dir={root}"
        )
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise InputError(
            "tensorflow-datasets is not installed; --tfds needs it: "
            "pip install 'keras-bert-pipeline[tfds]'"
        ) from None
    return tfds.builder_from_directory(folder)


def read_split(builder: Any, split: str) -> list[Row]:
    """Reads the rows of a split; raises InputError if there is no such split."""
    import tensorflow_datasets as tfds

    path = f"{builder.data_path}, split {split}"
    if split not in builder.info.splits:
        raise InputError(f"{path}: expected one of {', '.join(builder.info.splits)}")
    dataset = tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    return [Row(path, "row", n, _json_value(row)) for n, row in enumerate(dataset, start=1)]


def _json_value(value: Any) -> Any:
    """Converts a NumPy value of TensorFlow Datasets to a JSON value."""
    if isinstance(value, dict):
        return {name: _json_value(part) for name, part in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _root(data_dir: str) -> Path:
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _number(path: Path) -> list[int]:
    return [int(part) for part in path.name.split(".") if part.isdigit()]
