"""Converts request bodies to arrays, and arrays to responses.

The JSON is that of TensorFlow Serving, or for embeddings that of OpenAI. TensorFlow Serving's row
format is {"instances": [...]} -> {"predictions": [...]}, the columnar format {"inputs": {...}} ->
{"outputs": {...}}. The inputs alone, such as {"text": "..."}, are one row of the row format.
Tensors become arrays [B] or [B, S], with strings as bytes in object arrays; bytes that are not a
UTF-8 text are sent as {"b64": "..."}.

The signatures of a model are those of its export.json: {signature: {"inputs": {name: [dtype,
shape]}, "outputs": {name: [dtype, shape]}}}.

orjson does not let other threads run while it parses a body or formats a value. Bodies with a
very large number of lists or objects are therefore rejected, and responses are formatted in parts.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson

from keras_bert.errors import shorten

DEFAULT_SIGNATURE = "serving_default"
_TOKEN_IDS = "token_ids"  # the signature for texts that the client has tokenized
_MAX_BRACKETS = 1 << 17  # maximum number of lists and objects in a body, which take 0.1 s
_MAX_TOKEN_IDS = 1 << 22  # maximum number of token ids in a body, with padding
_STEP = 1 << 14  # number of values that are formatted in one step
_TOKEN_COUNT = "num_tokens"  # the output with the number of tokens of each text
TRUNCATED = "truncated"  # the output with whether tokens of each text were removed
# Outputs that are -1 in the padding of rows with fewer entities or masks than the longest row.
_PADDED_WITH_MINUS_ONE = ("starts", "token_ids")
_SCHEMA_FILE = Path(__file__).with_name("openapi.json")

Arrays = dict[str, np.ndarray]
Signatures = Mapping[str, Mapping[str, Mapping[str, Sequence]]]


class RestError(Exception):
    """A failed request, which is answered with an HTTP status and {"error": message}."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.message = message
        self.status = status


class Call(NamedTuple):
    """A request: the name of a signature, its inputs, and what encodes the outputs as JSON.

    `encode` yields the text in parts, each made in a few milliseconds, so that other threads run
    in the meantime.
    """

    signature: str
    inputs: Arrays
    encode: Callable[[Arrays], Iterator[bytes]]


# --- Requests ---


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a body that must be a JSON object in UTF-8, with or without a byte order mark.

    Raises:
        RestError: the body is not JSON, not an object, or has too many lists and objects.
    """
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise RestError(
            f"The request body has more than {_MAX_BRACKETS} lists and objects (the characters [ "
            "and {), the maximum; send fewer rows per request"
        )
    try:
        value = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise RestError(f"The request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RestError(f"The request body is {describe(value)}; expected a JSON object")
    return value


def describe(value: Any) -> str:
    """Describes a JSON value in an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value, ensure_ascii=False))


def decode_call(body: bytes, export: Mapping[str, Any]) -> Call:
    """Decodes the body of a predict request, for a model with this export.json.

    Raises:
        RestError: the request is invalid.
    """
    document, signatures = parse_object(body), export["signatures"]
    name = document.get("signature_name", "") or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        raise RestError(
            f"signature_name: {describe(name)}; expected one of {', '.join(sorted(signatures))}"
        )
    specs = signatures[name]["inputs"]
    row = {key: value for key, value in document.items() if key != "signature_name"}
    if row.keys() == specs.keys():
        document = {"instances": [row]}
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        raise RestError(
            "The request body must have either 'instances' or 'inputs', or for one row only "
            f"{', '.join(sorted(specs))}"
        )
    if by_row:
        columns = _columns_of_rows(document["instances"], specs)
    else:
        columns = _columns(document["inputs"], specs)
    inputs = {key: to_array(columns[key], key, *spec) for key, spec in specs.items()}
    if len({len(array) for array in inputs.values()}) > 1:
        counts = ", ".join(f"{key} has {len(array)}" for key, array in inputs.items())
        raise RestError(f"Inputs must have equal numbers of rows: {counts}")
    as_rows = partial(encode_rows, labels=export.get("labels") or ())
    return Call(name, inputs, as_rows if by_row else encode_columns)


def _columns_of_rows(rows: Any, specs: Mapping[str, Any]) -> dict[str, list]:
    if not isinstance(rows, list) or not rows:
        raise RestError("instances: expected a list of at least one row")
    if len(specs) == 1 and not any(map(_is_named, rows)):
        return {next(iter(specs)): rows}
    for number, row in enumerate(rows):
        if not _is_named(row) or row.keys() != specs.keys():
            names = f"an object with {shorten(', '.join(row))}" if _is_named(row) else describe(row)
            raise RestError(
                f"instances[{number}]: {names}; expected an object with {', '.join(sorted(specs))}"
            )
    return {name: [row[name] for row in rows] for name in specs}


def _columns(value: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    if len(specs) == 1 and not _is_named(value):
        return {next(iter(specs)): value}
    if not _is_named(value) or not specs.keys() <= value.keys():
        names = ", ".join(sorted(specs))
        raise RestError(f"inputs: found no object with all inputs; expected {names}")
    return value


def _is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, and not {"b64": string}."""
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get("b64"), str))


def to_array(value: Any, name: str, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Converts nested lists of strings or integers to an array, for the input with this name.

    Raises:
        RestError: the lists are ragged, or a value has another type or is out of range.
    """
    sizes, leaves = [], [value]
    for _ in shape:
        if not all(isinstance(leaf, list) and len(leaf) == len(leaves[0]) for leaf in leaves):
            raise RestError(f"{name}: expected lists of equal length, {len(shape)} deep")
        sizes.append(len(leaves[0]) if leaves else 0)
        leaves = [element for leaf in leaves for element in leaf]
    try:
        return _convert(leaves, dtype).reshape(sizes)
    except (TypeError, OverflowError):
        wrong = next(i for i, leaf in enumerate(leaves) if not _fits(leaf, dtype))
        position = "".join(f"[{int(index)}]" for index in np.unravel_index(wrong, sizes))
        kind = f"a number of type {dtype}"
        if dtype == "string":
            kind = 'a string, or bytes as {"b64": string in base 64}'
        raise RestError(f"{name}{position}: {describe(leaves[wrong])}; expected {kind}") from None


def _convert(values: list, dtype: str) -> np.ndarray:
    """Converts scalars to an array [N]; raises a TypeError or OverflowError for invalid ones."""
    if dtype == "string":
        array = np.empty(len(values), object)
        array[:] = [_to_bytes(value) for value in values]
        return array
    if not set(map(type, values)) <= {int}:
        raise TypeError
    return np.array(values, dtype)


def _fits(value: Any, dtype: str) -> bool:
    try:
        _convert([value], dtype)
    except (TypeError, OverflowError):
        return False
    return True


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        encoded = value["b64"].rstrip("=")
        try:
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            pass
    raise TypeError


# --- Responses ---


def encode_rows(outputs: Arrays, labels: Sequence[str] = ()) -> Iterator[bytes]:
    """Encodes outputs as {"predictions": [row, ...]}; a row of a single output has no name.

    Bytes that are not UTF-8 become U+FFFD. Lists of entities and masks have no padding. A row with
    the `probabilities` of all `labels` also has `classes`, the most probable first.
    """
    yield b'{"predictions":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
        yield b"}"
        return
    counts = _list_lengths(outputs)
    has_classes = outputs.get("probabilities", np.empty(0)).shape[1:] == (len(labels),)
    rows = len(next(iter(outputs.values())))
    step = max(1, _STEP * rows // max(1, sum(array.size for array in outputs.values())))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        columns = {name: _json_values(array[part]) for name, array in outputs.items()}
        if counts is not None:
            for name in (name for name, array in outputs.items() if array.ndim > 1):
                columns[name] = [v[:n] for v, n in zip(columns[name], counts[part], strict=True)]
        if has_classes:
            columns["classes"] = [_classes(labels, row) for row in outputs["probabilities"][part]]
        names, values = zip(*sorted(columns.items()), strict=True)
        objects = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        yield (b"," if start else b"[") + _dumps(objects)[1:-1]
    yield b"]}"


def _list_lengths(outputs: Arrays) -> np.ndarray | None:
    """Returns the number of entities or masks of each row; None if the rows have no such lists."""
    for name in _PADDED_WITH_MINUS_ONE:
        if name in outputs:
            values = outputs[name]
            return (values >= 0).any(axis=tuple(range(2, values.ndim))).sum(axis=1)
    return None


def _classes(labels: Sequence[str], probabilities: np.ndarray) -> list[dict[str, Any]]:
    order = np.argsort(-probabilities, kind="stable")
    return [{"label": labels[index], "score": probabilities[index]} for index in order]


def encode_columns(outputs: Arrays) -> Iterator[bytes]:
    """Encodes outputs as {"outputs": {name: rows}}; a single output has no name."""
    yield b'{"outputs":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
    else:
        for index, name in enumerate(sorted(outputs)):
            yield (b"," if index else b"{") + _dumps(name) + b":"
            yield from encode_array(outputs[name])
        yield b"}"
    yield b"}"


def encode_array(array: np.ndarray) -> Iterator[bytes]:
    """Yields the JSON text of an array of at least one dimension in parts."""
    step = max(1, _STEP * len(array) // max(1, array.size))
    for start in range(0, max(1, len(array)), step):
        yield (b"," if start else b"[") + _dumps(_json_values(array[start : start + step]))[1:-1]
    yield b"]"


def _json_values(array: np.ndarray) -> Any:
    """Converts an array to values that `_dumps` formats: an array, or nested lists."""
    if array.dtype != object:
        return np.ascontiguousarray(array)
    texts = np.empty(array.size, object)
    texts[:] = [value.decode("utf-8", "replace") for value in array.flat]
    return texts.reshape(array.shape).tolist()


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


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


def decode_embedding_call(body: bytes, models: Mapping[str, EmbeddingModel]) -> tuple[str, Call]:
    """Decodes the body of a request to one of the models, and returns the name of the model.

    Raises:
        RestError: the request is invalid (status 400), or for another model (404).
    """
    body_members = parse_object(body)
    name, names = body_members.get("model"), ", ".join(models)
    if not isinstance(name, str):
        found = describe(name) if "model" in body_members else "missing"
        raise RestError(f"model: {found}; expected the name of a served model: {names}")
    if name not in models:
        raise RestError(f"model: {shorten(name)} is not an embedding model; expected {names}", 404)
    model = models[name]
    document = {"encoding_format": "float", "dimensions": model.width}
    document |= {key: value for key, value in body_members.items() if value is not None}
    texts = document.get("input")
    if isinstance(texts, str) or (isinstance(texts, list) and texts and _is_integer(texts[0])):
        texts = [texts]
    sizes = ", ".join(map(str, model.sizes))
    # Member -> whether its value is valid, and what is expected.
    members = {
        "model": (True, ""),
        "input": (
            isinstance(texts, list) and texts,
            "a string, a list of token ids, or a list of strings or of lists of token ids",
        ),
        "encoding_format": (
            document["encoding_format"] in ("float", "base64"),
            '"float" or "base64"',
        ),
        "dimensions": (
            type(document["dimensions"]) is int and document["dimensions"] in model.sizes,
            f"a size that the model was trained for: {sizes}",
        ),
        "user": (True, ""),
    }
    for member in body_members:
        if member not in members:
            raise RestError(f"{shorten(member)}: unknown; expected {', '.join(members)}")
    for member, (is_valid, expected) in members.items():
        if not is_valid:
            value = describe(document[member]) if member in document else "missing"
            raise RestError(f"{member}: {value}; expected {expected}")
    encode = partial(
        encode_embeddings,
        model=model,
        name=name,
        size=document["dimensions"],
        as_base64=document["encoding_format"] == "base64",
    )
    if isinstance(texts[0], list):
        return name, Call(_TOKEN_IDS, _token_ids(texts, model), encode)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise RestError(
                f"input[{index}]: {describe(text)}; expected a string that is not empty, like "
                "the others, or only lists of token ids"
            )
    return name, Call(DEFAULT_SIGNATURE, {"text": _convert(texts, "string")}, encode)


def _token_ids(rows: Sequence[Any], model: EmbeddingModel) -> Arrays:
    """Converts lists of token ids to the inputs of the signature `token_ids`, with padding.

    The ids of another tokenizer would give vectors without meaning. A list must therefore start
    with [CLS] and end with [SEP], as lists from the model's own tokenizer do.

    Raises:
        RestError: a list is not the ids of a text that fits into the model.
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


def encode_embeddings(
    outputs: Arrays, *, model: EmbeddingModel, name: str, size: int, as_base64: bool
) -> Iterator[bytes]:
    """Yields the JSON text of a response in parts, one for each text."""
    vectors = outputs[model.output].astype("<f4", copy=False)[:, :size]
    if model.normalize and size < model.width:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-12)).astype("<f4")
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        values = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector
        item = {"object": "embedding", "index": index, "embedding": values}
        if TRUNCATED in outputs:
            item[TRUNCATED] = bool(outputs[TRUNCATED][index])
        yield b"," * bool(index) + _dumps(item)
    count = int(outputs[_TOKEN_COUNT].sum())
    usage = {"prompt_tokens": count, "total_tokens": count}
    yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]


# --- The OpenAPI document ---


def describe_routes(exports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the server, from openapi.json.

    `exports` has the content of export.json of each model, by the model's name.
    """
    text, document = _SCHEMA_FILE.read_text("utf-8"), {}
    for index, (name, export) in enumerate(exports.items()):
        number = str(index or "")
        part = json.loads(text.replace("MODEL_NUMBER", number).replace("MODEL_NAME", quote(name)))
        part["components"]["schemas"][f"Predict{number}"] = {
            "anyOf": [
                _body_schema(signature, specs["inputs"], member)
                for signature, specs in sorted(export["signatures"].items())
                for member in ("instances", "inputs", "")
            ]
        }
        document = document or part
        document["paths"] |= part["paths"]
        for kind, components in part["components"].items():
            document["components"][kind] |= components
    models = {name: embedding_model(export) for name, export in exports.items()}
    models = {name: model for name, model in models.items() if model}
    if models:
        request = document["components"]["schemas"]["EmbeddingsRequest"]["properties"]
        request["model"]["enum"] = [*models]
        sizes = {size for model in models.values() for size in model.sizes}
        request["dimensions"]["enum"] = [*sorted(sizes), None]
    else:
        del document["paths"]["/v1/embeddings"]
    return document


def _body_schema(name: str, specs: Mapping[str, Sequence], member: str) -> dict[str, Any]:
    """Returns the JSON schema of a body with rows in `member`; "" for the inputs of one row."""
    by_row, is_default = member != "inputs", name == DEFAULT_SIGNATURE
    tensors = {key: _tensor_schema(*spec, by_row) for key, spec in specs.items()}
    signature_name = {"signature_name": {"enum": [name, ""] if is_default else [name]}}
    required = [] if is_default else ["signature_name"]
    row = {"type": "object", "required": sorted(tensors), "properties": tensors}
    if by_row:
        row["additionalProperties"] = False
    if not member:
        row["required"] += required
        return row | {"properties": tensors | signature_name}
    kinds = [row, *(tensors.values() if len(specs) == 1 else ())]
    if by_row:  # The rows are either all objects of named inputs or all values of the only input.
        kinds = [{"type": "array", "minItems": 1, "items": kind} for kind in kinds]
    return {
        "type": "object",
        "required": [member, *required],
        "properties": signature_name | {member: {"anyOf": kinds}},
        "not": {"required": ["inputs" if by_row else "instances"]},
    }


def _tensor_schema(dtype: str, shape: Sequence[int], by_row: bool) -> dict[str, Any]:
    """Returns the JSON schema of a tensor, or with `by_row`, of one of its rows."""
    if dtype == "string":
        schema = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base64"}]}
    else:
        limits = np.iinfo(dtype)
        schema = {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    for _ in shape[int(by_row) :]:
        schema = {"type": "array", "items": schema}
    return schema
