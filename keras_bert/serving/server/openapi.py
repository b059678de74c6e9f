"""Creates the server's OpenAPI schema from openapi.json and the model's signatures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from keras_bert.serving.server.protocol import DEFAULT_SIGNATURE, Input

_FILE = Path(__file__).with_name("openapi.json")
_STRING = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base64"}]}


def describe_routes(
    model_name: str,
    signatures: Mapping[str, Mapping[str, Input]],
    vector_sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the server.

    Args:
        model_name: the name of the served model.
        signatures: {signature: {input name: `Input`}}.
        vector_sizes: the sizes of embeddings that a request may ask for; empty for a model that
            returns no embeddings.
    """
    document = json.loads(_FILE.read_text("utf-8").replace("MODEL_NAME", quote(model_name)))
    bodies = [
        body
        for name, inputs in sorted(signatures.items())
        for body in (_rows(name, inputs), _columns(name, inputs))
    ]
    schemas = document["components"]["schemas"]
    schemas["Predict"] = {"anyOf": bodies}
    if vector_sizes:
        request = schemas["EmbeddingsRequest"]["properties"]
        request["model"]["enum"] = [model_name]
        request["dimensions"]["enum"] = [*vector_sizes, None]
    else:
        del document["paths"]["/v1/embeddings"]
        for name in ("EmbeddingsRequest", "EmbeddingsResponse", "OpenAIError"):
            del schemas[name]
        del document["components"]["responses"]["OpenAIError"]
    return document


def _rows(name: str, inputs: Mapping[str, Input]) -> dict[str, Any]:
    row = _object({key: _tensor(tensor, skip_dimensions=1) for key, tensor in inputs.items()})
    kinds = [row | {"additionalProperties": False}]
    if len(inputs) == 1:
        kinds += row["properties"].values()
    # The rows are either all objects of named inputs or all values of the only input.
    rows = {"anyOf": [{"type": "array", "minItems": 1, "items": kind} for kind in kinds]}
    return _body(name, {"instances": rows}, "inputs")


def _columns(name: str, inputs: Mapping[str, Input]) -> dict[str, Any]:
    columns = [_object({key: _tensor(tensor) for key, tensor in inputs.items()})]
    if len(inputs) == 1:
        columns += columns[0]["properties"].values()
    return _body(name, {"inputs": {"anyOf": columns}}, "instances")


def _body(name: str, values: dict[str, Any], other: str) -> dict[str, Any]:
    is_default = name == DEFAULT_SIGNATURE
    names = {"enum": [name, ""] if is_default else [name]}
    body = _object({"signature_name": names} | values)
    if is_default:
        body["required"].remove("signature_name")
    return body | {"not": {"required": [other]}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _tensor(tensor: Input, skip_dimensions: int = 0) -> dict[str, Any]:
    """Returns the JSON schema of a tensor without its first `skip_dimensions` dimensions."""
    schema = _value(tensor.dtype)
    if tensor.shape is None:
        return {"anyOf": [schema, {"type": "array"}]}
    for size in reversed(tensor.shape[skip_dimensions:]):
        schema = {"type": "array", "items": schema}
        if size is not None:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def _value(dtype: str) -> dict[str, Any]:
    if dtype == "string":
        return _STRING
    if dtype == "bool":
        return {"type": "boolean"}
    if dtype in ("float", "double"):
        return {"type": "number"}
    limits = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
