"""The version folder of a SavedModel, and its warm-up requests."""

import os
import re
import runpy
import sys
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis.predict_pb2 import PredictResponse
from tensorflow_serving.apis.prediction_service_pb2_grpc import (
    PredictionServiceServicer,
    add_PredictionServiceServicer_to_server,
)

from keras_bert.errors import InputError
from keras_bert.export.saved_model import WARMUP_FILE, write_saved_model, write_warmup_requests
from tests.disk import SmallDisk


class Served(tf.Module):
    """A model that returns the number of bytes of a text divided by a weight."""

    def __init__(self, weight: float, unused: int = 0):
        super().__init__()
        self.weight = tf.Variable(weight)
        self.unused = tf.Variable(tf.zeros([unused]))

    def signatures(self) -> dict:
        def score(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"score": tf.cast(tf.strings.length(text), tf.float32) / self.weight}

        spec = tf.TensorSpec([None], tf.string, name="text")
        return {"serving_default": tf.function(score, input_signature=[spec])}


def write(folder: Path, weight: float = 1.0) -> None:
    write_saved_model(Served(weight), folder, {}, lambda info: "", {"text": "A text."})


@pytest.mark.parametrize("weight", [0.0, np.nan])
def test_model_with_non_finite_outputs_is_rejected(weight: float, tmp_path: Path):
    with pytest.raises(
        InputError, match="`serving_default` returns values that are not finite in score;"
    ):
        write(tmp_path / "1", weight)
    assert not list(tmp_path.iterdir())


def test_every_file_is_flushed_to_disk_before_the_folder_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed = set()

    def fsync(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "1")
    names = {Path(name).name for name in flushed if "partial" in name}
    written = {path.name for path in (tmp_path / "1").rglob("*")}
    assert {"variables.index", "variables", "saved_model.pb", "assets.extra"} <= written
    assert written <= names


@pytest.mark.parametrize("free", [0, 8192, 1 << 16])
def test_export_to_a_full_disk_is_an_error_and_leaves_no_files(small_disk: SmallDisk, free: int):
    """The disk is full from the start, before the weights, or near the end of the weights."""
    served, folder = Served(1.0, unused=1 << 16), small_disk.path / "1"

    def export() -> None:
        write_saved_model(served, folder, {}, lambda info: "", {"text": "A text."})

    small_disk.fill(free)
    with pytest.raises(InputError, match=r"(?s)1: cannot be written \(.*[Nn]o space left"):
        export()
    assert os.listdir(small_disk.path) == []
    small_disk.release()
    export()
    assert (folder / "saved_model.pb").exists()


NAME = "ner"


class Service(PredictionServiceServicer):
    """The part of TensorFlow Serving's gRPC service that clients of one model call.

    Args:
        folder: a version's folder.
    """

    def __init__(self, folder: Path):
        self.model = tf.saved_model.load(str(folder))
        self.labels: list[str] = []

    def Predict(self, request, context):
        self.labels.append(request.model_spec.version_label)
        inputs = {key: tf.constant(tf.make_ndarray(v)) for key, v in request.inputs.items()}
        name = request.model_spec.signature_name
        response = PredictResponse(model_spec=request.model_spec)
        for key, value in self.model.signatures[name](**inputs).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response


@pytest.fixture(scope="module")
def service(export):
    """Starts a service of the tagger; returns it and its address."""
    service = Service(export("ner").folder)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_texts_can_be_str_or_any_bytes(tmp_path: Path, read_warmup):
    texts = np.array(["é", b"\xff"], object)
    write_warmup_requests(tmp_path, "name", {"serving_default": {"text": texts}})
    (request,) = read_warmup(tmp_path)
    assert list(request.inputs["text"].string_val) == ["é".encode(), b"\xff"]


def test_same_requests_give_the_same_bytes(tmp_path: Path):
    requests = {"token_ids": {name: np.ones([1, 8], np.int32) for name in "zayb"}}
    for name in ("1", "2"):
        write_warmup_requests(tmp_path / name, "name", requests)
    contents = [(tmp_path / name / WARMUP_FILE).read_bytes() for name in ("1", "2")]
    assert contents[0] == contents[1]


def test_missing_package_is_logged_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis.prediction_log_pb2", None)
    write_warmup_requests(tmp_path, "name", {"serving_default": {"text": np.array(["a"])}})
    assert re.search(r"tensorflow-serving-api is not installed.*\[serving\]", caplog.text)
    assert not list(tmp_path.iterdir())


def test_grpc_client_prints_the_outputs(root: Path, service, capsys: pytest.CaptureFixture[str]):
    client = runpy.run_path(str(root / "docs" / "serving" / "grpc_client.py"))
    arguments = ["--label=stable", service[1], NAME, "text=The cat", "text=sat"]
    client["main"](arguments)
    printed = capsys.readouterr().out
    for name in ("types", "texts", "starts", "ends", "scores"):
        assert f"{name} (2, " in printed
    assert service[0].labels[-1] == "stable"
