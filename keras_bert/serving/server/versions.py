"""Serves the highest version of a model that loads.

`load_version` reads a SavedModel: its signatures, its `export.json`, and its warm-up requests,
which it runs. `Versions` looks at DIR again and again: a new highest version is loaded beside the
old one and then takes its place, and so is the one that is served if its files have changed; one
that does not load is skipped until its files change; the version that is served stays until there
is another.
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

from keras_bert.common.errors import InputError
from keras_bert.serving.saved_model import INFO
from keras_bert.serving.server.errors import RestError
from keras_bert.serving.server.folder import MODEL_FILE, describe_files, require_version
from keras_bert.serving.server.protocol import DEFAULT_SIGNATURE, Arrays, Input
from keras_bert.serving.version_folders import find_versions
from keras_bert.serving.warmup import WARMUP_FILE

_PYTHON_SAYS = "<stack traces unavailable>\n"

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
        batched: the signatures that take and give a row for each example, however many.
        signature_def: the signatures as TensorFlow Serving's metadata shows them.
        export: what export.json says; None where there is none, or it says nothing.
    """

    number: int
    model: Any
    functions: dict[str, Any]
    signatures: dict[str, dict[str, Input]]
    batched: frozenset[str]
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
        for name in functions
    }
    batched = frozenset(name for name in functions if _is_batched(definitions[name]))
    version = Version(
        number=int(folder.name),
        model=model,
        functions=functions,
        signatures=signatures,
        batched=batched,
        signature_def=described,
        export=_read_info(folder / INFO),
    )
    _warm_up(version, folder / WARMUP_FILE)
    return version


class Versions:
    """The versions under a folder.

    Args:
        folder: DIR.

    Attributes:
        current: the version that is served; None before `start`, never after.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.current: Version | None = None
        self._states: dict[int, tuple[str, str]] = {}  # number -> state, what went wrong
        self._loaded: tuple = ()  # the files of the version that is served, when it was loaded
        self._broken: dict[int, tuple] = {}  # number -> its files when it did not load
        self._seen: dict[int, tuple] = {}  # number -> its files at the last look
        self._missed = False

    def start(self) -> None:
        """Loads the highest version that loads.

        Raises:
            InputError: there is none.
        """
        try:
            self._look(require_version(self.folder), waits=False)
        except OSError as error:
            raise InputError(f"--export_dir={self.folder}: {error.strerror}") from None
        if self.current is None:
            number, (_, wrong) = next(iter(self.states().items()))
            raise InputError(f"--export_dir={self.folder}: version {number}: {wrong}")

    def refresh(self) -> bool:
        """Looks at the folder, and loads what is new or was changed.

        A version's files have to be the same at two looks in a row, so that one that is being
        written is left alone.

        Returns:
            Whether another version is served now.
        """
        return self._look(find_versions(self.folder, MODEL_FILE), waits=True)

    def _look(self, numbers: Mapping[int, Path], waits: bool) -> bool:
        seen = self._seen
        self._seen = {number: describe_files(path) for number, path in numbers.items()}
        before, failed = self.current, []
        for number in sorted(numbers, reverse=True):
            files = self._seen[number]
            is_served = before is not None and number == before.number
            if is_served and files == self._loaded:
                self._states[number] = ("AVAILABLE", "")
                break
            is_quiet = not waits or files == seen.get(number)
            if is_quiet and files != self._broken.get(number):
                if self._load(number, numbers[number]):
                    break
                failed.append(number)
            if is_served:
                break
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
        before = self.current
        is_served = before is not None and before.number == number
        if not is_served:
            self._states[number] = ("LOADING", "")
        try:
            version = load_version(path)
        # A broken folder can raise anything, and must not end the server.
        except Exception as error:
            wrong = " ".join(str(error).split()) or type(error).__name__
            # A version that was changed for the worse is served as it was.
            self._states[number] = ("AVAILABLE" if is_served else "END", wrong)
            self._broken[number] = self._seen[number]
            return False
        self.current, self._loaded = version, self._seen[number]
        self._states[number] = ("AVAILABLE", "")
        if before is not None and not is_served:
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
        logging.warning("%s is ignored: %s", path, error)
        return None
    if isinstance(info, dict):
        return info
    logging.warning("%s is ignored: expected an object, got %.100r", path, info)
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
