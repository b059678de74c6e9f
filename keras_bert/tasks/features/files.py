"""Writes features as JSONL, NumPy or TFRecord files.

    .jsonl     {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
               "values": [0.123456, ...]}, ...]}, ...]}, a line a line, as Google's tool writes it;
               pooled features have one entry, whose token is [CLS], mean or max
    .npy       pooled: float32 [lines, K, H]
    .npz       of pieces: values float32 [pieces, K, H], input_ids int32 [pieces], starts int64
               [lines + 1]: line i has the pieces starts[i] to starts[i + 1]
    .tfrecord  tf.train.Examples: linex_index, layers [K], values [K * H] or [t * K * H], and of
               pieces input_ids [t]

Features are written as they come; a file appears whole or not at all.
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
from keras_bert.common.files import appearing
from keras_bert.tasks.features.extract import LineFeatures

Writer = Callable[[Path, Iterable[LineFeatures]], None]


def check_not_input(input_file: str, output_file: Path) -> None:
    """Checks that features do not take the place of the text that they are of.

    Args:
        input_file: the text; "-" for standard input.
        output_file: the file that is to be.

    Raises:
        InputError: both are one file.
    """
    there = input_file != "-" and Path(input_file).exists() and output_file.exists()
    if there and output_file.samefile(input_file):
        raise InputError(f"--output_file={output_file} is the --input_file; expected another file")


def make_writer(
    path: Path,
    layers: Sequence[int],
    pooling: str,
    vocab: Sequence[str],
    hidden_size: int | None = None,
) -> Writer:
    """Chooses how to write by a file's name.

    Args:
        path: the file that is to be.
        layers: K, as they were asked for.
        pooling: as they were pooled.
        vocab: the pieces in the order of their ids.
        hidden_size: H, which arrays of no line at all have too.

    Returns:
        (path, features) -> None: writes them.

    Raises:
        InputError: no such format, or one that does not go with the pooling.
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
        f"--output_file={path}: with --pooling={pooling} expected a name in {expected}"
    )


def _write_jsonl(
    path: Path,
    features: Iterable[LineFeatures],
    layers: Sequence[int],
    vocab: Sequence[str],
    token: str | bool,
) -> None:
    with appearing(path) as partial, open(partial, "w", encoding="utf-8") as file:
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
    with appearing(path) as partial, open(partial, "wb") as file:
        array = _GrowingArray(file, shape)
        for line in features:
            array.append(line.values[np.newaxis])
        array.close()


def _write_npz(path: Path, features: Iterable[LineFeatures], shape: tuple[int, ...]) -> None:
    with appearing(path) as partial, tempfile.TemporaryFile(dir=path.parent) as values_file:
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
    """A float32 .npy file whose first axis grows; NumPy leaves room in the header for its size."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...]):
        self._file = file
        self._rows, self._rest = 0, shape  # The rest: what a row is like if none comes.

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
        appearing(path, failures=(tf.errors.OpError,)) as partial,
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
