"""Clients of other APIs, from .peers, get their answers from the server."""

import json
import os
import subprocess

import pytest

from tests.server.conftest import EMBEDDER, RERANKER, FakeVersion, embed, rerank

KEY = "a-key"
QUERY, TEXTS = "red cat", ["a dog", "cat red", "red cat red"]
SETUP = """
import json, sys
url, key, query, texts = json.loads(sys.argv[1])
"""
OPENAI = """
import openai
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
assert [model.id for model in client.models.list()] == ["mini", "ranker"]
answer = client.embeddings.create(model="mini", input=texts)  # In base 64, by default.
try:
    client.with_options(api_key="no-key").embeddings.create(model="mini", input=texts)
except openai.AuthenticationError as error:
    failure = error.message
print(json.dumps([len(answer.data[2].embedding), answer.usage.total_tokens, failure]))
"""
COHERE = """
import cohere
answers = [
    make(key, base_url=url).rerank(model="ranker", query=query, documents=texts, top_n=2)
    for make in (cohere.Client, cohere.ClientV2)
]
try:
    cohere.ClientV2("no-key", base_url=url).rerank(model="ranker", query=query, documents=texts)
except cohere.UnauthorizedError as error:
    failure = error.body["message"]
ranks = [[[each.index, each.relevance_score] for each in answer.results] for answer in answers]
print(json.dumps([*ranks, failure]))
"""
HAYSTACK = """
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import (
    HuggingFaceTEIRanker, TruncationDirection,
)
from haystack_integrations.components.rankers.jina import JinaRanker
documents = [Document(content=text) for text in texts]
tei = HuggingFaceTEIRanker(url=url, top_k=2, token=Secret.from_token(key))
ranks = tei.run(query, documents, truncation_direction=TruncationDirection.RIGHT)["documents"]
jina = JinaRanker("ranker", Secret.from_token(key), base_url=url + "/v1/rerank")
try:
    HuggingFaceTEIRanker(url=url, token=Secret.from_token("no-key")).run(query, documents)
except RuntimeError as error:
    failure = str(error)
ranks = [
    [[texts.index(each.content), each.score] for each in found]
    for found in (ranks, jina.run(query, documents, top_k=2)["documents"])
]
print(json.dumps([*ranks, failure]))
"""


@pytest.fixture(scope="module")
def run_client(peers_python, serve_here):
    """Returns a function: (package, code of a client) -> what the client prints, read as JSON."""
    models = {"mini": FakeVersion(embed, EMBEDDER), "ranker": FakeVersion(rerank, RERANKER)}
    server = serve_here(models, api_keys=(KEY.encode(),))
    arguments = json.dumps([server.url, KEY, QUERY, TEXTS])
    # Haystack would otherwise send statistics of its use to its makers.
    environment = os.environ | {"HAYSTACK_TELEMETRY_ENABLED": "False"}

    def run(package, code):
        find = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({package!r}))"
        if subprocess.run([peers_python, "-c", find], check=False).returncode:
            pytest.skip(f"{package} is not installed in .peers")
        command = [peers_python, "-c", SETUP + code, arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


RANKS = [[2, pytest.approx(0.880797)], [1, pytest.approx(0.731059)]]
MESSAGE = "Authorization: a key that the server does not have; expected `Bearer KEY`"


def test_openai(run_client):
    size, count, failure = run_client("openai", OPENAI)
    assert (size, count) == (16, sum(map(len, TEXTS)))
    assert MESSAGE in failure


@pytest.mark.parametrize(("package", "code"), [("cohere", COHERE), ("haystack", HAYSTACK)])
def test_rankers(run_client, package, code):
    *ranks, failure = run_client(package, code)
    assert ranks == [RANKS, RANKS]
    assert MESSAGE in failure
