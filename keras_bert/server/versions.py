"""Loads exports, and keeps the highest version of a model loaded.

A new highest version is loaded while the old one is served, and then replaces it. The served
version is reloaded in the same way if its files change, and stays loaded if it is deleted. A
version that fails to load is skipped until its files change.
"""

import asyncio
import functools
import gc
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers the tokenizer's ops.
from absl import logging
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2

from keras_bert.errors import InputError
from keras_bert.export.engine_network import call_saved
from keras_bert.export.engines import Engine
from keras_bert.export.inputs import failed_check
from keras_bert.export.saved_model import WARMUP_FILE
from keras_bert.export.version_folders import (
    INFO,
    MODEL_FILE,
    describe_files,
    find_versions,
    require_version,
)
from keras_bert.files import read_json
from keras_bert.server.protocol import (
    DEFAULT_SIGNATURE,
    TOKENIZE,
    TOKENIZE_SIGNATURE,
    Arrays,
    RestError,
)

# TensorFlow's messages contain local paths, which clients must not see.
_LOAD_ERROR = "The version cannot be loaded; the log of the server has the details"
_END_OF_PYTHON_TRACE = "<stack traces unavailable>\n"


class Version:
    """A loaded version of a model; its warm-up requests have been run.

    If the files are invalid, any exception may be raised. `engine` and `precision` are arguments of
    `Engine`.

    Attributes:
        export: the content of export.json.
        created: when export.json was written, in seconds since 1970.
        signatures: {signature: {"inputs": {name: [dtype, shape]}, "outputs": ...}}; also of the
            function TOKENIZE, which older exports do not have.
        signature_def: the signatures in the format of TensorFlow Serving's metadata.
    """

    def __init__(self, folder: Path, engine: str = "", precision: str = ""):
        self.number = int(folder.name)
        self.export = read_json(folder / INFO)
        self.created = int((folder / INFO).stat().st_mtime)
        proto = saved_model_pb2.SavedModel.FromString((folder / MODEL_FILE).read_bytes())
        self.signature_def = {
            name: MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in proto.meta_graphs[0].signature_def.items()
        }
        loaded = tf.saved_model.load(str(folder))
        self.engine = Engine(folder, loaded, self.export, engine, precision, _array_steps)
        self.signatures = self.export["signatures"]
        if hasattr(loaded, TOKENIZE):
            self.signatures = self.signatures | TOKENIZE_SIGNATURE
            self.engine.functions[TOKENIZE] = functools.partial(
                call_saved, getattr(loaded, TOKENIZE)
            )
        if (folder / WARMUP_FILE).exists():
            self._warm_up(folder / WARMUP_FILE)

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Runs a signature on {input: array}, and returns {output: array}."""
        try:
            return self.engine.functions[signature](**inputs)
        except tf.errors.OpError as error:
            status = 400 if isinstance(error, tf.errors.InvalidArgumentError) else 500
            # Without what Python adds to TensorFlow's message.
            message = error.message.rpartition(_END_OF_PYTHON_TRACE)[2]
            message = failed_check(message) or re.sub(r" \[Op:\w+\]$", "", message)
            raise RestError(message, status) from error

    def _warm_up(self, path: Path) -> None:
        from tensorflow_serving.apis import prediction_log_pb2

        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            name = request.model_spec.signature_name or DEFAULT_SIGNATURE
            self.run(name, {key: tf.make_ndarray(value) for key, value in request.inputs.items()})


def _array_steps(loaded: Any, info: Mapping[str, Any]) -> Any:
    # Imported here, because only engines need the tasks.
    from keras_bert.tasks import CLASSES
    from keras_bert.tasks.load import task_class

    name = info.get("task")  # A later release may have other tasks.
    return task_class(name).array_steps(loaded, info) if name in CLASSES else None


class Versions:
    """The versions in a model's folder, which run on an engine (see `Engine`).

    `current` is the served version; None only before `start`.
    """

    def __init__(self, folder: Path, engine: str = "", precision: str = ""):
        self.folder = folder
        self.current: Version | None = None
        self._engine = (engine, precision)
        self._states: dict[int, tuple[str, str]] = {}  # number -> state, error message
        self._files: dict[int, tuple] = {}  # number -> its files at the last check
        self._served_files: tuple = ()  # the served version's files when it was loaded
        self._broken: dict[int, tuple] = {}  # number -> its files when loading failed

    def start(self) -> None:
        """Loads the highest version that can be loaded; raises an InputError if there is none."""
        folders = require_version(self.folder)
        try:
            self._files = {number: describe_files(path) for number, path in folders.items()}
        except OSError as error:
            raise InputError(f"--export_dir={self.folder}: {error.strerror}") from None
        errors = self._load_highest(folders)
        if self.current is None:
            number = max(errors)
            raise InputError(
                f"--export_dir={self.folder}: cannot load version {number}: {errors[number]}"
            )
        self._log(errors)

    def refresh(self) -> bool:
        """Loads a version that is new or changed; returns whether the served version has changed.

        A version is loaded only if its files are the same in two consecutive checks, because it may
        still be incomplete.
        """
        before, files = self.current, self._files
        folders = find_versions(self.folder, MODEL_FILE)
        self._files = {number: describe_files(path) for number, path in folders.items()}
        changing = {number for number in folders if self._files[number] != files.get(number)}
        self._log(self._load_highest(folders, changing))
        return self.current is not before

    def states(self) -> dict[int, tuple[str, str]]:
        """Returns {number: (state, error message)} of all known versions, the highest first.

        States are those of TensorFlow Serving, such as AVAILABLE. The message is "" without an
        error.
        """
        return dict(sorted(self._states.items(), reverse=True))

    def _load_highest(
        self, folders: Mapping[int, Path], changing: set[int] = frozenset()
    ) -> dict[int, str]:
        """Loads the highest version that can be loaded, if not served; returns {number: error}."""
        errors: dict[int, str] = {}
        for number in sorted(folders, reverse=True):
            files, before = self._files[number], self.current
            is_served = before is not None and number == before.number
            if is_served and files == self._served_files:
                self._states[number] = ("AVAILABLE", "")
                break
            if number not in changing and files != self._broken.get(number):
                if not is_served:
                    self._states[number] = ("LOADING", "")
                try:
                    self.current = Version(folders[number], *self._engine)
                # A broken folder can raise any exception, and must not stop the server.
                except Exception as error:
                    errors[number] = " ".join(str(error).split()) or type(error).__name__
                    # If the served version's files break, the loaded model stays in use.
                    self._states[number] = ("AVAILABLE" if is_served else "END", _LOAD_ERROR)
                    self._broken[number] = files
                else:
                    self._served_files = files
                    if before is not None:
                        self._states[before.number] = ("END", "")
                    self._states[number] = ("AVAILABLE", "")
                    engine = self.current.engine
                    where = (number, self.folder, engine.name, engine.precision)
                    logging.info("Serving version %d of %s on %s, %s", *where)
                    break
            if is_served:
                break
        return errors

    def _log(self, errors: Mapping[int, str]) -> None:
        for number, message in errors.items():
            logging.error("Cannot load version %d of %s: %s", number, self.folder, message)


async def poll_versions(models: Iterable[Versions], seconds: float) -> None:
    """Loads new versions of all models, for which it looks at a fixed period, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        for versions in models:
            try:
                if await asyncio.to_thread(versions.refresh):
                    await asyncio.sleep(seconds)
                    collect_garbage()  # Frees the old version after its last requests.
            except OSError as error:
                # The folder may be unavailable for a while.
                logging.warning("Cannot check for new versions: %s", error)
            except Exception:  # Serving continues after any error.
                logging.exception("Cannot check for new versions")


def collect_garbage() -> None:
    """Frees unused objects, and exempts the others from later collections.

    A collection that visits all objects of TensorFlow stops the event loop for a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
