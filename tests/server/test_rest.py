"""The program responds as TensorFlow Serving does and keeps running after client errors."""

import json
import runpy
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from keras_bert.export.saved_model import write_warmup_requests
from keras_bert.programs import serve
from keras_bert.programs.program import call

pytestmark = pytest.mark.slow  # Starts servers.


def get(url: str) -> tuple[int, dict]:
    response = requests.get(url, timeout=20)
    return response.status_code, response.json()


def test_predicts_from_rows_and_from_columns(server):
    status, answer = server.ask({"instances": ["a", {"b64": "/w=="}]})
    assert status == 200
    assert [row["label"] for row in answer["predictions"]] == ["neutral", "neutral"]
    probabilities = [0.21194157, 0.57611686, 0.21194157]  # Processors differ in the last digit.
    assert answer["predictions"][0]["probabilities"] == pytest.approx(probabilities, abs=1e-6)
    status, answer = server.ask({"inputs": {"text": ["ab", "ä", ""]}})
    assert (status, answer["outputs"]["label"]) == (200, ["positive", "neutral", "negative"])
    ids = {"input_ids": [1, 2], "weights": [0.5, 1.0]}
    body = {"signature_name": "token_ids", "instances": [ids, ids]}
    assert server.ask(body) == (200, {"predictions": [2.5, 2.5]})
    assert server.ask(body, "/versions/1:predict")[0] == 200


def test_metadata_and_status(server):
    status, metadata = get(f"{server.url}/v1/models/model/metadata")
    assert (status, metadata["model_spec"]["version"]) == (200, "1")
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert signatures["token_ids"]["inputs"]["input_ids"]["dtype"] == "DT_INT32"
    status, answer = get(f"{server.url}/v1/models/model/versions/1")
    assert status == 200
    assert answer["model_version_status"] == [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]


def test_schema_describes_the_inputs_of_the_signatures(server):
    status, schema = get(f"{server.url}/openapi.json")
    assert (status, schema["openapi"]) == (200, "3.1.0")
    bodies = schema["components"]["schemas"]["Predict"]["anyOf"]
    assert [body["properties"]["signature_name"]["enum"] for body in bodies] == (
        [["serving_default", ""]] * 2 + [["token_ids"]] * 2
    )
    row = bodies[2]["properties"]["instances"]["anyOf"][0]["items"]
    assert row["required"] == ["input_ids", "weights"]
    ids = row["properties"]["input_ids"]
    assert ids == {
        "type": "array",
        "items": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (":predict", b"{", 400, "The request body is not JSON: "),
        (":predict", {"instances": ["boom"]}, 400, "a boom"),
        (
            ":predict",
            {"signature_name": "token_ids", "inputs": {"input_ids": [[1]], "weights": [[1], [2]]}},
            400,
            "Inputs must have equal numbers of rows: input_ids has 1, weights has 2",
        ),
        ("x:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(modelx)"),
        (
            "/versions/7:predict",
            {"instances": ["a"]},
            404,
            "Servable not found for request: Specific(model, 7)",
        ),
        (
            "/versions/9223372036854775808:predict",
            {"instances": ["a"]},
            400,
            "Failed to convert version: 9223372036854775808 to numeric.",
        ),
        (f"/versions/{'0' * 5000}7:predict", {}, 404, "request: Specific(model, 7)"),
        ("/labels/new:predict", {}, 400, "Unrecognized servable version label: new"),
        (":classify", {}, 400, "Malformed request: POST /v1/models/model:classify"),
        ("", {}, 400, "Malformed request: POST /v1/models/model"),
        (":predict", None, 400, "Malformed request: GET /v1/models/model:predict"),
        ("/versions/7", None, 404, "Could not find version 7 of model model"),
        ("x", None, 404, "Could not find any versions of model modelx"),
        ("x/metadata", None, 404, "Servable not found for request: Latest(modelx)"),
    ],
)
def test_invalid_requests_are_rejected(server, path, body, status, message):
    if body is None:
        got, answer = get(f"{server.url}/v1/models/model{path}")
    else:
        got, answer = server.ask(body, path)
    assert got == status
    assert message in answer["error"]


def test_unknown_routes_and_methods_are_rejected(server):
    assert get(f"{server.url}/v2") == (404, {"error": "Not Found: GET /v2"})
    response = requests.post(server.url, data="x", timeout=20)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET,HEAD")


def test_requests_from_other_sites_are_rejected(server):
    body = {"data": '{"instances": ["a"]}', "timeout": 20}
    response = requests.post(server.predict, headers={"Host": "evil.example"}, **body)
    assert response.status_code == 403
    response = requests.post(server.predict, headers={"Origin": "http://evil.example"}, **body)
    assert response.status_code == 415
    response = requests.post(server.predict, headers={"Origin": server.url}, **body)
    assert response.status_code == 200


def test_clients_see_no_local_paths(start_process, save_model, tmp_path, wait_for):
    save_model(tmp_path / "1", export={"model": "/home/me/runs/mrpc"})
    server = start_process(tmp_path)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").write_bytes(b"not a model")
    status = f"{server.url}/v1/models/model"
    wait_for(lambda: '"END"' in requests.get(status, timeout=20).text)
    assert get(f"{server.url}/export.json")[1]["model"] == "mrpc"
    routes = ("", "/export.json", "/openapi.json", "/metrics")
    models = ("", "/metadata", "/versions/2", "/versions/2/metadata", "x", "x/metadata")
    answers = [requests.get(f"{server.url}{path}", timeout=20) for path in routes]
    answers += [requests.get(status + path, timeout=20) for path in models]
    # An error of the model, of the input's type, of the JSON, and of the signature.
    for body in ('{"instances":["boom"]}', '{"instances":[1]}', "{", '{"signature_name":"x"}'):
        answers.append(requests.post(server.predict, data=body, timeout=20))
        assert answers[-1].status_code == 400
    for answer in answers:
        for local in ("/home", str(tmp_path), ".py", sys.prefix):
            assert local not in answer.text


def test_invalid_request_does_not_fail_others_in_its_batch(server):
    texts = ["a", "boom"] * 16
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda text: server.ask({"instances": [text]})[0], texts))
    assert answers == [200, 400] * 16


def test_health_and_metrics(server):
    assert get(f"{server.url}/healthz") == (200, {"status": "ok", "version": "1"})
    server.ask({"instances": ["a"]})
    text = requests.get(f"{server.url}/metrics", timeout=20).text
    assert 'keras_bert_requests_total{route="predict",status="200"}' in text
    assert 'keras_bert_request_seconds_bucket{le="0.001",route="predict"}' in text
    assert "keras_bert_batch_rows_bucket" in text
    assert "keras_bert_queue_requests 0.0" in text
    assert "keras_bert_model_version 1.0" in text


def test_new_version_while_serving_and_drain_on_sigterm(
    start_process, save_model, tmp_path, wait_for
):
    save_model(tmp_path / "1", 1)
    save_model(tmp_path / "later", 2)
    slow_to_load = save_model(tmp_path / "slow", 3)
    warm_up = {"serving_default": {"text": np.array([b"work 500000000"], object)}}
    write_warmup_requests(slow_to_load, "model", warm_up)
    server = start_process(tmp_path)
    seen, failed, stop = [], [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            status, answer = server.ask({"instances": ["a"]})
            if status != 200:
                failed.append((status, answer))
            else:
                seen.append(answer["predictions"][0]["version"])
            time.sleep(0.01)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    wait_for(lambda: seen)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").write_bytes(b"not a model")
    wait_for(lambda: '"2"' in requests.get(f"{server.url}/v1/models/model", timeout=20).text)
    assert seen[-1] == 1, "a broken version is not served"
    (tmp_path / "later").rename(tmp_path / "3")
    wait_for(lambda: seen[-1] == 2)
    shutil.rmtree(tmp_path / "1")
    stop.set()
    for thread in asking:
        thread.join()
    assert not failed
    assert set(seen) == {1, 2}

    # SIGTERM while a version loads: requests in flight are answered, new ones are rejected.
    slow_to_load.rename(tmp_path / "4")
    status = f"{server.url}/v1/models/model/versions/4"
    wait_for(lambda: "LOADING" in requests.get(status, timeout=20).text)
    answers = []
    slow = threading.Thread(
        target=lambda: answers.append(server.ask({"instances": ["work 100000"]}))
    )
    with server.connect() as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in kept.recv(1000)
        slow.start()
        # The slow request and the metrics request.
        wait_for(lambda: server.metric("requests_in_flight") == 2)
        server.stop()

        def is_closed() -> bool:
            try:
                server.connect().close()
            except ConnectionRefusedError:
                return True
            return False

        wait_for(is_closed)
    slow.join()
    assert answers[0][0] == 200
    assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--export_dir=absent"], "--export_dir=absent: no such folder"),
        (["--export_dir={empty}"], "found no version; expected"),
        (["--export_dir={export}", "--port={taken}"], "cannot listen on this address: Address"),
        (
            ["--export_dir={export}", "--host=no.such.host.invalid"],
            "cannot listen on this address: ",
        ),
        (
            ["--export_dir={export}", "--model_name=a/b"],
            "--model_name=a/b: expected a non-empty name",
        ),
    ],
)
def test_invalid_flags_fail_with_one_line(server, export_dir, tmp_path, flags, message, capfd):
    names = {
        "empty": tmp_path,
        "export": export_dir,
        "taken": server.url.rpartition(":")[2],
    }
    command = ["keras-bert serve", *(flag.format(**names) for flag in flags)]
    assert call(serve.PROGRAM, command) == 1
    err = capfd.readouterr().err
    assert message in err
    assert err.startswith("keras-bert serve: error: ")
    assert err.count("\n") == 1


def test_example_client_prints_outputs_and_errors(root, server, capsys):
    client = runpy.run_path(str(root / "docs" / "serving" / "rest_client.py"))
    client["main"]([f"{server.url}/v1/models/model", "text=é", "text=two"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["label"], printed["version"]) == (["neutral", "negative"], [1, 1])
    inputs = {"input_ids": [[1, 2], [3, 4]], "weights": [[1.0, 0.5], [1.0, 1.0]]}
    outputs = client["predict"](f"{server.url}/v1/models/model", inputs, "token_ids")
    assert outputs == {"outputs": [2.0, 7.0]}
    with pytest.raises(SystemExit, match=r"404: .*absent"):
        client["main"]([f"{server.url}/v1/models/absent", "text=a"])
    with pytest.raises(SystemExit, match=r"http://127.0.0.1:1/v1/models/m: .*refused"):
        client["main"](["http://127.0.0.1:1/v1/models/m", "text=a"])
