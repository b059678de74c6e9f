"""The route /v1/embeddings answers as OpenAI's API does, with the vectors of the model."""

import base64
import gzip
import json

import numpy as np
import pytest
import requests

from keras_bert.server import api_formats, protocol
from keras_bert.server.versions import Versions
from keras_bert.text.tokenizer import BertTokenizer
from tests.export.conftest import VOCAB, export  # noqa: F401
from tests.server.conftest import EMBEDDER, FakeVersion, embed

TEXTS = ["The film is good.", "very good", "ä book"]


@pytest.fixture(scope="module")
def ask(serve_here):
    """Returns a function that posts a request to a server of the model, and returns the answer."""
    server = serve_here(
        {"mini": FakeVersion(embed, EMBEDDER), "tagger": FakeVersion()},
        max_request_rows=8,
        max_request_bytes=5000,
    )

    def ask(body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body)
        response = requests.post(
            f"{server.url}/v1/embeddings", data=data, headers=headers, timeout=30
        )
        ask.headers = response.headers
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
    assert [item["truncated"] for item in answer["data"]] == [True, False, False]
    assert ask.headers["X-Truncated-Rows"] == "1"
    body = gzip.compress(json.dumps({"input": TEXTS[0], "model": "mini"}).encode())
    status, one = ask(body, **{"Content-Encoding": "gzip"})
    assert status == 200
    np.testing.assert_array_equal(vectors_of(one), expected(TEXTS[0]))
    assert ask.server.metric('requests_total{route="embeddings",status="200"}') == 2


@pytest.mark.parametrize("ids", [[2, 7, 3], [[2, 7, 3], [2, *[7] * 10, 3], [2, 3]]])
def test_token_ids_of_the_model_are_answered(ask, ids):
    status, answer = ask({"input": ids, "model": "mini"})
    assert status == 200
    rows = ids if isinstance(ids[0], list) else [ids]
    np.testing.assert_array_equal(vectors_of(answer), expected(*("x" * len(row) for row in rows)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, rows))


@pytest.mark.slow
def test_token_ids_of_an_export_have_the_vectors_of_their_text(serve_here, export):  # noqa: F811
    versions = Versions(export("embedding", for_engines=False).folder.parent)
    versions.start()
    url = f"{serve_here({'mini': versions}).url}/v1/embeddings"
    tokenizer = BertTokenizer(VOCAB)
    ids = [tokenizer.cls_token_id, *map(VOCAB.index, ("the", "cat", "sat")), tokenizer.sep_token_id]
    inputs = (["The cat sat.", "The cat sat"], [ids, [*ids[:-1], VOCAB.index("."), ids[-1]]])
    texts, tokens = (
        requests.post(url, json={"model": "mini", "input": each}, timeout=60).json()
        for each in (inputs[0], inputs[1][::-1])
    )
    np.testing.assert_allclose(vectors_of(tokens), vectors_of(texts), atol=1e-6)
    assert tokens["usage"] == texts["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    body = {"model": "mini", "input": [[ids[0], len(VOCAB), ids[-1]]]}
    answer = requests.post(url, json=body, timeout=60)
    assert answer.status_code == 400
    assert f"expected values from 0 to {len(VOCAB) - 1}" in answer.json()["error"]["message"]


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
        ({"input": None}, 400, "input: missing; expected a string, a list of token ids, or"),
        ({"input": []}, 400, "input: a list; expected a string, a list of token ids, or"),
        ({"input": 5}, 400, "input: 5; expected a string, a list of token ids, or"),
        ({"input": [15339, 1917]}, 400, "from 2, [CLS], to 3, [SEP]; for the ids of another"),
        ({"input": [2, *[7] * 11, 3]}, 400, "input[0]: a list of length 13; expected at most"),
        ({"input": [[2, 3], []]}, 400, "input[1]: a list of length 0; expected at most 12 tok"),
        ({"input": [[2, 3], "a"]}, 400, 'input[1]: "a"; expected at most 12 token ids'),
        ({"input": [[2, 2**31, 3]]}, 400, "input[0]: a list of length 3; expected"),
        ({"input": [[2, True, 3]]}, 400, "input[0]: a list of length 3; expected"),
        ({"input": ["a", [2, 3]]}, 400, "input[1]: a list; expected a string that is not empty"),
        ({"input": ["a", ""]}, 400, 'input[1]: ""; expected a string that is not empty'),
        ({"input": ["a"] * 9}, 400, "The request has 9 rows; expected at most 8"),
        ({"input": "a" * 5000}, 413, "Maximum request body size 5000 exceeded"),
        ({"model": "tagger"}, 404, "model: tagger is not an embedding model; expected mini"),
        ({"model": 1}, 400, "model: 1; expected the name of a served model: mini"),
        ({"encoding_format": "hex"}, 400, 'encoding_format: "hex"; expected "float" or "base64"'),
        ({"dimensions": 8}, 400, "dimensions: 8; expected a size that the model was trained for"),
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


def test_padding_of_token_ids_is_limited():
    models = {"mini": api_formats.embedding_model(EMBEDDER)._replace(max_seq_length=512)}
    body = {"model": "mini", "input": [[2, 3]] * 10_000 + [[2, *[7] * 500, 3]]}
    with pytest.raises(protocol.RestError, match="10001 lists, padded to the longest of 502"):
        api_formats.decode_embedding_call(json.dumps(body).encode(), models)


def test_export_without_the_special_ids_takes_only_texts():
    info = {name: value for name, value in EMBEDDER.items() if name != "cls_token_id"}
    models = {"mini": api_formats.embedding_model(info)}
    with pytest.raises(protocol.RestError, match=r"expected strings, or a model that is exported"):
        api_formats.decode_embedding_call(b'{"model": "mini", "input": [2, 3]}', models)


def test_schema_has_the_route_and_the_sizes(ask):
    schema = requests.get(f"{ask.server.url}/openapi.json", timeout=30).json()
    assert "/v1/embeddings" in schema["paths"]
    request = schema["components"]["schemas"]["EmbeddingsRequest"]["properties"]
    assert request["model"]["enum"] == ["mini"]
    assert request["dimensions"]["enum"] == [4, 16, None]
    assert "null" in request["dimensions"]["type"]
    assert request["encoding_format"]["enum"] == ["float", "base64", None]
