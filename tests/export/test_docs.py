"""The example files of docs/serving are valid for TensorFlow Serving and match their guide."""

import re
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

GUIDE = "../guides/serving.md"


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    """Returns the folder of the examples."""
    return root / "docs" / "serving"


def test_model_config_matches_the_export_commands(folder: Path):
    text = (folder / "models.config").read_text()
    models = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    assert {model.model_platform for model in models} == {"tensorflow"}
    assert [dict(model.version_labels) for model in models] == [{"stable": 1}]
    for model in models:
        assert model.base_path == f"/models/{model.name}"
        assert f"--export_dir=serving/{model.name}/1\n" in (folder / GUIDE).read_text()
        loaded = model.model_version_policy.specific.versions
        assert sorted(model.version_labels.values()) == list(loaded)


def test_all_files_name_one_supported_release(folder: Path):
    named = {
        name: re.search(pattern, (folder / name).read_text())[1]
        for name, pattern in {
            "Dockerfile": r"TF_SERVING_VERSION=(2\.\d+)\.\d+\n",
            "compose.yaml": r"TF_SERVING_VERSION:-(2\.\d+)\.\d+}",
            GUIDE: r"tensorflow/serving:(2\.\d+)\.\d+\n",
        }.items()
    }
    assert len(set(named.values())) == 1
    assert named["Dockerfile"] in {"2.18", "2.19", "2.20"}  # See test_tensorflow_serving.py.
