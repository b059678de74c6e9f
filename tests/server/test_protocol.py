"""TensorFlow Serving's row and column formats of requests and responses, and its errors."""

import json

import numpy as np
import pytest

from keras_bert.server.errors import RestError
from keras_bert.server.protocol import Input, decode_call, encode_outputs

SIGNATURES = {
    "serving_default": {"text": Input("string", (None,))},
    "pair": {"a": Input("string", (None,)), "b": Input("string", (None,))},
    "ids": {"ids": Input("int32", (None, None)), "weight": Input("float", (None, None))},
    "any": {"x": Input("int64", None)},
    "flags": {"on": Input("bool", (None,))},
    "odd": {"x": Input("complex64", None)},
}


def decode(document) -> dict:
    call = decode_call(json.dumps(document).encode(), SIGNATURES, max_rows=4)
    return {name: array.tolist() for name, array in call.inputs.items()}


@pytest.mark.parametrize(
    ("document", "inputs"),
    [
        ({"instances": ["a", "ü"]}, {"text": [b"a", "ü".encode()]}),
        ({"instances": [{"text": "a"}]}, {"text": [b"a"]}),
        ({"instances": [{"b64": "/w=="}, "a"]}, {"text": [b"\xff", b"a"]}),
        ({"instances": [{"b64": "/w"}]}, {"text": [b"\xff"]}),
        ({"inputs": ["a", "b"], "signature_name": ""}, {"text": [b"a", b"b"]}),
        ({"inputs": {"text": ["a"]}}, {"text": [b"a"]}),
        ({"inputs": {"text": []}}, {"text": []}),
        (
            {"signature_name": "pair", "instances": [{"b": "y", "a": "x"}]},
            {"a": [b"x"], "b": [b"y"]},
        ),
        (
            {"signature_name": "pair", "inputs": {"a": ["x"], "b": ["y"], "other": 1}},
            {"a": [b"x"], "b": [b"y"]},
        ),
        (
            {"signature_name": "ids", "instances": [{"ids": [1, -2], "weight": [1, 0.5]}]},
            {"ids": [[1, -2]], "weight": [[1.0, 0.5]]},
        ),
        ({"signature_name": "any", "inputs": 2**62}, {"x": 2**62}),
        ({"signature_name": "any", "inputs": [[1], [2]]}, {"x": [[1], [2]]}),
        ({"signature_name": "any", "instances": [1, 2]}, {"x": [1, 2]}),
        ({"signature_name": "any", "inputs": [[2**62, 1], [-1, 0]]}, {"x": [[2**62, 1], [-1, 0]]}),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1]], "weight": [[1, 0.5], [2, 3]]}},
            {"ids": [[1]], "weight": [[1.0, 0.5], [2.0, 3.0]]},
        ),
        ({"signature_name": "flags", "instances": [True, False]}, {"on": [True, False]}),
    ],
)
def test_valid_requests_are_decoded(document, inputs):
    assert decode(document) == inputs


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"signature_name": 1, "inputs": []}, "'signature_name' key must be a string value."),
        (
            {"signature_name": "x", "inputs": []},
            'Serving signature name: "x" not found in signature def',
        ),
        ({"instances": [], "inputs": []}, "expecting only one of 'inputs' or 'instances'"),
        ({"instances": "a"}, "Excepting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": ["a"] * 5}, "The request has 5 rows; expected at most 4"),
        ({"signature_name": "any", "instances": [1] * 5}, "has 5 rows; expected at most 4"),
        (
            {"instances": [1]},
            "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: "
            "JSON Value: 1 Type: Number is not of expected type: string",
        ),
        ({"instances": [None]}, "JSON Value: null Type: Null is not of"),
        ({"instances": [True]}, "JSON Value: true Type: True is not of"),
        ({"instances": [{"text": {"x": 1}}]}, "not formatted correctly for base64 data"),
        ({"instances": [{"b64": "?"}]}, "Unable to base64 decode"),
        (
            {"instances": [{"text": "a"}, {"texts": "a"}]},
            "Failed to process element: 1 key: texts of 'instances' list. Error: "
            "INVALID_ARGUMENT: JSON object: does not have named input: texts",
        ),
        ({"instances": [{"text": "a"}, "b"]}, "Expecting object but got list at item 1 of input"),
        (
            {"instances": ["b", {"text": "a"}]},
            "Expecting value/list but got object at item 1 of input list",
        ),
        ({"instances": ["b", ["c"]]}, "Expecting shape [] but got: [1]"),
        ({"instances": [["a"], ["c"]]}, "Input text has shape [2,1]; expected [-1]"),
        ({"signature_name": "pair", "instances": ["a"]}, "instances is a plain list, but expecti"),
        (
            {"signature_name": "pair", "instances": [{"a": "x"}]},
            "must only have keys: a,b",
        ),
        ({"signature_name": "pair", "inputs": ["a"]}, "inputs is a plain value/list, but"),
        (
            {"signature_name": "pair", "inputs": {"a": ["x"]}},
            "Missing named input: b in 'inputs' object.",
        ),
        (
            {"signature_name": "ids", "instances": [{"ids": [1], "weight": [1]}, {"ids": [1, 2]}]},
            "Expecting tensor size: 1 but got: 2",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1], [1, 2]], "weight": []}},
            "Encountered list at unexpected size: 2 at level: 1 expected size: 1",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1], 1], "weight": []}},
            "JSON Value: 1 found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [1, [1]], "weight": []}},
            "Encountered list at unexpected level: 1 expected < 1",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1.0]], "weight": []}},
            "JSON Value: 1.0 Type: Number is not of expected type: int32",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[2**31]], "weight": []}},
            "Type: Number is not of expected type: int32",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1]], "weight": [[1e39]]}},
            "Cannot convert JSON value: 1e+39 to float without loss of precision.",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1, 2.5]], "weight": []}},
            "JSON Value: 2.5 Type: Number is not of expected type: int32",
        ),
        (
            {"signature_name": "ids", "inputs": {"ids": [[1], ["a"]], "weight": []}},
            'JSON Value: "a" Type: String is not of expected type: int32',
        ),
        (
            {"signature_name": "any", "inputs": [["a"], [1]]},
            'JSON Value: "a" Type: String is not of expected type: int64',
        ),
        ({"signature_name": "any", "inputs": [[[1]], [2]]}, "found at incorrect level: 3"),
        ({"signature_name": "flags", "inputs": [1]}, "is not of expected type: bool"),
    ],
)
def test_invalid_requests_are_rejected(document, message):
    with pytest.raises(RestError) as error:
        decode(document)
    assert error.value.status == 400
    assert message in error.value.message


def test_types_without_json_representation_are_rejected():
    with pytest.raises(RestError) as error:
        decode({"signature_name": "odd", "inputs": [1]})
    assert error.value.status == 501


def test_deeply_nested_lists_are_rejected():
    nested: list = [1]
    for _ in range(60):
        nested = [nested]
    with pytest.raises(RestError, match="unexpected level: 32"):
        decode({"signature_name": "any", "inputs": nested})


def encode(by_row: bool, **outputs) -> object:
    parts = encode_outputs({k: np.array(v) for k, v in outputs.items()}, by_row)
    return json.loads(b"".join(parts))


def strings(*values: bytes) -> np.ndarray:
    return np.array(values, object)


def test_outputs_are_encoded_by_row_and_by_column():
    outputs = {"label": strings(b"x", b"y"), "ids": np.array([[1, 2], [3, 4]], np.int32)}
    assert encode(True, **outputs) == {
        "predictions": [{"ids": [1, 2], "label": "x"}, {"ids": [3, 4], "label": "y"}]
    }
    assert encode(False, **outputs) == {"outputs": {"ids": [[1, 2], [3, 4]], "label": ["x", "y"]}}


def test_single_output_is_encoded_without_its_name():
    assert encode(True, x=[True, False]) == {"predictions": [True, False]}
    assert encode(False, x=[True, False]) == {"outputs": [True, False]}


@pytest.mark.slow
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("shape", [(3, 50_000), (50_000, 2), (2, 3, 9000), (40_000,)])
def test_large_outputs_are_encoded_in_parts(shape, by_row):
    numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    outputs = {"x": numbers, "y": numbers[..., :1] if len(shape) > 1 else numbers}
    parts = list(encode_outputs(outputs, by_row))
    assert max(map(len, parts)) < 200_000
    values = json.loads(b"".join(parts))
    if by_row:
        values = values["predictions"]
        found = {name: [row[name] for row in values] for name in outputs}
    else:
        found = values["outputs"]
    assert found == {name: array.tolist() for name, array in outputs.items()}
    (single,) = json.loads(b"".join(encode_outputs({"x": numbers}, by_row))).values()
    assert single == numbers.tolist()


def test_float32_is_encoded_as_short_decimals():
    values = np.array([0.2, 1.0, 1 / 3, np.nan, -np.inf, 3.4e38], np.float32)
    assert b"".join(encode_outputs({"x": values}, True)) == (
        b'{"predictions":[0.2,1.0,0.333333343,NaN,-Infinity,3.4e+38]}'
    )


def test_bytes_that_are_not_utf_8_are_encoded():
    assert encode(True, x=strings(b"a\xff")) == {"predictions": ["a�"]}
    assert encode(True, x_bytes=strings(b"a\xff")) == {"predictions": [{"b64": "Yf8="}]}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"x": 1.0}, "Tensor name: x has no shape information"),
        ({"x": np.zeros([0])}, "Tensor name: x has invalid batch size: 0"),
        ({"x": [1], "y": [1, 2]}, "Tensor name: y has inconsistent batch size: 2 expecting: 1"),
    ],
)
def test_outputs_without_matching_rows_are_rejected(outputs, message):
    with pytest.raises(RestError, match=message):
        encode(True, **outputs)
