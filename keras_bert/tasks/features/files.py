"""Writes features to JSONL, NumPy or TFRecord files.

    .jsonl     {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
               "values": [0.123456, ...]}, ...]}, ...]}, one object per line, in the format of
               Google's tool; pooled features have one entry, whose token is [CLS], mean or max
    .npy       pooled features: float32 [lines, K, H]
    .npz       features of tokens: values float32 [tokens, K, H], input_ids int32 [tokens], starts
               int64 [lines + 1]: line i has the tokens starts[i] to starts[i + 1]
    .tfrecord  tf.train.Examples: linex_index, layers [K], values [K * H] or [t * K * H], and for
               features of tokens input_ids [t]

Features are written as they are computed. The file gets its name only when it is complete.

K layers, H hidden size, t tokens of a line.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path
from keras_bert.tasks.features.extract import LineFeatures

Writer = Callable[[Path, Iterable[LineFeatures]], None]


def check_not_input(input_file: str, output_file: Path) -> None:
    """Raises InputError if the output file is the input file; "-" is standard input."""
    both_exist = input_file != "-" and Path(input_file).exists() and output_file.exists()
    if both_exist and output_file.samefile(input_file):
        raise InputError(
            f"--output_file={output_file} is also the --input_file; expected another file"
        )


def make_writer(
    path: Path,
    layers: Sequence[int],
    pooling: str,
    vocab: Sequence[str],
    hidden_size: int | None = None,
) -> Writer:
    """Returns a function that writes features to a file, in the format of the suffix of `path`.

    Args:
        path: its suffix is .jsonl, .npy, .npz or .tfrecord.
        layers: indices of the K layers, as they are written to .jsonl and .tfrecord files.
        pooling: the pooling of the features, as in `FeatureSettings`.
        vocab: the tokens in the order of their ids.
        hidden_size: H, for the shape of an array without lines.

    Raises:
        InputError: the suffix is unknown, or the format does not support the pooling.
    """
    pooled = pooling != "none"
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        token = {"cls": "[CLS]"}.get(pooling, pooling)
        return lambda path, features: _write_jsonl(path, features, layers, vocab, pooled and token)
    if suffix == ".tfrecord":
        return lambda path, features: _write_tfrecord(path, features, layers, pooled)
    shape = (len(layers), hidden_size) if hidden_size else ()
    if suffix == ".npy" and pooled:
        return lambda path, features: _write_npy(path, features, shape)
    if suffix == ".npz" and not pooled:
        return lambda path, features: _write_npz(path, features, shape)
    expected = ".jsonl, .tfrecord or " + (".npy" if pooled else ".npz")
    raise InputError(
        f"--output_file={path}: got --pooling={pooling}; expected a file name that ends in "
        f"{expected}"
    )


def _write_jsonl(
    path: Path,
    features: Iterable[LineFeatures],
    layers: Sequence[int],
    vocab: Sequence[str],
    token: str | bool,
) -> None:
    with atomic_path(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for line in features:
            tokens = [token] if token else [vocab[index] for index in line.input_ids]
            rounded = np.round(line.values.astype(np.float64), 6).tolist()
            content = [
                {
                    "token": token,
                    "layers": [
                        {"index": layer, "values": values}
                        for layer, values in zip(layers, by_layer, strict=True)
                    ],
                }
                for token, by_layer in zip(tokens, [rounded] if token else rounded, strict=True)
            ]
            file.write(json.dumps({"linex_index": line.index, "features": content}) + "\n")


def _write_npy(path: Path, features: Iterable[LineFeatures], shape: tuple[int, ...]) -> None:
    with atomic_path(path) as partial, open(partial, "wb") as file:
        array = _GrowingArray(file, shape)
        for line in features:
            array.append(line.values[np.newaxis])
        array.close()


def _write_npz(path: Path, features: Iterable[LineFeatures], shape: tuple[int, ...]) -> None:
    with atomic_path(path) as partial, tempfile.TemporaryFile(dir=path.parent) as values_file:
        values, input_ids, starts = _GrowingArray(values_file, shape), [], [0]
        for line in features:
            values.append(line.values)
            input_ids.append(line.input_ids)
            starts.append(starts[-1] + len(line.input_ids))
        values.close()
        with zipfile.ZipFile(partial, "w") as archive:
            values_file.seek(0)
            with archive.open("values.npy", "w", force_zip64=True) as member:
                shutil.copyfileobj(values_file, member, 2**20)
            for name, array in (
                ("input_ids", np.concatenate([np.zeros([0], np.int32), *input_ids])),
                ("starts", np.array(starts, np.int64)),
            ):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


class _GrowingArray:
    """A float32 .npy file that grows along its first axis.

    The header is rewritten in place when the size is known; NumPy adds enough padding for this.
    """

    def __init__(self, file: BinaryIO, shape: tuple[int, ...]):
        self._file = file
        self._rows, self._rest = 0, shape  # `_rest`: the shape of a row, replaced by the first row.

    def append(self, values: np.ndarray) -> None:
        if not self._rows:
            self._rest = values.shape[1:]
            self._write_header()
        self._rows += len(values)
        self._file.write(np.ascontiguousarray(values, np.float32))

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.flush()

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": "<f4", "fortran_order": False, "shape": (self._rows, *self._rest)},
        )


def _write_tfrecord(
    path: Path, features: Iterable[LineFeatures], layers: Sequence[int], pooled: bool
) -> None:
    def ints(values: Iterable[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with (
        atomic_path(path, failures=(tf.errors.OpError,)) as partial,
        tf.io.TFRecordWriter(str(partial)) as writer,
    ):
        for line in features:
            floats = tf.train.FloatList(value=line.values.ravel())
            named = {
                "linex_index": ints([line.index]),
                "layers": ints(layers),
                "values": tf.train.Feature(float_list=floats),
            }
            if not pooled:
                named["input_ids"] = ints(line.input_ids)
            example = tf.train.Example(features=tf.train.Features(feature=named))
            writer.write(example.SerializeToString(deterministic=True))
