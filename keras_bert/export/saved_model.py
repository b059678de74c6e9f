"""Defines the signatures of a task, and writes them as a version folder for TensorFlow Serving.

    request -> preprocess -> rows of token ids -> network -> outputs -> decode -> answers

A signature of the SavedModel runs all steps. An engine such as OpenVINO runs only the network; the
SavedModel then also contains `preprocess` and `decode` of each signature as functions. Some
classifiers run these steps in NumPy instead (`ArraySteps`).

    saved_model.pb, variables/     the graph from text to answers, and its weights
    assets.extra/                  warm-up requests, if tensorflow-serving-api is installed
    engines/                       the network for other engines, if they were requested
    export.json                    the task, its labels, settings and signatures
    README.md                      the model card

The folder is written completely or not at all, so that a server never loads a partial version.
B rows, S length of a row, T tokens of all rows.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.export.engine_network import ATTRIBUTE
from keras_bert.export.engines import NetworkSpec
from keras_bert.export.inputs import UnpaddedRows
from keras_bert.export.network import Network
from keras_bert.export.version_folders import CARD, INFO
from keras_bert.files import atomic_path, write_json
from keras_bert.text.offsets import byte_to_char_offsets, valid_utf8

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")
_NETWORK_SPECS = (
    tf.TensorSpec([None], tf.int32, name="input_ids"),
    tf.TensorSpec([None], tf.int32, name="segment_ids"),
    tf.TensorSpec([None], tf.int64, name="row_splits"),
)

Outputs = Mapping[str, tf.Tensor]


class Steps(NamedTuple):
    """The steps of a signature around the network.

    Attributes:
        specs: the inputs of the signature, with their names.
        preprocess: converts the inputs of the signature into those of the network, `input_ids` and
            `segment_ids`, ragged int32 [B, (S)], and anything that `decode` needs: a nested
            structure that `tf.nest` can flatten.
        decode: converts the outputs of the network and the result of `preprocess` into answers.
    """

    specs: Sequence[tf.TensorSpec]
    preprocess: Callable[..., Any]
    decode: Callable[[Outputs, Any], dict[str, tf.Tensor]]


class ServedTask(tf.Module):
    """The SavedModel signatures of a task.

    Args:
        network: computes the outputs of the task's model.
        processor: preprocesses the inputs, and decodes the outputs.
    """

    def __init__(self, network: Network, processor: Any):
        super().__init__()
        self.network = network
        self.processor = processor

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        raise NotImplementedError

    def outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Runs the network, and returns the outputs that `spec` describes."""
        return self.network(input_ids, segment_ids)

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"logits": "row"})

    def run(self, signature: str, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Runs all steps of a signature."""
        steps = self.steps()[signature]
        prepared = steps.preprocess(
            *(tf.convert_to_tensor(x, s.dtype) for x, s in zip(inputs, steps.specs, strict=True))
        )
        outputs = self.outputs(prepared.input_ids, prepared.segment_ids)
        return steps.decode(outputs, prepared)

    def unpadded(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> UnpaddedRows:
        """Removes the padding of rows that the client has tokenized, int32 [B, S] each."""
        return UnpaddedRows.of_request(input_ids, input_mask, segment_ids, self.network.config)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Tokenizes texts [B] for the server, without truncation; it is not a signature.

        Returns:
            The `ids` of the tokens, and their `starts` and `stops` in characters of the text, int32
            [B, S] each, padded with -1.
        """
        ids, *offsets = self.processor.tokenizer.tokenize_with_offsets(text)
        counted = valid_utf8(text)
        starts, stops = (byte_to_char_offsets(counted, each) for each in offsets)
        rows = {"ids": ids, "starts": starts, "stops": stops}
        return {name: values.to_tensor(-1) for name, values in rows.items()}

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        return {name: self._function(name, steps.specs) for name, steps in self.steps().items()}

    def _function(self, name: str, specs: Sequence[tf.TensorSpec]) -> Callable:
        def signature(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.run(name, *inputs)

        # Named arguments, so that the function can be called as the loaded signature is.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [inspect.Parameter(spec.name, kind) for spec in specs]
        signature.__signature__ = inspect.Signature(names)
        return tf.function(signature, input_signature=list(specs), autograph=False)


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
        _add_functions(served)
    with atomic_path(export_dir, failures=(tf.errors.OpError,)) as folder:
        with _quiet():
            tf.saved_model.save(served, str(folder), signatures=signatures)
        if write_engines is not None:
            write_engines(folder)
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

    def described(specs: Mapping[str, tf.TensorSpec]) -> dict[str, list]:
        return {
            name: [spec.dtype.name, [-1 if size is None else size for size in spec.shape]]
            for name, spec in specs.items()
        }

    return {
        name: {
            "inputs": described(_inputs(function)),
            "outputs": described(function.structured_outputs),
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


def _add_functions(served: ServedTask) -> None:
    """Adds the steps of the signatures to a task's module, so that the SavedModel stores them.

        preprocess_NAME   inputs of the signature NAME -> token ids [T], segment ids [T], row splits
                          [B + 1], and the tensors that `decode_NAME` needs
        decode_NAME       outputs of the network, and these tensors -> the outputs of the signature
        network           token ids, segment ids, row splits -> outputs of the network

    They are not signatures: TensorFlow Serving ignores them.
    """
    functions = tf.Module()
    functions.network = network = _network_function(served)
    outputs = network.get_concrete_function().structured_outputs
    specs = [tf.TensorSpec(outputs[name].shape, outputs[name].dtype) for name in served.spec().per]
    for name, steps in served.steps().items():
        preprocess, decode = _step_functions(steps, list(served.spec().per), specs)
        setattr(functions, f"preprocess_{name}", preprocess)
        setattr(functions, f"decode_{name}", decode)
    setattr(served, ATTRIBUTE, functions)


def _network_function(served: ServedTask) -> Callable:
    def network(ids: tf.Tensor, segments: tf.Tensor, splits: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = (
            tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for values in (ids, segments)
        )
        return served.outputs(*rows)

    return tf.function(network, input_signature=_NETWORK_SPECS, autograph=False)


def _step_functions(
    steps: Steps, names: Sequence[str], specs: Sequence[tf.TensorSpec]
) -> tuple[Callable, Callable]:
    """Returns the functions `preprocess` and `decode` of a signature.

    `names` and `specs` describe the outputs of the network.
    """
    structure: list[Any] = []

    def preprocess(*inputs: tf.Tensor) -> list[tf.Tensor]:
        prepared = steps.preprocess(*inputs)
        structure[:] = [tf.nest.map_structure(tf.type_spec_from_value, prepared)]
        ids, segments = prepared.input_ids, prepared.segment_ids
        # `pack_sequence_as` expects no value for a None.
        parts = filter(tf.is_tensor, tf.nest.flatten(prepared, expand_composites=True))
        return [ids.values, segments.values, tf.cast(ids.row_splits, tf.int64), *parts]

    def decode(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = dict(zip(names, tensors[: len(names)], strict=True))
        prepared = tf.nest.pack_sequence_as(
            structure[0], tensors[len(names) :], expand_composites=True
        )
        return steps.decode(outputs, prepared)

    before = tf.function(preprocess, input_signature=list(steps.specs), autograph=False)
    parts = before.get_concrete_function().outputs[len(_NETWORK_SPECS) :]
    parts = [tf.TensorSpec(part.shape, part.dtype) for part in parts]
    return before, tf.function(decode, input_signature=[*specs, *parts], autograph=False)


def write_warmup_requests(
    export_dir: Path, model_name: str, requests: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
    """Writes the requests that TensorFlow Serving runs before it serves a model.

    The first call of a signature is many times slower than the next ones; with warm-up requests, it
    happens before any client waits. WARMUP_FILE is a TFRecord file with a PredictionLog for each
    signature. Without tensorflow-serving-api (extra `serving`), a warning is logged instead.

    Args:
        export_dir: the version folder.
        model_name: the name under which the model will be served.
        requests: {signature: {input name: array of the input's dtype}}, with texts as str or bytes.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
    except ImportError:
        logging.warning(
            "Skipping the warm-up requests: tensorflow-serving-api is not installed; they need it: "
            "pip install 'keras-bert-pipeline[serving]'"
        )
        return

    logs = []
    for signature, inputs in requests.items():
        log = PredictionLog()
        log.predict_log.request.model_spec.name = model_name
        log.predict_log.request.model_spec.signature_name = signature
        for name, value in inputs.items():
            log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        logs.append(log.SerializeToString(deterministic=True))
    with (
        atomic_path(export_dir / WARMUP_FILE, failures=(tf.errors.OpError,)) as partial,
        tf.io.TFRecordWriter(str(partial)) as writer,
    ):
        for log in logs:
            writer.write(log)
