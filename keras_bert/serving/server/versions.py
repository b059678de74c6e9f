"""Which version of the model is served: folders DIR/1, DIR/2, ... in, the highest that loads out.

`load_version` reads a SavedModel: its signatures, its `export.json`, and its warm-up requests,
which it runs. `Versions` looks at DIR again and again: a new highest version is loaded beside the
old one and then takes its place; one that does not load is skipped until its files change; the
version that is served stays until there is another.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers the tokenizer's ops.
from absl import logging
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2

from keras_bert.errors import InputError
from keras_bert.serving.server.folder import (
    MODEL_FILE,
    describe_files,
    find_versions,
    require_version,
)
from keras_bert.serving.server.json_text import RestError
from keras_bert.serving.server.protocol import Arrays, Input

_PYTHON_SAYS = "<stack traces unavailable>\n"
_WARM_UP = Path("assets.extra") / "tf_serving_warmup_requests"

# TensorFlow's error codes as TensorFlow Serving's HTTP statuses; the others are 500.
_STATUSES = {
    tf.errors.CANCELLED: 499,
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.DEADLINE_EXCEEDED: 504,
    tf.errors.NOT_FOUND: 404,
    tf.errors.ALREADY_EXISTS: 409,
    tf.errors.PERMISSION_DENIED: 403,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.ABORTED: 409,
    tf.errors.OUT_OF_RANGE: 400,
    tf.errors.UNIMPLEMENTED: 501,
    tf.errors.UNAVAILABLE: 503,
}


@dataclass(eq=False, frozen=True)
class Version:
    """A loaded version.

    Args:
        number: its number.
        model: what TensorFlow loaded; the functions hold its variables weakly.
        functions: signature -> its TensorFlow function.
        signatures: signature -> input -> its type and shape.
        signature_def: the signatures as TensorFlow Serving's metadata shows them.
        export: what export.json says; None where there is none.
    """

    number: int
    model: Any
    functions: dict[str, Any]
    signatures: dict[str, dict[str, Input]]
    signature_def: dict[str, Any]
    export: dict[str, Any] | None

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Runs a signature.

        Args:
            signature: its name.
            inputs: an array an input.

        Returns:
            An array an output.

        Raises:
            RestError: TensorFlow fails.
        """
        tensors = {
            name: tf.constant(array, tf.string if array.dtype == object else array.dtype)
            for name, array in inputs.items()
        }
        try:
            outputs = self.functions[signature](**tensors)
            return {
                name: np.asarray(value.numpy(), object if value.dtype == tf.string else None)
                for name, value in outputs.items()
            }
        except tf.errors.OpError as error:
            raise RestError(_STATUSES.get(error.error_code, 500), _message(error)) from error


def load_version(folder: Path) -> Version:
    """Loads a SavedModel and runs its warm-up requests.

    Args:
        folder: DIR/NUMBER.

    Returns:
        The version. Whatever a broken folder makes TensorFlow raise comes through.
    """
    proto = saved_model_pb2.SavedModel.FromString((folder / MODEL_FILE).read_bytes())
    model = tf.saved_model.load(str(folder))
    functions = dict(model.signatures)
    described = {
        name: MessageToDict(
            definition,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for name, definition in proto.meta_graphs[0].signature_def.items()
    }
    signatures = {
        name: {key: _input(tensor) for key, tensor in sorted(definition.inputs.items())}
        for name, definition in proto.meta_graphs[0].signature_def.items()
        if name in functions
    }
    notes = folder / "export.json"
    export = json.loads(notes.read_text("utf-8")) if notes.exists() else None
    version = Version(int(folder.name), model, functions, signatures, described, export)
    _warm_up(version, folder / _WARM_UP)
    return version


class Versions:
    """The versions under a folder.

    Args:
        folder: DIR.

    Attributes:
        current: the version that is served; None before `refresh` found one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.current: Version | None = None
        self._states: dict[int, tuple[str, str]] = {}  # number -> state, what went wrong
        self._broken: dict[int, tuple] = {}  # number -> its files when it did not load
        self._seen: dict[int, tuple] = {}  # number -> its files at the last look
        self._missed = False

    def start(self) -> None:
        """Loads the highest version that loads.

        Raises:
            InputError: there is none.
        """
        require_version(self.folder)
        numbers = find_versions(self.folder)
        self._seen = {number: describe_files(path) for number, path in numbers.items()}
        self.refresh()
        if self.current is None:
            wrong = self._states[max(numbers)][1]
            raise InputError(f"--export_dir={self.folder}: version {max(numbers)}: {wrong}")

    def refresh(self) -> bool:
        """Looks at the folder, and loads what is new.

        A folder's files have to be the same at two looks in a row, so that one that is being
        written is left alone.

        Returns:
            Whether another version is served now.
        """
        numbers = find_versions(self.folder)
        seen, self._seen = (
            self._seen,
            {number: describe_files(path) for number, path in numbers.items()},
        )
        before, failed = self.current, []
        for number in sorted(numbers, reverse=True):
            if before is not None and number == before.number:
                break
            files = self._seen[number]
            if files != seen.get(number) or files == self._broken.get(number):
                continue
            if self._load(number, numbers[number]):
                break
            failed.append(number)
        if self.current is not None:  # Otherwise `start` says it.
            self._report(failed, numbers)
        return self.current is not before

    def states(self) -> dict[int, tuple[str, str]]:
        """The versions that were seen.

        Returns:
            Number -> TensorFlow Serving's state (AVAILABLE, ...) and what went wrong, or "".
        """
        return dict(sorted(self._states.items(), reverse=True))

    def _load(self, number: int, path: Path) -> bool:
        self._states[number] = ("LOADING", "")
        try:
            version = load_version(path)
        # A broken folder can raise anything, and must not end the server.
        except Exception as error:
            wrong = " ".join(str(error).split()) or type(error).__name__
            self._states[number] = ("END", wrong)
            self._broken[number] = self._seen[number]
            return False
        before, self.current = self.current, version
        self._states[number] = ("AVAILABLE", "")
        if before is not None and before.number != number:
            self._states[before.number] = ("END", "")
        logging.info("version %d of %s is served", number, self.folder)
        return True

    def _report(self, failed: list[int], numbers: Collection[int]) -> None:
        for number in failed:
            wrong = self._states[number][1]
            logging.error("version %d of %s does not load: %s", number, self.folder, wrong)
        missed = self.current.number not in numbers
        if missed and not self._missed:
            logging.warning(
                "version %d is gone from %s, which has no other that loads: it is served on",
                self.current.number,
                self.folder,
            )
        self._missed = missed


def _message(error: tf.errors.OpError) -> str:
    """What TensorFlow Serving would say: without what Python adds before and after."""
    return re.sub(r" \[Op:\w+\]$", "", error.message.rpartition(_PYTHON_SAYS)[2])


def _input(tensor: Any) -> Input:
    shape = tensor.tensor_shape
    sizes = tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    return Input(
        _type_name(tf.dtypes.as_dtype(tensor.dtype)), None if shape.unknown_rank else sizes
    )


def _type_name(dtype: tf.DType) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def _warm_up(version: Version, path: Path) -> None:
    if not path.exists():
        return
    from tensorflow_serving.apis import prediction_log_pb2

    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        name = request.model_spec.signature_name or "serving_default"
        version.run(name, {key: tf.make_ndarray(value) for key, value in request.inputs.items()})
