"""Writes a served task as the folder of a version that TensorFlow Serving loads.

    saved_model.pb, variables/     the graph from text to answers, and its weights
    assets.extra/                  requests that warm a server up, where the package for it is there
    export.json                    the task, its labels, settings and signatures
    README.md                      the model card

The folder appears whole or not at all: a server that watches its parent never sees half of it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import appearing, write_json
from keras_bert.serving.warmup import write_warmup_requests

INFO = "export.json"
CARD = "README.md"


def write_saved_model(
    served: tf.Module,
    export_dir: Path,
    info: Mapping[str, object],
    card: Callable[[Mapping[str, object]], str],
    texts: Mapping[str, str],
) -> None:
    """Writes a version's folder.

    Args:
        served: a task with `signatures()`: {name: tf.function with an input signature}.
        export_dir: DIR/<version>; the version is a number, as TensorFlow Serving wants it.
        info: what export.json says.
        card: what export.json says -> what README.md says.
        texts: the texts of a request that warms a server up, by the names of the inputs.

    Raises:
        InputError: the model answers by what is not finite, or the place cannot be written.
    """
    signatures = {
        name: function.get_concrete_function() for name, function in served.signatures().items()
    }
    requests = {name: _request(function, texts) for name, function in signatures.items()}
    for name, function in signatures.items():
        _check_answer(export_dir, name, function, requests[name])
    with appearing(export_dir, failures=(tf.errors.OpError,)) as folder:
        with _quiet():
            tf.saved_model.save(served, str(folder), signatures=signatures)
        write_warmup_requests(folder, export_dir.absolute().parent.name, requests)
        info = {**info, "signatures": describe(signatures)}
        write_json(folder / INFO, info)
        (folder / CARD).write_text(card(info), encoding="utf-8")


def describe(
    signatures: Mapping[str, tf.types.experimental.ConcreteFunction],
) -> dict[str, dict[str, dict[str, list]]]:
    """Lists what signatures take and give.

    Args:
        signatures: {name: concrete function with named inputs and outputs}.

    Returns:
        {name: {"inputs": {name: [type, shape]}, "outputs": {name: [type, shape]}}}; -1 in a shape
        is any size.
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
    """Keeps TensorFlow from listing every variable that it renames."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _inputs(function: tf.types.experimental.ConcreteFunction) -> dict[str, tf.TensorSpec]:
    """Returns what a signature takes, by name."""
    return {spec.name: spec for spec in tf.nest.flatten(function.structured_input_signature)}


def _type_and_shape(spec: tf.TensorSpec) -> list:
    return [spec.dtype.name, [-1 if size is None else size for size in spec.shape]]


def _request(
    function: tf.types.experimental.ConcreteFunction, texts: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Makes a request of one row: texts where strings are asked for, else token ids."""
    request = {}
    for name, spec in _inputs(function).items():
        if spec.dtype != tf.string:
            # One segment: a model may have no other.
            value = 0 if name == "segment_ids" else 1
            request[name] = np.full([1, 8], value, spec.dtype.as_numpy_dtype)
        elif spec.shape.rank == 1:
            request[name] = np.array([texts[name]], object)
        else:  # Words that were split before.
            request[name] = np.array([next(iter(texts.values())).split()], object)
    return request


def _check_answer(
    export_dir: Path,
    name: str,
    function: tf.types.experimental.ConcreteFunction,
    request: Mapping[str, np.ndarray],
) -> None:
    """Answers a request: a server would refuse a model that fails on it."""
    answer = function(*(tf.constant(request[key]) for key in _inputs(function)))
    broken = [
        key
        for key, value in answer.items()
        if value.dtype.is_floating and not np.isfinite(value).all()
    ]
    if broken:
        raise InputError(
            f"{export_dir}: the model answers `{name}` by {', '.join(broken)} that is not finite; "
            "nothing is exported"
        )
