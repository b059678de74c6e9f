"""Writes the requests that TensorFlow Serving replays before it serves a model.

    {signature: {input: array}}  ->  assets.extra/tf_serving_warmup_requests

A TFRecord file of PredictionLog messages, one a signature. The first call of a signature is many
times slower than the next one; so nobody waits for it. If a request of the file fails, TensorFlow
Serving does not load the model.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.files import appearing

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")


def write_warmup_requests(
    export_dir: Path, model_name: str, requests: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
    """Writes the requests that warm up an exported model, whole or not at all.

    Without the package of the extra `serving` it writes none, and says so.

    Args:
        export_dir: a version's folder, which holds saved_model.pb.
        model_name: the name that clients will ask for.
        requests: {signature: {input: array of its type}}; texts are str or bytes.

    Raises:
        InputError: the place cannot be written.
    """
    try:
        from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
    except ImportError:
        logging.warning(
            "no warm-up requests: the package tensorflow-serving-api is missing; "
            "pip install -e '.[serving]'"
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
        appearing(export_dir / WARMUP_FILE, failures=(tf.errors.OpError,)) as partial,
        tf.io.TFRecordWriter(str(partial)) as writer,
    ):
        for log in logs:
            writer.write(log)
