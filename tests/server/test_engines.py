"""The server answers on each engine, and states at its start which one it uses."""

import shutil
import subprocess
import sys

import pytest

from tests.export.engines.conftest import INSTALLED, export_with_engines  # noqa: F401

pytestmark = pytest.mark.slow  # Starts servers.

BODY = {"instances": [{"text": "the cat", "text_pair": "on"}, {"text": "", "text_pair": "mat"}]}


def run(folder, root, *flags):
    command = [sys.executable, "-m", "keras_bert", "serve", f"--export_dir={folder}"]
    return subprocess.run(
        [*command, "--port=0", *flags],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_engine_gives_the_same_answers(start_process, export_with_engines):  # noqa: F811
    folder = export_with_engines("pair").parent
    expected = start_process(folder, "--engine=tensorflow").ask(BODY)
    assert expected[0] == 200
    for engine in INSTALLED:
        status, answer = start_process(folder, f"--engine={engine}").ask(BODY)
        assert status == 200
        for found, row in zip(answer["predictions"], expected[1]["predictions"], strict=True):
            assert found["label"] == row["label"]
            assert found["logits"] == pytest.approx(row["logits"], abs=1e-3)


def test_log_states_the_engine_at_the_start(start_process, export_with_engines):  # noqa: F811
    folder = export_with_engines("pair").parent
    if "onnxruntime" in INSTALLED:
        assert f"Serving version 1 of {folder} on onnxruntime, float32" in start_process(folder).log
        server = start_process(folder, "--engine_precision=int8")
        assert f"Serving version 1 of {folder} on onnxruntime, int8" in server.log
    server = start_process(folder, "--engine=tensorflow")
    assert f"Serving version 1 of {folder} on tensorflow, float32" in server.log


@pytest.mark.parametrize("engine", INSTALLED)
def test_damaged_file_prevents_the_start_and_names_the_file(
    engine,
    export_with_engines,  # noqa: F811
    root,
    tmp_path,
):
    copy = shutil.copytree(export_with_engines("pair"), tmp_path / "1")
    (copy / "engines" / "network.onnx").write_bytes(b"damaged")
    ended = run(tmp_path, root, f"--engine={engine}")
    assert ended.returncode == 1
    assert ended.stderr.count("use --engine=tensorflow") == 1
    assert str(copy / "engines" / "network.onnx") in ended.stderr
    assert "Traceback" not in ended.stderr


def test_unknown_engine_and_precision_are_rejected(export_with_engines, root):  # noqa: F811
    folder = export_with_engines("pair").parent
    ended = run(folder, root, "--engine=torch")
    assert ended.returncode == 1
    assert "tensorflow, onnxruntime, openvino" in ended.stderr
    ended = run(folder, root, "--engine=openvino", "--engine_precision=int8")
    assert ended.returncode == 1
    assert "found precision int8" in ended.stderr
