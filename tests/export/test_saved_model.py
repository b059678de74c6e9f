"""The version folder of a SavedModel, and its warm-up requests."""

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
from keras_bert.export.version_folders import (
    check_version,
    find_versions,
    next_version,
    version_number,
)


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


def test_same_warm_up_requests_give_the_same_bytes_and_texts_can_be_any_bytes(
    tmp_path: Path, read_warmup
):
    texts = np.array(["é", b"\xff"], object)
    requests = {"token_ids": dict.fromkeys("zayb", texts)}
    for name in ("1", "2"):
        write_warmup_requests(tmp_path / name, "name", requests)
    contents = [(tmp_path / name / WARMUP_FILE).read_bytes() for name in ("1", "2")]
    assert contents[0] == contents[1]
    (request,) = read_warmup(tmp_path / "1")
    assert list(request.inputs["y"].string_val) == ["é".encode(), b"\xff"]


def test_missing_package_is_logged_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis.prediction_log_pb2", None)
    write_warmup_requests(tmp_path, "name", {"serving_default": {"text": np.array(["a"])}})
    assert re.search(r"tensorflow-serving-api is not installed.*\[serving\]", caplog.text)
    assert not list(tmp_path.iterdir())


class Service(PredictionServiceServicer):
    """The part of TensorFlow Serving's gRPC service that clients of one model call."""

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


def test_grpc_client_prints_the_outputs(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write(tmp_path / "1")
    service = Service(tmp_path / "1")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = runpy.run_path(str(root / "docs" / "serving" / "grpc_client.py"))
    arguments = ["--label=stable", f"127.0.0.1:{port}", "name", "text=The cat", "text=sat"]
    client["main"](arguments)
    server.stop(None).wait()
    assert "score (2,) " in capsys.readouterr().out
    assert service.labels == ["stable"]


# --- which folders are versions, and the next number, for exports and the server ---


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("0", 0), ("10", 10), ("007", 7), (str(2**63 - 1), 2**63 - 1)),
        *(("", None), ("-1", None), (" 1", None), ("²", None), ("٣", None), ("tmp", None)),
        *((str(2**63), None), ("9" * 50, None)),
    ],
)
def test_version_is_a_number_that_fits_in_int64(name: str, number: int | None):
    assert version_number(name) == number


def test_file_is_not_served_but_its_number_is_taken(tmp_path: Path):
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").touch()
    (tmp_path / "3").touch()
    assert find_versions(tmp_path, "saved_model.pb") == {2: tmp_path / "2"}
    assert next_version(tmp_path) == 4
    with pytest.raises(InputError, match=r"3 already exists; expected .*such as .*/4$"):
        check_version(tmp_path / "3")


@pytest.mark.parametrize("names", [["1", "01"], ["01", "1"]])
def test_shorter_of_two_names_of_a_version_is_used(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "01" / "saved_model.pb").touch()
    assert find_versions(tmp_path) == {1: tmp_path / "1"}
    assert find_versions(tmp_path, "saved_model.pb") == {1: tmp_path / "01"}
    with pytest.raises(InputError, match=r"^export_dir=.*001: .*/1 already exists; .*/2$"):
        check_version(tmp_path / "001")


def test_unreadable_folder_is_reported_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def deny(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(InputError, match=r"^export_dir=.*/1: Permission denied"):
        check_version(tmp_path / "1")
