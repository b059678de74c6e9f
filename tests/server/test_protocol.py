"""The row and column formats of requests and responses, and their errors."""

import json

import numpy as np
import pytest

from keras_bert.server.protocol import Call, Input, RestError, decode_call, encode_call

SIGNATURES = {
    "serving_default": {"text": Input("string", (None,))},
    "pair": {"a": Input("string", (None,)), "b": Input("string", (None,))},
    "ids": {"ids": Input("int32", (None, None)), "weight": Input("float", (None, None))},
    "any": {"x": Input("int64", None)},
    "floats": {"x": Input("double", None)},
    "flags": {"on": Input("bool", (None,))},
    "odd": {"x": Input("complex64", None)},
}


def decode(document, signature=None) -> dict:
    if signature:
        document = {"signature_name": signature} | document
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    call = decode_call(body, SIGNATURES)
    return {name: array.tolist() for name, array in call.inputs.items()}


def fail(document, signature=None) -> str:
    """Returns the message of a request that is rejected with status 400."""
    with pytest.raises(RestError) as error:
        decode(document, signature)
    assert error.value.status == 400
    return error.value.message


@pytest.mark.parametrize(
    ("signature", "document", "inputs"),
    [
        (None, {"instances": ["a", "ü"]}, {"text": [b"a", "ü".encode()]}),
        (None, {"instances": [{"text": "a"}]}, {"text": [b"a"]}),
        (None, {"instances": [{"b64": "/w=="}, "a"]}, {"text": [b"\xff", b"a"]}),
        (None, {"instances": [{"b64": "/w"}]}, {"text": [b"\xff"]}),
        (None, {"instances": ["\U0001f600\\ud800"]}, {"text": ["\U0001f600\\ud800".encode()]}),
        (None, b'\xef\xbb\xbf{"instances": ["a"]}', {"text": [b"a"]}),
        ("", {"inputs": ["a", "b"]}, {"text": [b"a", b"b"]}),
        (None, {"inputs": {"text": ["a"]}}, {"text": [b"a"]}),
        (None, {"inputs": {"text": []}}, {"text": []}),
        ("pair", {"instances": [{"b": "y", "a": "x"}]}, {"a": [b"x"], "b": [b"y"]}),
        ("pair", {"inputs": {"a": ["x"], "b": ["y"], "c": 1}}, {"a": [b"x"], "b": [b"y"]}),
        (
            "ids",
            {"instances": [{"ids": [1, -2], "weight": [1, 0.5]}]},
            {"ids": [[1, -2]], "weight": [[1.0, 0.5]]},
        ),
        (
            "ids",
            {"inputs": {"ids": [[1]], "weight": [[1, 0.5], [2, 3]]}},
            {"ids": [[1]], "weight": [[1.0, 0.5], [2.0, 3.0]]},
        ),
        ("any", {"inputs": 2**62}, {"x": 2**62}),
        ("any", {"instances": [1, 2]}, {"x": [1, 2]}),
        (
            "any",
            {"inputs": [[2**63 - 1, 1], [-(2**63), 0]]},
            {"x": [[2**63 - 1, 1], [-(2**63), 0]]},
        ),
        ("any", {"inputs": [[7] * 5] * 9000}, {"x": [[7] * 5] * 9000}),
        ("any", {"inputs": [[], []]}, {"x": [[], []]}),
        ("floats", {"inputs": [float("inf"), -float("inf"), 1]}, {"x": [np.inf, -np.inf, 1.0]}),
        ("flags", {"instances": [True, False]}, {"on": [True, False]}),
    ],
)
def test_valid_requests_are_decoded(signature, document, inputs):
    assert decode(document, signature) == inputs


def test_nan_is_accepted():
    assert np.isnan(decode({"inputs": [float("nan")]}, "floats")["x"]).all()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" \n", b"{", b'{"a"}', b'{"a": }', b'{"a": 1 2}', b'{"a": [1 "]"]}', b'{"a": "x'),
        *(b'{"a": "\\x"}', b"{} {}", b'{"a": "\\ud800"}', b'{"a": [1, 1e999]}', b'{"a": [1, 1.]}'),
        *(b'{"a": [0, 01]}', b'{"a": [1,]}', b'{"a": "\\u12"}', b'{"a": "\n"}', b"[" * 100_000),
        *(b'{"a": "x\xff"}', b'{"a": "NaN\xff"}', b'{"a": NaN, "b": ' + b"[" * 100_000),
    ],
)
def test_other_texts_than_json_are_rejected(body: bytes):
    assert fail(body).startswith("The request body is not JSON: ")


@pytest.mark.parametrize(
    ("signature", "document", "message"),
    [
        (None, b"[]", "The request body is a list; expected a JSON object"),
        (None, {}, "must have either 'instances' or 'inputs'"),
        (None, {"instances": [], "inputs": []}, "must have either 'instances' or 'inputs'"),
        (1, {"inputs": []}, "signature_name: 1; expected a string"),
        ("x", {"inputs": []}, 'Serving signature name: "x" not found; expected any, flags'),
        ("é" * 1000, {"inputs": []}, f'name: "{"é" * 200}..." not found'),
        (None, {"instances": "a"}, "instances: expected a list of at least one row"),
        (None, {"instances": []}, "instances: expected a list of at least one row"),
        (None, {"instances": [1]}, "text[0]: 1; expected a string"),
        (None, {"instances": ["a", None]}, "text[1]: null; expected a string"),
        (None, {"instances": [True]}, "text[0]: true; expected a string"),
        (None, {"instances": [{"text": {"x": 1}}]}, "text[0]: an object; expected a string"),
        (None, {"instances": [{"b64": "?"}]}, "text[0]: an object; expected a string, or bytes"),
        (None, b'{"instances": ["\\ud800"], "a": NaN}', "text[0]: "),
        (
            None,
            {"instances": [{"text": "a"}, {"texts": "a"}]},
            "instances[1]: an object with texts; expected an object with text",
        ),
        (None, {"instances": [{"é" * 400: "a"}]}, f"an object with {'é' * 200}...; expected"),
        (None, {"instances": [{"text": "a"}, "b"]}, 'instances[1]: "b"; expected an object'),
        (None, {"instances": ["b", {"text": "a"}]}, 'instances[0]: "b"; expected an object'),
        (None, {"instances": ["b", ["c"]]}, "text: expected rows and lists of equal length"),
        (None, {"instances": [["a"], ["c"]]}, "Input text has shape [2,1]; expected [-1]"),
        ("pair", {"instances": ["a"]}, 'instances[0]: "a"; expected an object with a, b'),
        ("pair", {"instances": [{"a": "x"}]}, "instances[0]: an object with a; expected"),
        ("pair", {"inputs": ["a"]}, "inputs: found no object with all inputs; expected a, b"),
        ("pair", {"inputs": {"a": ["x"]}}, "inputs: found no object with all inputs; expected a"),
        (
            "ids",
            {"inputs": {"ids": [[1], [1, 2]], "weight": []}},
            "ids: expected rows and lists of equal length",
        ),
        ("ids", {"inputs": {"ids": [[1], 1], "weight": []}}, "ids: expected rows and lists of equ"),
        ("ids", {"inputs": {"ids": [1, [1]], "weight": []}}, "ids: expected rows and lists of equ"),
        ("ids", {"inputs": {"ids": [[1.0]], "weight": []}}, "ids[0][0]: 1.0; expected a number of"),
        (
            "ids",
            {"inputs": {"ids": [[1], [2**31]], "weight": []}},
            "ids[1][0]: 2147483648; expected a number of type int32",
        ),
        ("ids", {"inputs": {"ids": [[1]], "weight": [[1e39]]}}, "weight[0][0]: 1e+39; expected"),
        ("ids", {"inputs": {"ids": [[1, True]], "weight": []}}, "ids[0][1]: true; expected a numb"),
        ("any", {"inputs": [0] * 20_000 + ["a"]}, 'x[20000]: "a"; expected a number of type int64'),
        ("any", {"inputs": 2**63}, "x: 9223372036854775808; expected a number of type int64"),
        ("any", {"inputs": 2**64}, "expected a number of type int64"),
        ("flags", {"inputs": [1]}, "on[0]: 1; expected true or false"),
        (None, b'{"instances": [' + b"[]," * 140_000 + b"[]]}", "more than 131072 lists and objec"),
    ],
)
def test_invalid_requests_are_rejected(signature, document, message):
    assert message in fail(document, signature)


def test_types_without_json_representation_are_rejected():
    with pytest.raises(RestError) as error:
        decode({"inputs": [1]}, "odd")
    assert error.value.status == 501
    with pytest.raises(RestError, match="x: JSON cannot represent values of type complex64"):
        encode(True, x=np.zeros(1, np.complex64))


def test_deeply_nested_lists_are_rejected():
    nested: list = [1]
    for _ in range(60):
        nested = [nested]
    assert "nested at most 32 deep" in fail({"inputs": nested}, "any")


def encode(by_row: bool, **outputs) -> object:
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return json.loads(b"".join(encode_call(Call("", {}, by_row), arrays)))


def strings(*values: bytes) -> np.ndarray:
    return np.array(values, object)


def test_outputs_are_encoded_by_row_and_by_column():
    outputs = {"label": strings(b"x", b"y"), "ids": np.array([[1, 2], [3, 4]], np.int32)}
    assert encode(True, **outputs) == {
        "predictions": [{"ids": [1, 2], "label": "x"}, {"ids": [3, 4], "label": "y"}]
    }
    assert encode(False, **outputs) == {"outputs": {"ids": [[1, 2], [3, 4]], "label": ["x", "y"]}}
    assert encode(False, x=np.float32(0.2)) == {"outputs": 0.2}


def test_single_output_is_encoded_without_its_name():
    assert encode(True, x=[True, False]) == {"predictions": [True, False]}
    assert encode(False, x=[True, False]) == {"outputs": [True, False]}


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("shape", [(3, 18_000), (18_000, 2), (2, 3, 9000), (18_000,)])
def test_large_outputs_are_encoded_in_parts(shape, by_row):
    numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    outputs = {"x": numbers, "y": numbers[..., :1] if len(shape) > 1 else numbers}
    parts = list(encode_call(Call("", {}, by_row), outputs))
    assert max(map(len, parts)) < 200_000
    values = json.loads(b"".join(parts))
    if by_row:
        values = values["predictions"]
        decoded = {name: [row[name] for row in values] for name in outputs}
    else:
        decoded = values["outputs"]
    assert decoded == {name: array.tolist() for name, array in outputs.items()}
    (single,) = encode(by_row, x=numbers).values()
    assert single == numbers.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_encoded_as_their_shortest_decimals(dtype):
    values = np.array([0.2, 1.0, 1 / 3, 3e4], dtype)
    texts = [str(float(str(value))) for value in values]
    for more in ([], [np.nan, -np.inf]):
        array = np.append(values, np.array(more, dtype))
        text = b"".join(encode_call(Call("", {}, True), {"x": array})).decode()
        expected = texts + ["NaN", "-Infinity"][: len(more)]
        assert text == '{"predictions":[' + ",".join(expected) + "]}"
        assert np.array_equal(np.array(json.loads(text)["predictions"], dtype), array, True)


def test_rows_with_and_without_nan_have_the_same_format():
    x = np.array([[0.1, np.nan], [0.2, 1]], np.float32)
    rows = encode(True, x=x, y=np.arange(2))["predictions"]
    assert (rows[1], str(rows[0])) == ({"x": [0.2, 1.0], "y": 1}, "{'x': [0.1, nan], 'y': 0}")


def test_bytes_that_are_not_utf_8_are_encoded():
    assert encode(True, x=strings(b"a\xff")) == {"predictions": ["a\ufffd"]}
    assert encode(True, x_bytes=strings(b"a\xff")) == {"predictions": [{"b64": "Yf8="}]}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"x": 1.0}, r"Output x has shape \[\]; expected rows"),
        ({"x": np.zeros([0])}, r"Output x has shape \[0\]; expected rows"),
        ({"x": [1], "y": [1, 2]}, r"Output y has shape \[2\]; expected rows"),
    ],
)
def test_outputs_without_matching_rows_are_rejected(outputs, message):
    with pytest.raises(RestError, match=message):
        encode(True, **outputs)
