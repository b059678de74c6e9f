"""Converts requests and responses in the formats of OpenAI, text-embeddings-inference and Cohere.

    /v1/embeddings    OpenAI: texts -> vectors
    /rerank           text-embeddings-inference (TEI): a query and texts -> their order and scores
    /v1/rerank        Cohere and Jina: the same
    /tokenize         TEI: texts -> tokens

A function for each format decodes a body to a call of one of the models that support the format.
The name of a model in a request is optional, except for embeddings.
"""

import base64
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from keras_bert.errors import shorten
from keras_bert.server.protocol import (
    DEFAULT_SIGNATURE,
    TOKENIZE,
    TRUNCATED,
    Arrays,
    Call,
    RestError,
    convert,
    describe,
    dumps,
    parse_object,
)
from keras_bert.server.versions import Version

_TOKEN_IDS = "token_ids"  # the signature for texts that the client has tokenized
_TOKEN_COUNT = "num_tokens"  # the output with the number of tokens of each text
_MAX_TOKEN_IDS = 1 << 22  # maximum number of token ids in a body, with padding
_ITEMS = 1 << 10  # number of objects that are formatted in one step

# --- The members of requests in the formats of other APIs ---


# {member: (its default, whether a value is valid, what is expected)}
Members = Mapping[str, tuple[Any, Callable[[Any], bool], str]]
_ANY = (None, lambda value: True, "any value")
_FLAG = (False, lambda value: isinstance(value, bool), "true or false")


def _read_request(
    body: bytes, models: Iterable[str], kind: str, expected: Members, needs_model: bool = False
) -> tuple[str, dict[str, Any]]:
    """Returns the name of the requested model, and the values of the other members.

    A member that is null has its default. The default model is the first one; there is none if
    `needs_model`. `kind` describes the models in the error for another one.
    """
    members, names = parse_object(body), ", ".join(models)
    for member in members:
        if member not in expected:
            raise RestError(f"{shorten(member)}: unknown; expected {', '.join(expected)}")
    model = members.get("model")
    if model is None and not needs_model:
        model = next(iter(models))
    if not isinstance(model, str):
        problem = describe(model) if "model" in members else "missing"
        raise RestError(f"model: {problem}; expected the name of a served model: {names}")
    if model not in models:
        raise RestError(f"model: {shorten(model)} is not {kind}; expected {names}", 404)
    values = {}
    for member, (default, is_valid, description) in expected.items():
        value = members.get(member)
        values[member] = default if value is None else value
        if not is_valid(values[member]):
            problem = "missing" if value is None else describe(value)
            raise RestError(f"{member}: {problem}; expected {description}")
    return model, values


def _texts(texts: Sequence[Any], member: str, expected: str = "a string") -> np.ndarray:
    """Converts the strings of a list to an array; raises a RestError for other values."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise RestError(f"{member}[{index}]: {describe(text)}; expected {expected}")
    return convert(texts, "string")


def _is_positive(value: Any) -> bool:
    """Returns whether a JSON value is a positive whole number, which JSON may write as 1.0."""
    return type(value) in (int, float) and value >= 1 and value % 1 == 0


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0


def _encode_list(items: Iterable[Any]) -> Iterator[bytes]:
    items, before = iter(items), b"["
    while part := [*itertools.islice(items, _ITEMS)]:
        yield before + dumps(part)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"


# --- Embeddings in OpenAI's format ---
#
#     {"model": NAME, "input": "a text" or ["a text", ...]}
#     -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...],
#         "truncated": false}, ...], "model": NAME,
#         "usage": {"prompt_tokens": N, "total_tokens": N}}
#
# A text may also be a list of token ids. Optional members of a request are `encoding_format`
# ("float" or "base64", little-endian float32), `dimensions` (a Matryoshka size of the model) and
# `user`, which is ignored; null means absent. N is the number of tokens after truncation, including
# [CLS] and [SEP].


class EmbeddingModel(NamedTuple):
    """The vectors that a served version returns.

    Attributes:
        output: the output with the vector of a text.
        width: the size of this vector.
        sizes: the sizes that a request may ask for.
        normalize: whether vectors have length 1.
        max_seq_length: the maximum number of token ids of a text, with [CLS] and [SEP].
        special_ids: the ids of [CLS] and [SEP]; None if the export does not have them.
    """

    output: str
    width: int
    sizes: tuple[int, ...]
    normalize: bool
    max_seq_length: int = 0
    special_ids: tuple[int, int] | None = None


def embedding_model(export: Mapping[str, Any]) -> EmbeddingModel | None:
    """Reads the export.json of a version; returns None if it is not of an embedding model.

    The vector is the one that sentence-transformers uses, or the mean if that is unknown.
    """
    name = export.get("pooling") or "mean"
    outputs = export["signatures"][DEFAULT_SIGNATURE]["outputs"]
    if export["task"] != "embedding" or not outputs.keys() >= {name, _TOKEN_COUNT}:
        return None
    width = outputs[name][1][-1]
    sizes = {size for size in export.get("matryoshka_sizes", ()) if size < width} | {width}
    special_ids = None
    if "cls_token_id" in export and _TOKEN_IDS in export["signatures"]:
        special_ids = (export["cls_token_id"], export["sep_token_id"])
    return EmbeddingModel(
        name,
        width,
        tuple(sorted(sizes)),
        export.get("normalize") is True,
        export.get("max_seq_length", 0),
        special_ids,
    )


_EMBEDDINGS = {
    "model": _ANY,
    "input": (
        None,
        lambda value: isinstance(value, str) or _is_filled(value),
        "a string, a list of token ids, or a list of strings or of lists of token ids",
    ),
    "encoding_format": (
        "float",
        lambda value: value in ("float", "base64"),
        '"float" or "base64"',
    ),
    "dimensions": _ANY,
    "user": _ANY,
}


def decode_embedding_call(body: bytes, models: Mapping[str, EmbeddingModel]) -> tuple[str, Call]:
    """Decodes the body of a request to one of the models, and returns the name of the model."""
    kind = "an embedding model"
    name, values = _read_request(body, models, kind, _EMBEDDINGS, needs_model=True)
    model = models[name]
    size = model.width if values["dimensions"] is None else values["dimensions"]
    if type(size) is not int or size not in model.sizes:
        raise RestError(
            f"dimensions: {describe(size)}; expected a size that the model was trained for: "
            f"{', '.join(map(str, model.sizes))}"
        )
    texts = values["input"]
    if isinstance(texts, str) or _is_integer(texts[0]):
        texts = [texts]
    as_base64 = values["encoding_format"] == "base64"

    def encode(outputs: Arrays) -> Iterator[bytes]:
        vectors = outputs[model.output].astype("<f4", copy=False)[:, :size]
        if model.normalize and size < model.width:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = (vectors / np.maximum(lengths, 1e-12)).astype("<f4")
        yield b'{"object":"list","data":['
        for index, vector in enumerate(vectors):
            embedding = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector
            item = {"object": "embedding", "index": index, "embedding": embedding}
            if TRUNCATED in outputs:
                item[TRUNCATED] = bool(outputs[TRUNCATED][index])
            yield b"," * bool(index) + dumps(item)
        count = int(outputs[_TOKEN_COUNT].sum())
        usage = {"prompt_tokens": count, "total_tokens": count}
        yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]

    if isinstance(texts[0], list):
        return name, Call(_TOKEN_IDS, _token_ids(texts, model), encode)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise RestError(
                f"input[{index}]: {describe(text)}; expected a string that is not empty, like "
                "the others, or only lists of token ids"
            )
    return name, Call(DEFAULT_SIGNATURE, {"text": convert(texts, "string")}, encode)


def _token_ids(rows: Sequence[Any], model: EmbeddingModel) -> Arrays:
    """Converts lists of token ids to the inputs of the signature `token_ids`, with padding.

    The ids of another tokenizer would give vectors without meaning. A list must therefore start
    with [CLS] and end with [SEP], as lists from the model's own tokenizer do.
    """
    if model.special_ids is None:
        raise RestError(
            "input: the export of the served model does not specify the ids of [CLS] and [SEP]; "
            "expected strings, or a model that is exported again"
        )
    first, last = model.special_ids
    for index, row in enumerate(rows):
        is_list = isinstance(row, list) and len(row) > 1 and all(map(_is_integer, row))
        if not is_list or (row[0], row[-1]) != (first, last) or len(row) > model.max_seq_length:
            count = f" of length {len(row)}" if isinstance(row, list) else ""
            raise RestError(
                f"input[{index}]: {describe(row)}{count}; expected at most {model.max_seq_length} "
                f"token ids of the model's own tokenizer, from {first}, [CLS], to {last}, [SEP]; "
                "for the ids of another tokenizer, send the text (in LangChain with "
                "check_embedding_ctx_length=False)"
            )
    longest = max(map(len, rows))
    if len(rows) * longest > _MAX_TOKEN_IDS:
        raise RestError(
            f"input: {len(rows)} lists, padded to the longest of {longest} token ids; expected at "
            f"most {_MAX_TOKEN_IDS} ids with padding; send fewer lists per request"
        )
    mask = np.arange(longest) < np.array([[len(row)] for row in rows])
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = [token_id for row in rows for token_id in row]
    zeros = np.zeros_like(ids)
    return {"input_ids": ids, "input_mask": mask.astype(np.int32), "segment_ids": zeros}


def _is_integer(value: Any) -> bool:
    """Returns whether a JSON value is an integer that fits into 32 bits."""
    return type(value) is int and -(2**31) <= value < 2**31


# --- Ranking in the formats of TEI and of Cohere and Jina ---
#
#     {"query": "a text", "texts": ["a text", ...]}    TEI
#     -> [{"index": 1, "score": 0.9}, ...]
#
#     {"query": "a text", "documents": ["a text" or {"text": "a text"}, ...], "top_n": 2}    Cohere
#     -> {"model": NAME, "results": [{"index": 1, "relevance_score": 0.9}, ...], "usage": {}}
#
# The most relevant text is first; texts with equal scores keep their order. A score is the sigmoid
# of the model's logit, or with "raw_scores" the logit.

_QUERY = (None, lambda value: isinstance(value, str) and value.strip(), "a text that is not blank")
_RERANK = {
    "model": _ANY,
    "query": _QUERY,
    "texts": (None, _is_filled, "a list of at least one string"),
    "raw_scores": _FLAG,
    "return_text": _FLAG,
    "truncate": (True, *_FLAG[1:]),
    "truncation_direction": ("right", lambda value: value in ("right", "Right"), '"right"'),
}
_RERANK_DOCUMENTS = {
    "model": _ANY,
    "query": _QUERY,
    "documents": (None, _is_filled, "a list of at least one document"),
    "top_n": (2**31, _is_positive, "a whole number above 0"),
    "return_documents": _FLAG,
    "max_tokens_per_doc": _ANY,
}


def decode_rerank_call(body: bytes, models: Iterable[str]) -> tuple[str, Call]:
    """Decodes a request in TEI's format to a reranker, as `decode_embedding_call`."""
    name, values = _read_request(body, models, "a reranker", _RERANK)
    texts, has_text = values["texts"], values["return_text"]

    def encode(outputs: Arrays) -> Iterator[bytes]:
        if not values["truncate"] and outputs[TRUNCATED].any():
            raise RestError(
                f"texts[{np.argmax(outputs[TRUNCATED])}]: has, with the query, more tokens than "
                'the model reads; expected a shorter text, or "truncate": true'
            )
        yield from _encode_list(
            {"index": index, "score": score} | ({"text": texts[index]} if has_text else {})
            for index, score in _ranking(outputs, "texts", values["raw_scores"])
        )

    return name, _pair_call(values["query"], _texts(texts, "texts"), encode)


def decode_rerank_documents_call(body: bytes, models: Iterable[str]) -> tuple[str, Call]:
    """Decodes a request in the format of Cohere and Jina, as `decode_rerank_call`."""
    name, values = _read_request(body, models, "a reranker", _RERANK_DOCUMENTS)
    texts = [each.get("text") if isinstance(each, dict) else each for each in values["documents"]]
    expected = 'a string, or an object with the string "text"'

    def encode(outputs: Arrays) -> Iterator[bytes]:
        yield b'{"model":' + dumps(name) + b',"usage":{},"results":'
        yield from _encode_list(
            {"index": index, "relevance_score": score}
            | ({"document": {"text": texts[index]}} if values["return_documents"] else {})
            for index, score in _ranking(outputs, "documents")[: int(values["top_n"])]
        )
        yield b"}"

    return name, _pair_call(values["query"], _texts(texts, "documents", expected), encode)


def _pair_call(query: str, texts: np.ndarray, encode: Callable) -> Call:
    queries = np.empty_like(texts)
    queries.fill(query.encode())  # One object, however many texts there are.
    return Call(DEFAULT_SIGNATURE, {"text": queries, "text_pair": texts}, encode)


def _ranking(
    outputs: Arrays, member: str, raw_scores: bool = False
) -> list[tuple[int, np.float32]]:
    """Returns the index and the score of each text, the highest score first."""
    logits = outputs["logits"][:, 0].astype(np.float64)
    if not np.isfinite(logits).all():
        index = np.argmin(np.isfinite(logits))
        raise RestError(
            f"{member}[{index}]: the model's score is {logits[index]}; expected a finite number; "
            "export a model with finite weights",
            500,
        )
    scores = logits if raw_scores else np.exp(-np.logaddexp(0, -logits))
    order = np.argsort(-logits, kind="stable")
    return list(zip(order.tolist(), scores[order].astype(np.float32), strict=True))


# --- Tokens in TEI's format ---
#
#     {"inputs": "a text" or ["a text", ...], "add_special_tokens": true}
#     -> [[{"id": 101, "text": "[CLS]", "special": true, "start": null, "stop": null},
#          {"id": 1037, "text": "a", "special": false, "start": 0, "stop": 1}, ...], ...]
#
# "text" is the part of the text from character `start` to `stop`. Texts are not truncated.


_TOKENIZE = {
    "model": _ANY,
    "inputs": (
        None,
        lambda value: isinstance(value, str) or _is_filled(value),
        "a string, or a list of at least one string",
    ),
    "add_special_tokens": (True, *_FLAG[1:]),
}


def decode_tokenize_call(body: bytes, models: Mapping[str, tuple[int, int]]) -> tuple[str, Call]:
    """Decodes a request to a model, as `decode_embedding_call`.

    `models` has the ids of [CLS] and [SEP] of each model.
    """
    name, values = _read_request(body, models, "a model with a tokenizer", _TOKENIZE)
    texts = [values["inputs"]] if isinstance(values["inputs"], str) else values["inputs"]
    special_ids = models[name] if values["add_special_tokens"] else ()

    def encode(outputs: Arrays) -> Iterator[bytes]:
        for index, text in enumerate(texts):
            columns = (outputs[key][index] for key in ("ids", "starts", "stops"))
            yield b"," if index else b"["
            yield from _encode_list(_tokens(text, *columns, special_ids))
        yield b"]"

    return name, Call(TOKENIZE, {"text": _texts(texts, "inputs")}, encode)


def _tokens(
    text: str, ids: np.ndarray, starts: np.ndarray, stops: np.ndarray, special_ids: Sequence[int]
) -> Iterator[dict[str, Any]]:
    special = [
        {"id": token_id, "text": token, "special": True, "start": None, "stop": None}
        for token_id, token in zip(special_ids, ("[CLS]", "[SEP]"), strict=False)
    ]
    yield from special[:1]
    count = np.count_nonzero(ids >= 0)  # The others are padding.
    rows = (array[:count].tolist() for array in (ids, starts, stops))
    for token_id, start, stop in zip(*rows, strict=True):
        token = text[start:stop]
        yield {"id": token_id, "text": token, "special": False, "start": start, "stop": stop}
    yield from special[1:]


# --- All formats ---


_NO_RERANKER = (
    "is not a reranker; expected the export of a TextClassifier with problem_type='reranking'"
)


def _is_reranker(version: Version) -> bool:
    return version.export.get("problem_type") == "reranking"


def _special_ids(version: Version) -> tuple[int, int] | None:
    """Returns the ids of [CLS] and [SEP]; None for an export without a tokenizer."""
    export = version.export
    has_tokenizer = TOKENIZE in version.signatures
    return (export["cls_token_id"], export["sep_token_id"]) if has_tokenizer else None


# {path: the function that decodes a body, with {name: description} of the models that support the
# format, to the name of a model and a call; the function that describes a version, with a false
# value if it does not support the format; and what such versions are or lack, with a remedy}
FORMATS = {
    "/v1/embeddings": (
        decode_embedding_call,
        lambda version: embedding_model(version.export),
        "returns no embeddings with token counts; expected the export of a TextEmbedder of this "
        "version of keras_bert",
    ),
    "/rerank": (decode_rerank_call, _is_reranker, _NO_RERANKER),
    "/v1/rerank": (decode_rerank_documents_call, _is_reranker, _NO_RERANKER),
    "/tokenize": (
        decode_tokenize_call,
        _special_ids,
        "has no tokenizer; expected a model that this version of keras_bert exported",
    ),
}


def supporting_models(
    describe: Callable[[Version], Any], served: Mapping[str, Version]
) -> dict[str, Any]:
    """Returns {name: description} of the served versions with a description."""
    described = {name: describe(version) for name, version in served.items()}
    return {name: model for name, model in described.items() if model}


def encode_error(route: str, status: int, message: str) -> dict[str, Any]:
    """Returns the body of an error response, in the format of the API that a route is from."""
    if route == "embeddings":
        kind = "invalid_request_error" if status < 500 else "server_error"
        code = {401: "invalid_api_key", 404: "model_not_found"}.get(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}
    if route in ("rerank", "tokenize"):
        kind = "Validation" if status < 500 else "Overloaded" if status == 503 else "Backend"
        return {"error": message, "error_type": kind}
    if route == "rerank_documents":  # Clients of Cohere read `message`, those of Jina `detail`.
        return {"message": message, "detail": message}
    return {"error": message}
