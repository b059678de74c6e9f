"""The route /v1/embeddings answers as OpenAI's API does, with the vectors of the model."""

import base64
import gzip
import json

import numpy as np
import pytest
import requests

from tests.server.conftest import FakeVersion

TEXTS = ["The film is good.", "very good", "ä book"]
EXPORT = {
    "task": "embedding",
    "normalize": True,
    "matryoshka_sizes": [4, 16],
    "signatures": {
        "serving_default": {
            "inputs": {"text": ["string", [-1]]},
            "outputs": {"mean": ["float32", [-1, 16]], "num_tokens": ["int32", [-1]]},
        }
    },
}


def embed(signature, inputs):
    """Returns vectors of length 1, and the number of bytes as the number of tokens."""
    lengths = np.array([len(text) for text in inputs["text"]], np.int32)
    vectors = np.sin(lengths[:, np.newaxis] * np.arange(1.0, 17)).astype(np.float32)
    return {"mean": vectors / np.linalg.norm(vectors, axis=1)[:, None], "num_tokens": lengths}


@pytest.fixture(scope="module")
def ask(serve_here):
    """Returns a function that posts a request to a server of the model, and returns the answer."""
    server = serve_here(
        FakeVersion(embed, EXPORT), model_name="mini", max_request_rows=8, max_request_bytes=5000
    )

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


def expected(*texts):
    return embed("", {"text": [text.encode() for text in texts]})["mean"]


def test_vectors_and_token_counts_are_those_of_the_model(ask):
    absent = {"dimensions": None, "encoding_format": None}
    status, answer = ask({"input": TEXTS, "model": "mini", "user": "someone"} | absent)
    assert status == 200
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "mini")
    np.testing.assert_array_equal(vectors_of(answer), expected(*TEXTS))
    count = sum(len(text.encode()) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    body = gzip.compress(json.dumps({"input": TEXTS[0], "model": "mini"}).encode())
    status, one = ask(body, **{"Content-Encoding": "gzip"})
    assert status == 200
    np.testing.assert_array_equal(vectors_of(one), expected(TEXTS[0]))
    assert ask.server.metric('requests_total{route="embeddings",status="200"}') == 2


def test_base64_has_the_same_vectors(ask):
    status, answer = ask({"input": TEXTS, "model": "mini", "encoding_format": "base64"})
    assert status == 200
    rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]
    np.testing.assert_array_equal(np.stack(rows), expected(*TEXTS))


def test_dimensions_truncates_and_normalizes_again(ask):
    status, answer = ask({"input": TEXTS, "model": "mini", "dimensions": 4})
    assert status == 200
    vectors = expected(*TEXTS)[:, :4]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_of(answer), vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"input": None}, 400, "input: missing; expected a string or a list of strings"),
        ({"input": []}, 400, "input: a list; expected a string or a list of strings"),
        ({"input": 5}, 400, "input: 5; expected a string or a list of strings"),
        ({"input": [1, 2]}, 400, "input[0]: 1; expected a string that is not empty"),
        ({"input": ["a", ""]}, 400, 'input[1]: ""; expected a string that is not empty'),
        ({"input": ["a"] * 9}, 400, "The request has 9 rows; expected at most 8"),
        ({"input": "a" * 5000}, 413, "Maximum request body size 5000 exceeded"),
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


def test_schema_has_the_route_and_the_sizes(ask):
    schema = requests.get(f"{ask.server.url}/openapi.json", timeout=30).json()
    assert "/v1/embeddings" in schema["paths"]
    request = schema["components"]["schemas"]["EmbeddingsRequest"]["properties"]
    assert request["model"]["enum"] == ["mini"]
    assert request["dimensions"]["enum"] == [4, 16, None]
    assert "null" in request["dimensions"]["type"]
    assert request["encoding_format"]["enum"] == ["float", "base64", None]
