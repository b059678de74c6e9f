"""Writes a task as a version folder for TensorFlow Serving.

    saved_model.pb, variables/     the graph from text to answers, and its weights
    assets.extra/                  warm-up requests, if tensorflow-serving-api is installed
    engines/                       the network for other engines, if they were requested
    export.json                    the task, its labels, settings and signatures
    README.md                      the model card

The folder is written completely or not at all, so that a server never loads a partial version.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path, write_json
from keras_bert.serving.engines.saved_functions import add_functions
from keras_bert.serving.served_task import ServedTask
from keras_bert.serving.warmup import write_warmup_requests

INFO = "export.json"
CARD = "README.md"


def write_saved_model(
    served: ServedTask,
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
    texts: Mapping[str, str],
    write_engines: Callable[[Path], None] | None = None,
) -> None:
    """Writes a version folder with a SavedModel.

    Args:
        served: a task's module; its `signatures()` are {name: tf.function with an input signature}.
        export_dir: the version folder.
        info: the content of export.json without "signatures", which this function adds.
        card: converts the complete content of export.json to the text of README.md.
        texts: {input name: text} for the warm-up requests.
        write_engines: writes the files of other engines to a version folder; None for none.

    Raises:
        InputError: an output of the model is not finite, or the folder cannot be written.
    """
    signatures = {
        name: function.get_concrete_function() for name, function in served.signatures().items()
    }
    requests = {name: _request(function, texts) for name, function in signatures.items()}
    for name, function in signatures.items():
        _check_answer(export_dir, name, function, requests[name])
    if write_engines is not None:
        add_functions(served)
    with atomic_path(export_dir, failures=(tf.errors.OpError,)) as folder:
        with _quiet():
            tf.saved_model.save(served, str(folder), signatures=signatures)
        if write_engines is not None:
            write_engines(folder)
            info = {**info, "engines": {"network": served.spec().to_json()}}
        write_warmup_requests(folder, export_dir.absolute().parent.name, requests)
        info = {**info, "signatures": describe(signatures)}
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")


def describe(
    signatures: Mapping[str, tf.types.experimental.ConcreteFunction],
) -> dict[str, dict[str, dict[str, list]]]:
    """Lists the inputs and outputs of signatures, {name: concrete function with named outputs}.

    Returns:
        {signature: {"inputs": {name: [dtype, shape]}, "outputs": {name: [dtype, shape]}}}; -1 in a
        shape means any size.
    """
    return {
        name: {
            "inputs": {key: _type_and_shape(spec) for key, spec in _inputs(function).items()},
            "outputs": {
                key: _type_and_shape(spec) for key, spec in function.structured_outputs.items()
            },
        }
        for name, function in signatures.items()
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides TensorFlow's info messages, which contain the path of the temporary folder."""
    verbosity, level = logging.get_verbosity(), tf.get_logger().level
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        tf.get_logger().setLevel(level)


def _inputs(function: tf.types.experimental.ConcreteFunction) -> dict[str, tf.TensorSpec]:
    return {spec.name: spec for spec in tf.nest.flatten(function.structured_input_signature)}


def _type_and_shape(spec: tf.TensorSpec) -> list:
    return [spec.dtype.name, [-1 if size is None else size for size in spec.shape]]


def _request(
    function: tf.types.experimental.ConcreteFunction, texts: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Creates a request of one row: `texts` for string inputs, arbitrary token ids for others."""
    request = {}
    for name, spec in _inputs(function).items():
        if spec.dtype != tf.string:
            # A model may have only one segment id, which is 0.
            value = 0 if name == "segment_ids" else 1
            request[name] = np.full([1, 8], value, spec.dtype.as_numpy_dtype)
        elif spec.shape.rank == 1:
            request[name] = np.array([texts[name]], object)
        else:  # An input of words that are already split.
            request[name] = np.array([next(iter(texts.values())).split()], object)
    return request


def _check_answer(
    export_dir: Path,
    name: str,
    function: tf.types.experimental.ConcreteFunction,
    request: Mapping[str, np.ndarray],
) -> None:
    """Runs the warm-up request of a signature; raises InputError if an output is not finite.

    A request that fails raises an error here, because TensorFlow Serving would not load a model
    whose warm-up request fails.
    """
    answer = function(*(tf.constant(request[key]) for key in _inputs(function)))
    not_finite = [
        key
        for key, value in answer.items()
        if value.dtype.is_floating and not np.isfinite(value).all()
    ]
    if not_finite:
        raise InputError(
            f"{export_dir}: the signature `{name}` returns values that are not finite in "
            f"{', '.join(not_finite)}; expected finite values, so nothing was exported"
        )
