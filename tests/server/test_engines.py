"""The server answers on each engine, and states at its start which one it uses."""

import shutil

import pytest

from keras_bert.errors import InputError
from keras_bert.export.engines import EngineRequest
from keras_bert.server.versions import Versions
from tests.export.engines.conftest import INSTALLED, export_with_engines  # noqa: F401

pytestmark = pytest.mark.slow  # Starts servers.

BODY = {"instances": [{"text": "the cat", "text_pair": "on"}, {"text": "", "text_pair": "mat"}]}


def test_every_engine_gives_the_same_answers_and_is_logged(start_process, export_with_engines):  # noqa: F811
    folder = export_with_engines("pair").parent
    expected = start_process(folder, "--engine=tensorflow").ask(BODY)
    assert expected[0] == 200
    for engine in INSTALLED:
        # The default is the first engine of the export.
        flags = [] if engine == "onnxruntime" else [f"--engine={engine}"]
        server = start_process(folder, *flags)
        assert f"Serving version 1 of {folder} on {engine}, float32" in server.log
        status, answer = server.ask(BODY)
        assert status == 200
        for found, row in zip(answer["predictions"], expected[1]["predictions"], strict=True):
            assert found["label"] == row["label"]
            assert found["logits"] == pytest.approx(row["logits"], abs=1e-3)


def test_precision_is_selected(export_with_engines):  # noqa: F811
    if "onnxruntime" in INSTALLED:
        versions = Versions(export_with_engines("pair").parent, EngineRequest("", "int8"))
        versions.start()
        engine = versions.current.engine
        assert (engine.name, engine.precision) == ("onnxruntime", "int8")
    with pytest.raises(InputError, match="found precision int8"):
        EngineRequest("openvino", "int8")


@pytest.mark.parametrize("engine", INSTALLED)
def test_damaged_file_prevents_the_start_and_names_the_file(engine, export_with_engines, tmp_path):  # noqa: F811
    copy = shutil.copytree(export_with_engines("pair"), tmp_path / "1")
    (copy / "engines" / "network.onnx").write_bytes(b"damaged")
    with pytest.raises(InputError, match="use --engine=tensorflow") as error:
        Versions(tmp_path, EngineRequest(engine)).start()
    assert str(copy / "engines" / "network.onnx") in str(error.value)
