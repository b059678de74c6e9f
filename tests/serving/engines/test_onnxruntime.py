"""The threads of onnxruntime, whose concurrent calls share one pool."""

import json

import pytest

pytest.importorskip("onnxruntime", reason="pip install 'keras-bert-pipeline[onnx]'")

from keras_bert.serving.engines.onnxruntime_network import OnnxRuntimeNetwork


@pytest.mark.parametrize(
    ("threads", "parallel", "expected"), [(8, 1, 8), (8, 2, 7), (8, 8, 1), (1, 1, 1), (2, 4, 1)]
)
def test_callers_and_the_pool_use_the_given_number_of_threads(
    export_with_engines, threads, parallel, expected
):
    path = export_with_engines("pair") / "engines" / "network.onnx"
    options = OnnxRuntimeNetwork(path, threads, parallel)._session.get_session_options()
    assert options.intra_op_num_threads == expected
    assert not options.enable_mem_pattern


@pytest.mark.slow
def test_export_describes_the_network_and_lists_no_files(export_with_engines):
    info = json.loads((export_with_engines("fill_mask") / "export.json").read_text())
    assert list(info["engines"]) == ["network"]
    assert info["engines"]["network"]["per"] == [["scores", "mask"], ["token_ids", "mask"]]
