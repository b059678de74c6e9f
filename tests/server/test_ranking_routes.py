"""The routes /rerank, /v1/rerank and /tokenize answer in the formats of TEI and Cohere."""

import json

import keras
import numpy as np
import pytest
import requests

from keras_bert.models import BertClassifier
from keras_bert.server.versions import Versions
from keras_bert.tasks.classification.processor import ClassifierSettings
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.text.tokenizer import BertTokenizer
from tests.export.conftest import CONFIG, INSTALLED, VOCAB
from tests.server.conftest import RERANKER, FakeVersion, rerank

QUERY, TEXTS = "red cat", ["a dog", "cat red 猫", "the cat", "red cat red", "cat"]
ORDER = [3, 1, 2, 4, 0]  # Equal scores in the order of the texts.
LOGITS = [2, 1, 0, 0, -1]
SCORES = pytest.approx([1 / (1 + np.exp(-logit)) for logit in LOGITS], rel=1e-6)


@pytest.fixture(scope="module")
def server(serve_here):
    models = {"tagger": FakeVersion(), "ranker": FakeVersion(rerank, RERANKER)}
    return serve_here(models, max_request_rows=8, max_request_bytes=3000, max_batch_size=2)


@pytest.fixture(scope="module")
def ask(server):
    """Returns a function that posts a body to a path, and returns the status and the answer."""

    def ask(path, body):
        response = requests.post(f"{server.url}{path}", json=body, timeout=30)
        ask.headers = response.headers
        return response.status_code, response.json()

    return ask


def test_texts_are_ranked_in_the_format_of_tei(server, ask):
    body = {"query": QUERY, "texts": TEXTS}
    status, ranks = ask("/rerank", body | {"truncate": None, "truncation_direction": "Right"})
    assert status == 200
    assert [rank["index"] for rank in ranks] == ORDER
    assert [rank["score"] for rank in ranks] == SCORES
    assert {*ranks[0]} == {"index", "score"}
    assert ask.headers["X-Truncated-Rows"] == "0"
    _, ranks = ask("/rerank", body | {"raw_scores": True, "return_text": True, "model": "ranker"})
    assert [rank["score"] for rank in ranks] == LOGITS
    assert [rank["text"] for rank in ranks] == [TEXTS[index] for index in ORDER]
    assert server.metric('requests_total{route="rerank",status="200"}') == 2


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_in_the_format_of_cohere(ask, path):
    documents = [*TEXTS[:2], {"text": TEXTS[2], "id": 5}, *TEXTS[3:]]
    body = {"query": QUERY, "documents": documents, "model": "ranker", "max_tokens_per_doc": 4096}
    status, answer = ask(path, body | {"top_n": 2, "return_documents": True})
    assert status == 200
    first, second = answer.pop("results")
    assert answer == {"model": "ranker", "usage": {}}
    assert first == {
        "index": 3,
        "relevance_score": pytest.approx(0.880797),
        "document": {"text": "red cat red"},
    }
    assert second["index"] == 1
    _, answer = ask(path, body | {"top_n": 9})
    assert [result["index"] for result in answer["results"]] == ORDER
    assert [result["relevance_score"] for result in answer["results"]] == SCORES
    assert {*answer["results"][0]} == {"index", "relevance_score"}


def test_truncated_texts_are_counted_or_rejected(ask):
    body = {"query": QUERY, "texts": ["cat", "cat " * 8, "dog " * 9]}
    status, ranks = ask("/rerank", body)
    assert (status, ranks[0]["index"]) == (200, 1)
    assert ask.headers["X-Truncated-Rows"] == "2"
    status, answer = ask("/rerank", body | {"truncate": False})
    assert (status, answer["error_type"]) == (400, "Validation")
    assert answer["error"].startswith("texts[1]: has, with the query, more tokens than the model")


def test_texts_are_tokenized_in_the_format_of_tei(server, ask):
    text = "das 猫\U0001f600 é"
    status, answer = ask("/tokenize", {"inputs": [text, "", "a"], "model": None})
    assert status == 200
    first, last = (
        {"id": token_id, "text": token, "special": True, "start": None, "stop": None}
        for token_id, token in ((101, "[CLS]"), (102, "[SEP]"))
    )
    tokens = [(3, "das", 0, 3), (2, "猫\U0001f600", 4, 6), (1, "é", 7, 8)]
    tokens = [
        {"id": token_id, "text": token, "special": False, "start": start, "stop": stop}
        for token_id, token, start, stop in tokens
    ]
    one = {"id": 1, "text": "a", "special": False, "start": 0, "stop": 1}
    assert answer == [[first, *tokens, last], [first, last], [first, one, last]]
    assert ask("/tokenize", {"inputs": text, "add_special_tokens": False})[1] == [tokens]
    assert ask("/tokenize", {"inputs": "", "add_special_tokens": False})[1] == [[]]
    assert server.metric('requests_total{route="tokenize",status="200"}') == 3
    _, answer = ask("/tokenize", {"inputs": "a " * 1400, "add_special_tokens": False})
    assert [token["start"] for token in answer[0]] == [*range(0, 2800, 2)], "in several parts"


@pytest.mark.slow
def test_scores_and_tokens_of_an_export_are_those_of_the_task(serve_here, tmp_path, caplog):
    """Serves it on TensorFlow and on an engine; export/test_engines.py has all engines."""
    keras.utils.set_random_seed(0)
    tokenizer, network = BertTokenizer(VOCAB, keep_special_tokens=True), BertClassifier(CONFIG, 1)
    ranker = TextClassifier(network, tokenizer, ClassifierSettings((), "reranking", 16, True))
    ranker.export(tmp_path / "1", engines=INSTALLED[:1])
    models = {engine: Versions(tmp_path, engine) for engine in ("tensorflow", *INSTALLED[:1])}
    caplog.set_level("INFO", "absl")
    for versions in models.values():
        versions.start()
    server = serve_here(models)

    def ask(path, **body):
        return requests.post(f"{server.url}{path}", json=body, timeout=60).json()

    texts = ["The cát [MASK] sat.", "", "猫 \U0001f600who? " + "mat " * 50]
    order, scores = ranker.rank("who sat", texts)
    for engine in models:
        assert f"Serving version 1 of {tmp_path} on {engine}, float32" in caplog.text
        ranks = ask("/rerank", query="who sat", texts=texts, model=engine)
        assert [rank["index"] for rank in ranks] == order.tolist()
        tolerance = 1e-6 if engine == "tensorflow" else 1e-3
        assert [rank["score"] for rank in ranks] == pytest.approx(scores, abs=tolerance)
        answer = ask("/tokenize", inputs=texts, model=engine)
        assert [[token["id"] for token in row] for row in answer] == [*map(tokenizer.encode, texts)]
        first = [token["text"] for token in answer[0]]
        assert first == ["[CLS]", "The", "cát", "[MASK]", "sat", ".", "[SEP]"]
        for row, text in zip(answer, texts, strict=True):
            assert [token["special"] for token in row] == [True, *[False] * (len(row) - 2), True]
            for token in row[1:-1]:
                assert token["text"] == text[token["start"] : token["stop"]]


RERANK, DOCUMENTS, TOKENIZE = "/rerank", "/v1/rerank", "/tokenize"


@pytest.mark.parametrize(
    ("path", "change", "status", "message"),
    [
        (RERANK, {"query": None}, 400, "query: missing; expected a text that is not blank"),
        (RERANK, {"query": " \n"}, 400, 'query: " \\n"; expected a text that is not blank'),
        (RERANK, {"texts": []}, 400, "texts: a list; expected a list of at least one string"),
        (RERANK, {"texts": ["a", None]}, 400, "texts[1]: null; expected a string"),
        (RERANK, {"texts": [{"text": "a"}]}, 400, "texts[0]: an object; expected a string"),
        (RERANK, {"raw_scores": 1}, 400, "raw_scores: 1; expected true or false"),
        (RERANK, {"truncation_direction": "Left"}, 400, '"Left"; expected "right"'),
        (RERANK, {"top_n": 1}, 400, "top_n: unknown; expected model, query, texts, raw_scores"),
        (RERANK, {"model": "tagger"}, 404, "model: tagger is not a reranker; expected ranker"),
        (DOCUMENTS, {"top_n": 0}, 400, "top_n: 0; expected a whole number above 0"),
        (DOCUMENTS, {"top_n": True}, 400, "top_n: true; expected a whole number above 0"),
        (DOCUMENTS, {"documents": None}, 400, "documents: missing; expected a list of at least"),
        (DOCUMENTS, {"documents": [{"t": 1}]}, 400, "documents[0]: null; expected a string, or an"),
        (RERANK, {"query": "a" * 600, "texts": ["a"] * 5}, 413, "The texts have 3015 bytes, with"),
        (RERANK, {"texts": ["a", "nan"]}, 500, "texts[1]: the model's score is nan; expected a f"),
        (TOKENIZE, {"inputs": []}, 400, "inputs: a list; expected a string, or a list of at least"),
        (TOKENIZE, {"inputs": ["a", 5]}, 400, "inputs[1]: 5; expected a string"),
        (TOKENIZE, {"model": "tagger"}, 404, "tagger is not a model with a tokenizer; expected r"),
    ],
)
def test_invalid_requests_get_errors_in_the_format_of_the_route(ask, path, change, status, message):
    valid = {
        RERANK: {"query": "a", "texts": ["a"]},
        DOCUMENTS: {"query": "a", "documents": ["a"]},
        TOKENIZE: {"inputs": "a"},
    }
    answered, answer = ask(path, valid[path] | change)
    assert answered == status
    if path == DOCUMENTS:
        assert {*answer} == {"message", "detail"}
        assert message in answer["message"] == answer["detail"]
    else:
        assert message in answer["error"]
        assert answer["error_type"] == ("Backend" if status == 500 else "Validation")
    assert "\n" not in json.dumps(answer, ensure_ascii=False)
