"""Loads SavedModels, and keeps the highest version of a model loaded.

A new highest version is loaded while the old one is served, and then replaces it. The served
version is reloaded in the same way if its files change, and stays loaded if it is deleted. A
version that fails to load is skipped until its files change.
"""

import json
import re
from collections.abc import Collection, Mapping
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
from keras_bert.export.engines import ANY_ENGINE, Engine, EngineRequest, open_engine
from keras_bert.export.inputs import failed_check
from keras_bert.export.saved_model import WARMUP_FILE
from keras_bert.export.version_folders import (
    INFO,
    MODEL_FILE,
    describe_files,
    find_versions,
    require_version,
)
from keras_bert.server.protocol import DEFAULT_SIGNATURE, Arrays, Input, RestError

# TensorFlow's messages contain local paths, which clients must not see.
_LOAD_ERROR = "The version cannot be loaded; the log of the server has the details"
_END_OF_PYTHON_TRACE = "<stack traces unavailable>\n"

# TensorFlow's error codes -> TensorFlow Serving's HTTP statuses; 500 for all others.
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
    """A loaded version of a model.

    Attributes:
        engine: the engine that runs the signatures.
        signatures: {signature: {input name: dtype and shape}}.
        output_shapes: {signature: the shapes of its outputs}, as in `Input`.
        batched: the signatures whose inputs and outputs all have a first dimension of any size.
        signature_def: the signatures in the format of TensorFlow Serving's metadata.
        export: the content of export.json; None if the file is missing or invalid.
    """

    number: int
    engine: Engine
    signatures: dict[str, dict[str, Input]]
    output_shapes: dict[str, list[tuple[int | None, ...] | None]]
    batched: frozenset[str]
    signature_def: dict[str, Any]
    export: dict[str, Any] | None

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Runs a signature on {input: array}, and returns {output: array}.

        Raises:
            RestError: TensorFlow raises an error.
        """
        tensors = {
            name: tf.constant(array, tf.string if array.dtype == object else array.dtype)
            for name, array in inputs.items()
        }
        try:
            outputs = self.engine.functions[signature](**tensors)
            return {
                name: np.asarray(value.numpy(), object if value.dtype == tf.string else None)
                for name, value in outputs.items()
            }
        except tf.errors.OpError as error:
            raise RestError(_message(error), _STATUSES.get(error.error_code, 500)) from error


def load_version(folder: Path, request: EngineRequest = ANY_ENGINE) -> Version:
    """Loads the SavedModel in DIR/NUMBER and its engine, and runs its warm-up requests.

    If the files are invalid, any exception may be raised.
    """
    proto = saved_model_pb2.SavedModel.FromString((folder / MODEL_FILE).read_bytes())
    model = tf.saved_model.load(str(folder))
    export = _read_info(folder / INFO)
    engine = open_engine(folder, model, export, request)
    definitions = dict(proto.meta_graphs[0].signature_def.items())
    described = {
        name: MessageToDict(
            definition,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for name, definition in definitions.items()
    }
    signatures = {
        name: {key: _input(tensor) for key, tensor in sorted(definitions[name].inputs.items())}
        for name in model.signatures
    }
    batched = frozenset(name for name in model.signatures if _is_batched(definitions[name]))
    version = Version(
        number=int(folder.name),
        engine=engine,
        signatures=signatures,
        output_shapes={
            name: [_sizes(tensor) for tensor in definitions[name].outputs.values()]
            for name in model.signatures
        },
        batched=batched,
        signature_def=described,
        export=export,
    )
    _warm_up(version, folder / WARMUP_FILE)
    return version


class Versions:
    """The versions in a model's folder, which run on the engine that `request` selects.

    `current` is the served version; None only before `start`.
    """

    def __init__(self, folder: Path, request: EngineRequest = ANY_ENGINE):
        self.folder = folder
        self._request = request
        self.current: Version | None = None
        self._states: dict[int, tuple[str, str]] = {}  # number -> state, error message
        self._errors: dict[int, str] = {}  # number -> the loading error in the last check
        self._loaded: tuple = ()  # the served version's files when it was loaded
        self._broken: dict[int, tuple] = {}  # number -> its files when loading failed
        self._seen: dict[int, tuple] = {}  # number -> its files at the last check
        self._is_deleted = False

    def start(self) -> None:
        """Loads the highest version that can be loaded; raises an InputError if there is none."""
        try:
            self._check(require_version(self.folder), require_unchanged=False)
        except OSError as error:
            raise InputError(f"--export_dir={self.folder}: {error.strerror}") from None
        if self.current is None:
            number = max(self._errors)
            raise InputError(
                f"--export_dir={self.folder}: cannot load version {number}: {self._errors[number]}"
            )

    def refresh(self) -> bool:
        """Loads a version that is new or changed; returns whether the served version has changed.

        A version is loaded only if its files are the same in two consecutive checks, because it may
        still be incomplete.
        """
        return self._check(find_versions(self.folder, MODEL_FILE), require_unchanged=True)

    def _check(self, numbers: Mapping[int, Path], require_unchanged: bool) -> bool:
        seen = self._seen
        self._seen = {number: describe_files(path) for number, path in numbers.items()}
        self._errors = {}
        before = self.current
        for number in sorted(numbers, reverse=True):
            files = self._seen[number]
            is_served = before is not None and number == before.number
            if is_served and files == self._loaded:
                self._states[number] = ("AVAILABLE", "")
                break
            can_load = not require_unchanged or files == seen.get(number)
            can_load = can_load and files != self._broken.get(number)
            if (can_load and self._load(number, numbers[number])) or is_served:
                break
        if self.current is not None:  # Otherwise `start` raises an error.
            self._report(numbers)
        return self.current is not before

    def states(self) -> dict[int, tuple[str, str]]:
        """Returns {number: (state, error message)} of all known versions, the highest first.

        States are those of TensorFlow Serving, such as AVAILABLE. The message is "" without an
        error.
        """
        return dict(sorted(self._states.items(), reverse=True))

    def _load(self, number: int, path: Path) -> bool:
        before = self.current
        is_served = before is not None and before.number == number
        if not is_served:
            self._states[number] = ("LOADING", "")
        try:
            version = load_version(path, self._request)
        # A broken folder can raise any exception, and must not stop the server.
        except Exception as error:
            self._errors[number] = " ".join(str(error).split()) or type(error).__name__
            # If the served version's files break, the loaded model stays in use.
            self._states[number] = ("AVAILABLE" if is_served else "END", _LOAD_ERROR)
            self._broken[number] = self._seen[number]
            return False
        self.current, self._loaded = version, self._seen[number]
        self._states[number] = ("AVAILABLE", "")
        if before is not None and not is_served:
            self._states[before.number] = ("END", "")
        engine = version.engine
        where = (number, self.folder, engine.name, engine.precision)
        logging.info("Serving version %d of %s on %s, %s", *where)
        return True

    def _report(self, numbers: Collection[int]) -> None:
        for number, message in self._errors.items():
            logging.error("Cannot load version %d of %s: %s", number, self.folder, message)
        is_deleted = self.current.number not in numbers
        if is_deleted and not self._is_deleted:
            logging.warning(
                "Version %d was deleted from %s, which has no other loadable version; the server "
                "continues to serve it",
                self.current.number,
                self.folder,
            )
        self._is_deleted = is_deleted


def _message(error: tf.errors.OpError) -> str:
    """Returns the message of a check in the graph, or of TensorFlow, without what Python adds."""
    message = re.sub(r" \[Op:\w+\]$", "", error.message.rpartition(_END_OF_PYTHON_TRACE)[2])
    return failed_check(message) or message


def _input(tensor: Any) -> Input:
    return Input(_type_name(tf.dtypes.as_dtype(tensor.dtype)), _sizes(tensor))


def _sizes(tensor: Any) -> tuple[int | None, ...] | None:
    shape = tensor.tensor_shape
    sizes = tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    return None if shape.unknown_rank else sizes


def _is_batched(definition: Any) -> bool:
    tensors = [*definition.inputs.values(), *definition.outputs.values()]
    shapes = [_sizes(tensor) for tensor in tensors]
    return bool(definition.inputs) and all(shape and shape[0] is None for shape in shapes)


def _read_info(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        info = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        logging.warning("Ignoring %s: %s", path, error)
        return None
    if isinstance(info, dict):
        return info
    logging.warning("Ignoring %s: found %.100r; expected a JSON object", path, info)
    return None


def _type_name(dtype: tf.DType) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def _warm_up(version: Version, path: Path) -> None:
    if not path.exists():
        return
    from tensorflow_serving.apis import prediction_log_pb2

    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        version.run(name, {key: tf.make_ndarray(value) for key, value in request.inputs.items()})
