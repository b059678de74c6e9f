"""Calls an exported model on TensorFlow Serving over gRPC.

    python grpc_client.py localhost:8500 mrpc text="It rained." text_pair="The sun shone."
    python grpc_client.py --label=stable localhost:8500 mrpc text="a" text_pair="b"

Repeat a name to send a batch. Needs tensorflow-serving-api.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import grpc
import tensorflow as tf
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub


def main(arguments: Sequence[str] | None = None) -> None:
    """Sends one request and prints the outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="HOST:PORT of the server's gRPC API")
    parser.add_argument("model", help="the model's name")
    parser.add_argument(
        "inputs", nargs="+", metavar="name=text", help="a text for an input of the signature"
    )
    parser.add_argument("--signature", default="serving_default", help="name of the signature")
    parser.add_argument("--label", help="label of the version, such as stable")
    parser.add_argument("--timeout", type=float, default=10.0, help="timeout in seconds")
    flags = parser.parse_args(arguments)

    texts = defaultdict(list)
    for argument in flags.inputs:
        name, _, text = argument.partition("=")
        texts[name].append(text)

    request = PredictRequest()
    request.model_spec.name = flags.model
    request.model_spec.signature_name = flags.signature
    if flags.label:
        request.model_spec.version_label = flags.label
    for name, batch in texts.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(batch))

    with grpc.insecure_channel(flags.address) as channel:
        response = PredictionServiceStub(channel).Predict(request, timeout=flags.timeout)
    for name, value in sorted(response.outputs.items()):
        array = tf.make_ndarray(value)
        print(name, array.shape, array.tolist())


if __name__ == "__main__":
    main()
