"""The server responds as TensorFlow Serving does and keeps running after client errors."""

import asyncio
import json
import runpy
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from keras_bert.errors import InputError
from keras_bert.programs import serve
from keras_bert.programs.program import call
from keras_bert.server import app
from keras_bert.server.settings import Settings
from tests.server.conftest import EMBEDDER, FakeVersion, embed


def get(url: str, **headers: str) -> tuple[int, dict]:
    response = requests.get(url, headers=headers, timeout=20)
    return response.status_code, response.json()


def test_predicts_from_rows_and_from_columns(server):
    status, answer = server.ask({"instances": ["a", {"b64": "/w=="}]})
    assert status == 200
    row = {
        "classes": [
            {"label": label, "score": float(label == "neutral")}
            for label in ("neutral", "negative", "positive")
        ],
        "label": "neutral",
        "probabilities": [0.0, 1.0, 0.0],
        "version": 1,
    }
    assert answer["predictions"] == [row] * 2
    assert server.ask({"text": "a"}) == (200, {"predictions": [row]})
    status, answer = server.ask({"inputs": {"text": ["ab", "ä", ""]}})
    assert (status, answer["outputs"]["label"]) == (200, ["positive", "neutral", "negative"])
    ids = {"input_ids": [1, 2], "weights": [5, 10]}
    body = {"signature_name": "token_ids", "instances": [ids, ids]}
    assert server.ask(body) == (200, {"predictions": [25, 25]})
    assert server.ask(body, "/versions/1:predict")[0] == 200


def test_metadata_and_status(server):
    for path in ("metadata", "versions/1/metadata"):
        status, metadata = get(f"{server.url}/v1/models/model/{path}")
        assert (status, metadata["model_spec"]["version"]) == (200, "1")
    status, answer = get(f"{server.url}/v1/models/model/versions/1")
    assert status == 200
    assert answer["model_version_status"] == [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
    status, info = get(f"{server.url}/export.json")
    assert (status, info["task"], info["model_version"]) == (200, "classification", 1)


def test_schema_describes_the_inputs_of_the_signatures(server):
    status, schema = get(f"{server.url}/openapi.json")
    assert (status, schema["openapi"]) == (200, "3.1.0")
    bodies = schema["components"]["schemas"]["Predict"]["anyOf"]
    assert [body["properties"]["signature_name"]["enum"] for body in bodies] == (
        [["serving_default", ""]] * 3 + [["token_ids"]] * 3
    )
    assert "/v1/embeddings" not in schema["paths"]
    row = bodies[3]["properties"]["instances"]["anyOf"][0]["items"]
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
        ("x:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(modelx)"),
        ("/versions/7:predict", {}, 404, "Servable not found for request: Specific(model, 7)"),
        (f"/versions/{'9' * 20}:predict", {}, 404, "404: Not Found"),
        (":classify", {}, 404, "404: Not Found (POST /v1/models/model:classify)"),
        (":predict", None, 405, "405: Method Not Allowed"),
        ("/versions/7", None, 404, "Could not find version 7 of model model"),
        ("x", None, 404, "Could not find any versions of model modelx"),
    ],
)
def test_invalid_requests_are_rejected(server, path, body, status, message):
    if body is None:
        answered, answer = get(f"{server.url}/v1/models/model{path}")
    else:
        answered, answer = server.ask(body, path)
    assert answered == status
    assert message in answer["error"]


def test_unknown_routes_and_methods_are_rejected(server):
    assert get(f"{server.url}/v2") == (404, {"error": "404: Not Found (GET /v2)"})
    response = requests.post(server.url, data="x", timeout=20)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET,HEAD")
    body = {"input": "a", "model": "model"}
    response = requests.post(f"{server.url}/v1/embeddings", json=body, timeout=20)
    assert response.status_code == 404
    assert "The served version returns no embeddings" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        *((host, (), 200) for host in ("localhost", "LOCALHOST:8501", "a.localhost")),
        *((host, (), 200) for host in ("127.0.0.1:8501", "10.0.0.7", "[::1]:8501")),
        *((host, (), 403) for host in ("evil.example", "localhost.evil.example", "notlocalhost")),
        *((host, (), 403) for host in ("127.0.0.1.evil.example", "127.0.0.1:x", "x/y", "")),
        *((host, ["bert.example"], 200) for host in ("bert.example:80", "Bert.Example.")),
        ("any.example", ["*"], 200),
    ],
)
def test_host_is_an_address_or_allowed(server, serve_here, host, allowed, status):
    url = (serve_here(FakeVersion(), allowed_hosts=allowed) if allowed else server).url
    response = requests.get(f"{url}/healthz", headers={"Host": host}, timeout=20)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        *((origin, 415) for origin in ("http://evil.example", "null", "http://localhost:3000")),
        *(("http://[", 415), ("{}", 200), (None, 200)),
    ],
)
def test_foreign_pages_must_send_json(server, origin, status):
    headers = {"Origin": origin.format(server.url)} if origin else {}
    for kind, expected in (("text/plain", status), ("application/json; charset=utf-8", 200)):
        response = requests.post(
            server.predict,
            data='{"instances": ["a"]}',
            headers=headers | {"Content-Type": kind},
            timeout=20,
        )
        assert response.status_code == expected
    assert get(f"{server.url}/healthz", **headers)[0] == 200


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
    assert 'keras_bert_model_version{model="model"} 1.0' in text


def test_several_models_are_served(serve_here, wait_for):
    class Polled(FakeVersion):
        def refresh(self) -> bool:
            self.number = 2
            return True

    models = {"first": FakeVersion(), "zwei & 2": Polled(embed, EMBEDDER)}
    url = serve_here(models, poll_interval_s=0.05).url
    wait_for(lambda: get(f"{url}/v1/models")[1]["data"][1]["version"] == 2)
    status, answer = get(f"{url}/v1/models")
    owner = {"object": "model", "created": 1_700_000_000, "owned_by": "keras_bert"}
    assert (status, answer["object"]) == (200, "list")
    assert answer["data"] == [
        {"id": "first", **owner, "task": "classification", "version": 1},
        {"id": "zwei & 2", **owner, "task": "embedding", "version": 2},
    ]
    body = {"instances": ["a", "a long text 1", "a long text 12"]}
    rows = requests.post(f"{url}/v1/models/first:predict", json=body, timeout=20)
    assert "X-Truncated-Rows" not in rows.headers
    assert rows.json()["predictions"][0]["label"] == "neutral"
    rows = requests.post(f"{url}/v1/models/zwei%20%26%202:predict", json=body, timeout=20)
    assert rows.headers["X-Truncated-Rows"] == "2"
    assert [row["truncated"] for row in rows.json()["predictions"]] == [False, True, True]
    body = {"model": "zwei & 2", "input": "a"}
    assert requests.post(f"{url}/v1/embeddings", json=body, timeout=20).json()["data"]
    second = "?model=zwei%20%26%202"
    for path, task, number in (("", "classification", 1), (second, "embedding", 2)):
        info = get(f"{url}/export.json{path}")[1]
        assert (info["task"], info["model_version"]) == (task, number)
    error = {"error": "model: third does not exist; expected first, zwei & 2"}
    assert get(f"{url}/export.json?model=third") == (404, error)
    assert get(f"{url}/v1/models/zwei%20%26%202/metadata")[1]["model_spec"]["name"] == "zwei & 2"
    assert get(f"{url}/v1/models/zwei%20%26%202/versions/1")[0] == 200
    assert get(f"{url}/v1/models/third")[0] == 404
    text = requests.get(f"{url}/metrics", timeout=20).text
    assert 'keras_bert_model_version{model="zwei & 2"} 2.0' in text
    schema = get(f"{url}/openapi.json")[1]
    paths = schema["paths"]
    assert {"/v1/models/first:predict", "/v1/models/zwei%20%26%202:predict"} < paths.keys()
    methods = [each for path in paths.values() for each in path.values() if isinstance(each, dict)]
    names = [each["operationId"] for each in methods]
    assert len(set(names)) == len(names)
    second = schema["components"]["schemas"]["Predict1"]["anyOf"]
    assert {body["properties"]["signature_name"]["enum"][0] for body in second} == {
        *EMBEDDER["signatures"]
    }
    embeddings = schema["components"]["schemas"]["EmbeddingsRequest"]["properties"]
    assert embeddings["model"]["enum"] == ["zwei & 2"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--export_dir=absent"], "--export_dir=absent: no such folder"),
        (["--export_dir={empty}"], "found no version; expected"),
        (["--export_dir={export}", "--port={taken}"], "cannot listen on this address: Address"),
        (["--export_dir={export}", "--host=no.such.host.invalid"], "cannot listen on this addr"),
        (["--export_dir=a/b={export}"], "--export_dir=a/b="),
        (["--export_dir={export}", "--export_dir=={export}"], "expected DIR or NAME=DIR, with a"),
        (["--export_dir={export},{empty}"], "found two models with the name model; expected NAME"),
        (["--export_dir=a={export}", "--export_dir=a={empty}"], "two models with the name a; exp"),
        (["--export_dir={export}", "--api_key_file={empty}"], "cannot be read: Is a directory"),
        (["--export_dir=x", "--engine=openvino", "--engine_precision=int8"], "precision int8"),
    ],
)
def test_invalid_flags_fail_with_one_line(server, tmp_path, flags, message, capfd):
    (tmp_path / "export" / "1").mkdir(parents=True)
    (tmp_path / "export" / "1" / "saved_model.pb").touch()
    (tmp_path / "empty").mkdir()
    names = {name: tmp_path / name for name in ("empty", "export")}
    names["taken"] = server.url.rpartition(":")[2]
    command = ["keras-bert serve", *(flag.format(**names) for flag in flags)]
    assert call(serve.PROGRAM, command) == 1
    err = capfd.readouterr().err
    assert message in err
    assert err.startswith("keras-bert serve: error: ")
    assert err.count("\n") == 1


def test_port_of_a_server_that_started_at_the_same_time_is_rejected():
    with serve.bind("127.0.0.1", 0) as first, serve.bind(*first.getsockname()) as second:
        first.listen()
        with pytest.raises(InputError, match="cannot listen on the port: Address already in"):
            asyncio.run(app.serve(Settings(), second, {"model": FakeVersion()}, None))


def test_example_client_prints_outputs_and_errors(root, server, capsys):
    client = runpy.run_path(str(root / "docs" / "serving" / "rest_client.py"))
    client["main"]([f"{server.url}/v1/models/model", "text=é", "text=two"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["label"], printed["version"]) == (["neutral", "negative"], [1, 1])
    inputs = {"input_ids": [[1, 2], [3, 4]], "weights": [[2, 1], [2, 2]]}
    outputs = client["predict"](f"{server.url}/v1/models/model", inputs, "token_ids")
    assert outputs == {"outputs": [4, 14]}
    with pytest.raises(SystemExit, match=r"404: .*absent"):
        client["main"]([f"{server.url}/v1/models/absent", "text=a"])
    with pytest.raises(SystemExit, match=r"http://127.0.0.1:1/v1/models/m: .*refused"):
        client["main"](["http://127.0.0.1:1/v1/models/m", "text=a"])
