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
from google.protobuf import any_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    SignatureDefMap,
)
from tensorflow_serving.apis.predict_pb2 import PredictResponse
from tensorflow_serving.apis.prediction_service_pb2_grpc import (
    PredictionServiceServicer,
    PredictionServiceStub,
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
        content = (folder / "saved_model.pb").read_bytes()
        graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]
        self.signature_defs = graph.signature_def
        self.model = tf.saved_model.load(str(folder))
        self.labels: list[str] = []

    def Predict(self, request, context):
        self.labels.append(request.model_spec.version_label)
        name = request.model_spec.signature_name or "serving_default"
        wanted = self.signature_defs[name].inputs
        if request.inputs.keys() != wanted.keys() or any(
            request.inputs[key].dtype != wanted[key].dtype for key in wanted
        ):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name} takes {wanted}")
        inputs = {key: tf.constant(tf.make_ndarray(v)) for key, v in request.inputs.items()}
        response = PredictResponse(model_spec=request.model_spec)
        for key, value in self.model.signatures[name](**inputs).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def GetModelMetadata(self, request, context):
        known = SignatureDefMap(signature_def=self.signature_defs)
        packed = any_pb2.Any()
        packed.Pack(known)
        return GetModelMetadataResponse(
            model_spec=request.model_spec, metadata={"signature_def": packed}
        )


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


@pytest.mark.slow
def test_file_has_one_request_per_signature(export, read_warmup):
    folder = export("ner").folder
    specs = [request.model_spec for request in read_warmup(folder)]
    assert {spec.signature_name for spec in specs} == {"serving_default", "words", "token_ids"}
    assert {spec.name for spec in specs} == {folder.parent.name}
    # No version is set, because the folder may be copied to another number.
    assert not any(spec.WhichOneof("version_choice") for spec in specs)
    assert list((folder / "assets.extra").iterdir()) == [folder / WARMUP_FILE]


@pytest.mark.slow
def test_replayed_requests_match_direct_calls(export, service, read_warmup):
    exported = export("ner")
    with grpc.insecure_channel(service[1]) as channel:
        stub = PredictionServiceStub(channel)
        for request in read_warmup(exported.folder):
            response = stub.Predict(request, timeout=60)
            inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            expected = exported.call(request.model_spec.signature_name, inputs)
            assert response.outputs.keys() == expected.keys()
            for key, value in expected.items():
                answer = tf.make_ndarray(response.outputs[key])
                assert answer.shape == value.shape
                assert len(answer) == 1
                if value.dtype == np.float32:
                    np.testing.assert_allclose(answer, value, atol=1e-6)
                else:
                    assert answer.tolist() == value.tolist()


def test_service_returns_the_signatures(export, service):
    request = GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = NAME
    with grpc.insecure_channel(service[1]) as channel:
        response = PredictionServiceStub(channel).GetModelMetadata(request, timeout=60)
    known = SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(known)
    for name in export("ner").functions:
        assert known.signature_def[name].method_name == "tensorflow/serving/predict"


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
