"""Writes the requests that TensorFlow Serving runs before it serves a model.

The first call of a signature is many times slower than the next ones. With warm-up requests, that
call happens before any client waits for an answer.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.files import atomic_path

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")


def write_warmup_requests(
    export_dir: Path, model_name: str, requests: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
    """Writes the warm-up requests of an exported model, completely or not at all.

    They are stored in WARMUP_FILE, a TFRecord file with a PredictionLog for each signature. If
    tensorflow-serving-api (extra `serving`) is not installed, a warning is logged and no file is
    written.

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
