"""The route /v1/embeddings answers as OpenAI's API does, with the vectors of the exported model."""

import base64
import gzip
import json

import numpy as np
import pytest
import requests

from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.text import windows

pytestmark = pytest.mark.slow  # Exports a model and starts servers.

TEXTS = ["The film is good.", f"{'very ' * 40}good", "ä book"]


@pytest.fixture(scope="module")
def embedder(pretrained):
    embedder = TextEmbedder.from_pretrained(pretrained, max_seq_length=16, normalize=True)
    pairs = (["good film", "bad film"], ["good book", "bad book"])
    loss = EmbeddingLoss("mnrl", sizes=(16, 4))
    embedder.fit(pairs, loss=loss, epochs=1, batch_size=2, verbose=0)
    return embedder


@pytest.fixture(scope="module")
def export(embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    embedder.export(folder / "1")
    return folder


@pytest.fixture
def ask(export, serve_here):
    """Returns a function that posts a request to a server of the model, and returns the answer."""
    server = serve_here(export, model_name="mini", max_request_rows=8, max_request_bytes=5000)

    def ask(body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body)
        response = requests.post(
            f"{server.url}/v1/embeddings", data=data, headers=headers, timeout=30
        )
        return response.status_code, response.json()

    ask.server = server
    return ask


def vectors_of(answer):
    assert [item["index"] for item in answer["data"]] == [*range(len(answer["data"]))]
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


def test_vectors_and_token_counts_are_those_of_predict(ask, embedder):
    expected = embedder.predict(TEXTS)
    status, answer = ask({"input": TEXTS, "model": "mini", "user": "someone"})
    assert status == 200
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "mini")
    np.testing.assert_allclose(vectors_of(answer), expected["mean"], atol=1e-5)
    count = sum(len(row) for row in embedder.processor.preprocess(TEXTS).input_ids.numpy())
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    status, one = ask({"input": TEXTS[0], "model": "mini"})
    assert status == 200
    np.testing.assert_allclose(vectors_of(one), expected["mean"][:1], atol=1e-5)
    assert (
        'requests_total{route="embeddings",status="200"} 2'
        in requests.get(f"{ask.server.url}/metrics", timeout=30).text
    )


def test_base64_has_the_same_vectors(ask):
    _, answer = ask({"input": TEXTS, "model": "mini"})
    status, encoded = ask({"input": TEXTS, "model": "mini", "encoding_format": "base64"})
    assert status == 200
    rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in encoded["data"]]
    np.testing.assert_allclose(np.stack(rows), vectors_of(answer), atol=1e-7)
    assert encoded["usage"] == answer["usage"]


def test_dimensions_truncates_and_normalizes_again(ask, embedder):
    status, answer = ask({"input": TEXTS, "model": "mini", "dimensions": 4})
    assert status == 200
    np.testing.assert_allclose(
        vectors_of(answer), embedder.predict(TEXTS, size=4)["mean"], atol=1e-5
    )
    np.testing.assert_allclose(np.linalg.norm(vectors_of(answer), axis=1), 1, atol=1e-5)


def test_null_means_absent(ask):
    body = {"input": TEXTS, "model": "mini"}
    absent = {"dimensions": None, "encoding_format": None, "user": None}
    status, answer = ask(body | absent)
    assert status == 200
    expected = vectors_of(ask(body)[1])
    np.testing.assert_allclose(vectors_of(answer), expected, atol=1e-7)


def test_compressed_bodies_are_accepted(ask):
    body = gzip.compress(json.dumps({"input": "a", "model": "mini"}).encode())
    assert ask(body, **{"Content-Encoding": "gzip"})[0] == 200


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"input": None}, 400, "input: missing; expected a string or a list of strings"),
        ({"input": []}, 400, "input: a list; expected a string or a list of strings"),
        ({"input": 5}, 400, "input: 5; expected a string or a list of strings"),
        ({"input": [1, 2]}, 400, "input[0]: 1; expected a string that is not empty"),
        ({"input": ["a", ""]}, 400, 'input[1]: ""; expected a string that is not empty'),
        ({"input": ["a", ["b"]]}, 400, "expected a string that is not empty"),
        ({"input": ["a"] * 9}, 400, "The request has 9 rows; expected at most 8"),
        ({"model": "other"}, 404, "model: other does not exist; expected mini"),
        ({"model": 1}, 400, "model: 1; expected the name of the served model"),
        ({"encoding_format": "hex"}, 400, 'encoding_format: "hex"; expected "float" or "base64"'),
        ({"dimensions": 8}, 400, "dimensions: 8; expected a size that the model was trained for"),
        ({"dimensions": "4"}, 400, "4, 16"),
        ({"prompt": "a"}, 400, "prompt: unknown; expected model, input"),
    ],
)
def test_invalid_requests_get_errors_in_openai_form(ask, change, status, message):
    answered, answer = ask({"input": "a", "model": "mini"} | change)
    assert answered == status
    error = answer["error"]
    assert message in error["message"]
    code = "model_not_found" if status == 404 else None
    assert error == {
        "message": error["message"],
        "type": "invalid_request_error",
        "param": None,
        "code": code,
    }


def test_limits_of_bodies_apply(ask):
    status, answer = ask({"input": "a" * 5000, "model": "mini"})
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    status, answer = ask(b"{")
    assert status == 400
    assert "is not JSON" in answer["error"]["message"]
    response = requests.get(f"{ask.server.url}/v1/embeddings", timeout=30)
    assert response.status_code == 400
    assert "Malformed request: GET /v1/embeddings" in response.json()["error"]["message"]


def test_schema_has_the_route_and_the_sizes(ask):
    schema = requests.get(f"{ask.server.url}/openapi.json", timeout=30).json()
    assert "/v1/embeddings" in schema["paths"]
    request = schema["components"]["schemas"]["EmbeddingsRequest"]["properties"]
    assert request["model"]["enum"] == ["mini"]
    assert request["dimensions"]["enum"] == [4, 16, None]
    assert "null" in request["dimensions"]["type"]
    assert request["encoding_format"]["enum"] == ["float", "base64", None]


def test_model_of_another_task_has_no_embeddings(export_dir, serve_here):
    server = serve_here(export_dir)
    body = {"input": "a", "model": "model"}
    response = requests.post(f"{server.url}/v1/embeddings", json=body, timeout=30)
    assert response.status_code == 404
    assert "The served version returns no embeddings" in response.json()["error"]["message"]
    schema = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    assert not [name for name in str(schema).split("'") if "mbeddings" in name]


def test_long_texts_have_the_mean_of_their_windows(pretrained, tmp_path, serve_here):
    """The network computes more rows than the request has texts."""
    embedder = TextEmbedder.from_pretrained(pretrained, max_seq_length=16)
    embedder.set_long_text("windows")
    expected = embedder.predict(TEXTS)
    embedder.export(tmp_path / "1")
    server = serve_here(tmp_path, model_name="mini")
    body = {"input": TEXTS, "model": "mini"}
    answer = requests.post(f"{server.url}/v1/embeddings", json=body, timeout=30).json()
    assert answer["usage"]["prompt_tokens"] == expected["num_tokens"].sum()
    np.testing.assert_allclose(vectors_of(answer), expected["mean"], atol=1e-5)


def test_windows_with_too_many_tokens_are_rejected(pretrained, tmp_path, serve_here, monkeypatch):
    monkeypatch.setattr(windows, "MAX_WINDOW_TOKENS", 40)
    embedder = TextEmbedder.from_pretrained(pretrained, max_seq_length=16)
    embedder.set_long_text("windows")
    embedder.export(tmp_path / "1")
    server = serve_here(tmp_path)
    message = (
        "long_text=windows: the windows of the texts have more than 40 tokens; expected shorter "
        "texts, or a larger window_stride"
    )
    assert server.ask({"instances": [TEXTS[1]]}) == (400, {"error": message})
    body = {"input": TEXTS[1], "model": "model"}
    response = requests.post(f"{server.url}/v1/embeddings", json=body, timeout=30)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message
    assert server.ask({"instances": [TEXTS[0]]})[0] == 200
