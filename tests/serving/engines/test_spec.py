"""The description of the network in export.json."""

import json

import pytest

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.spec import NetworkSpec, engine_flags


def test_json_keeps_the_order_of_the_outputs():
    spec = NetworkSpec({"scores": "mask", "b": "row", "a": "token"}, 5, 103, True)
    content = json.loads(json.dumps(spec.to_json(), sort_keys=True))
    found = NetworkSpec.from_json(content, "export.json")
    assert found == spec
    assert list(found.per) == ["scores", "b", "a"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"per": {}},
        {"per": []},
        {"per": [["logits", "column"]]},
        {"per": [["logits", ["row"]]]},
        {"per": ["logits"]},
        {"per": [["logits", "row"]], "unknown": 1},
        {"per": [["scores", "mask"]]},
        {"per": [["scores", "mask"]], "top_k": 5},
        {"per": [["scores", "mask"]], "mask_token_id": 103},
        {"per": [["scores", "mask"]], "top_k": 5, "mask_token_id": "103"},
    ],
)
def test_invalid_content_is_rejected(content):
    with pytest.raises(InputError, match=r"^export\.json: found .* as the description of the net"):
        NetworkSpec.from_json(content, "export.json")


def test_flags_that_export_for_a_precision():
    assert engine_flags("int8") == "--engines=onnxruntime --int8"
    assert engine_flags("float32") == "--engines=onnxruntime,openvino"
    assert engine_flags("float32", "openvino") == "--engines=openvino"
