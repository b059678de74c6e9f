"""The row and column formats of requests and responses, and their errors."""

import json

import numpy as np
import pytest

from keras_bert.server.protocol import RestError, decode_call, encode_columns, encode_rows

SIGNATURES = {
    "serving_default": {"inputs": {"text": ["string", [-1]]}},
    "pair": {"inputs": {"a": ["string", [-1]], "b": ["string", [-1]]}},
    "ids": {"inputs": {"ids": ["int32", [-1, -1]], "mask": ["int32", [-1, -1]]}},
    "words": {"inputs": {"words": ["string", [-1, -1]]}},
    "large": {"inputs": {"x": ["int64", [-1]]}},
}


def decode(document, signature=None) -> dict:
    if signature:
        document = {"signature_name": signature} | document
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    call = decode_call(body, {"signatures": SIGNATURES})
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
        (None, {"text": "a"}, {"text": [b"a"]}),
        (None, {"text": {"b64": "/w=="}, "signature_name": ""}, {"text": [b"\xff"]}),
        ("pair", {"b": "y", "a": "x"}, {"a": [b"x"], "b": [b"y"]}),
        ("", {"inputs": ["a", "b"]}, {"text": [b"a", b"b"]}),
        (None, {"inputs": {"text": ["a"]}}, {"text": [b"a"]}),
        (None, {"inputs": {"text": []}}, {"text": []}),
        ("pair", {"instances": [{"b": "y", "a": "x"}]}, {"a": [b"x"], "b": [b"y"]}),
        ("pair", {"inputs": {"a": ["x"], "b": ["y"], "c": 1}}, {"a": [b"x"], "b": [b"y"]}),
        ("ids", {"instances": [{"ids": [1], "mask": [-2]}]}, {"ids": [[1]], "mask": [[-2]]}),
        ("ids", {"inputs": {"ids": [[]], "mask": [[1]]}}, {"ids": [[]], "mask": [[1]]}),
        ("words", {"instances": [["a"], ["b"]]}, {"words": [[b"a"], [b"b"]]}),
        ("words", {"inputs": [["a"] * 5] * 9000}, {"words": [[b"a"] * 5] * 9000}),
        ("large", {"inputs": [2**63 - 1, -(2**63)]}, {"x": [2**63 - 1, -(2**63)]}),
    ],
)
def test_valid_requests_are_decoded(signature, document, inputs):
    assert decode(document, signature) == inputs


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" \n", b"{", b'{"a"}', b'{"a": 1 2}', b'{"a": [1 "]"]}', b'{"a": "x', b"{} {}"),
        *(b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": "x\xff"}', b"[" * 100_000),
    ],
)
def test_other_texts_than_json_are_rejected(body: bytes):
    assert fail(body).startswith("The request body is not JSON: ")


@pytest.mark.parametrize(
    ("signature", "document", "message"),
    [
        (None, b"[]", "The request body is a list; expected a JSON object"),
        ("pair", {"a": "x"}, "must have either 'instances' or 'inputs', or for one row only a, b"),
        (None, {"instances": [], "inputs": []}, "must have either 'instances' or 'inputs'"),
        (1, {"inputs": []}, "signature_name: 1; expected one of ids, large, pair"),
        ("é" * 1000, {"inputs": []}, f'signature_name: "{"é" * 199}...; expected one of ids'),
        (None, {"instances": "a"}, "instances: expected a list of at least one row"),
        (None, {"instances": []}, "instances: expected a list of at least one row"),
        (None, {"instances": [1]}, "text[0]: 1; expected a string"),
        (None, {"instances": [{"b64": "?"}]}, "text[0]: an object; expected a string, or bytes"),
        (
            None,
            {"instances": [{"text": "a"}, {"texts": "a"}]},
            "instances[1]: an object with texts; expected an object with text",
        ),
        (None, {"instances": [{"é" * 400: "a"}]}, f"an object with {'é' * 200}...; expected"),
        (None, {"instances": [{"text": "a"}, "b"]}, 'instances[1]: "b"; expected an object'),
        (None, {"inputs": "a"}, "text: expected lists of equal length, 1 deep"),
        ("pair", {"inputs": {"a": ["x"]}}, "inputs: found no object with all inputs; expected a"),
        ("pair", {"inputs": {"a": ["x"], "b": []}}, "equal numbers of rows: a has 1, b has 0"),
        ("words", {"inputs": [["a"], ["a", "b"]]}, "words: expected lists of equal length, 2 deep"),
        ("words", {"inputs": ["b", ["a"]]}, "words: expected lists of equal length, 2 deep"),
        ("ids", {"inputs": {"ids": [[1.0]], "mask": []}}, "ids[0][0]: 1.0; expected a number of"),
        ("ids", {"inputs": {"ids": [[1], [2**31]], "mask": []}}, "ids[1][0]: 2147483648; expect"),
        ("ids", {"inputs": {"ids": [[1, True]], "mask": []}}, "ids[0][1]: true; expected a numb"),
        ("large", {"inputs": [0] * 20_000 + ["a"]}, 'x[20000]: "a"; expected a number of type int'),
        ("large", {"inputs": [2**63]}, "x[0]: 9223372036854775808; expected a number of type int"),
        (None, b'{"instances": [' + b"[]," * 140_000 + b"[]]}", "more than 131072 lists and objec"),
    ],
)
def test_invalid_requests_are_rejected(signature, document, message):
    assert message in fail(document, signature)


def encode(by_row: bool, **outputs) -> object:
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return json.loads(b"".join((encode_rows if by_row else encode_columns)(arrays)))


def strings(*values: bytes) -> np.ndarray:
    return np.array(values, object)


def test_rows_name_the_probabilities_of_the_labels():
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]], np.float32)
    parts = encode_rows({"label": strings(b"c", b"a"), "probabilities": probabilities}, "abc")
    first, second = json.loads(b"".join(parts))["predictions"]
    scores = [(each["label"], each["score"]) for each in first["classes"]]
    assert scores == [("c", 0.7), ("b", 0.2), ("a", 0.1)]
    assert first["probabilities"] == [0.1, 0.2, 0.7]
    assert [each["label"] for each in second["classes"]] == ["a", "c", "b"]
    # Other labels than those of the probabilities, such as those of the words of a text.
    parts = encode_rows({"x": np.arange(2), "probabilities": probabilities}, "ab")
    row = json.loads(b"".join(parts))["predictions"][0]
    assert "classes" not in row


def test_rows_have_no_padding():
    entities = {
        "types": np.array([[b"PER", b"LOC"], [b"", b""], [b"LOC", b""]], object),
        "starts": np.array([[0, 5], [-1, -1], [3, -1]]),
        "scores": np.array([[0.5, 0.25], [0.0, 0.0], [0.75, 0.0]], np.float32),
    }
    assert encode(True, **entities)["predictions"] == [
        {"scores": [0.5, 0.25], "starts": [0, 5], "types": ["PER", "LOC"]},
        {"scores": [], "starts": [], "types": []},
        {"scores": [0.75], "starts": [3], "types": ["LOC"]},
    ]
    assert encode(False, **entities)["outputs"]["starts"] == entities["starts"].tolist()
    masks = {
        "tokens": np.array([[[b"a", b"b"], [b"", b""]], [[b"c", b"d"], [b"e", b"f"]]], object),
        "token_ids": np.array([[[0, 7], [-1, -1]], [[1, 2], [3, 4]]]),
        "truncated": np.array([False, True]),
    }
    rows = encode(True, **masks)["predictions"]
    assert [row["tokens"] for row in rows] == [[["a", "b"]], [["c", "d"], ["e", "f"]]]
    assert [row["token_ids"] for row in rows] == [[[0, 7]], [[1, 2], [3, 4]]]
    none = {name: array[:1, :0] for name, array in masks.items() if array.ndim > 1}
    assert encode(True, **none)["predictions"] == [{"token_ids": [], "tokens": []}]


def test_empty_outputs_and_bytes_that_are_not_utf8_are_encoded():
    assert encode(False, x=np.zeros([0, 3]), y=np.zeros([0])) == {"outputs": {"x": [], "y": []}}
    assert encode(False, x=strings(b"a\xff")) == {"outputs": ["a\ufffd"]}


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("shape", [(18_000, 2), (300, 3, 900), (18_000,)])
def test_large_outputs_are_encoded_in_parts(shape, by_row):
    numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    outputs = {"x": numbers, "y": numbers[..., :1] if len(shape) > 1 else numbers}
    parts = list((encode_rows if by_row else encode_columns)(outputs))
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
    array = np.array([0.2, 1.0, 1 / 3, 3e4], dtype)
    text = b"".join(encode_rows({"x": array})).decode()
    expected = [str(float(str(value))) for value in array]
    assert text == '{"predictions":[' + ",".join(expected) + "]}"
    assert np.array_equal(np.array(json.loads(text)["predictions"], dtype), array)
