"""The wheel, installed outside the checkout, has every file, and trains and exports a model."""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from email.parser import Parser
from pathlib import Path

import pytest

import keras_bert
from keras_bert.programs.command import PROGRAMS

pytestmark = pytest.mark.slow

SOURCES = ("keras_bert", "data_tools", "pyproject.toml", "setup.py", "setup.cfg")
SOURCES += ("README.md", "LICENSE")
TEXT = "The king swore an oath.\nThe film was very good.\n\nA dog ran home.\nIt was a bad day.\n\n"
CONFIG = {
    "vocab_size": 100,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def succeed(command, cwd=None):
    # PYTHONPATH has the checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory) -> Path:
    """Returns the bin/ of an environment with the wheel and this environment's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:  # The build writes files into the tree.
        path = root / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    succeed([sys.executable, "-c", build, str(folder)], cwd=source)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)

    environment = folder / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    # Uses pip of the base Python, since this environment may have no pip.
    pip = [sys._base_executable, "-m", "pip", "--python", str(python)]
    succeed([*pip, "install", "--no-deps", "--no-index", str(wheel)])
    (own,) = (environment / "lib").glob("python*/site-packages")
    # These come after its own packages. Their .pth files, as of an editable install, are not read.
    (own / "others.pth").write_text("\n".join(site.getsitepackages()))
    return environment / "bin"


@pytest.fixture(scope="module")
def run(installed, tmp_path_factory):
    """Returns a function: (program, flags) -> the output of `keras-bert`, outside the checkout."""
    place = tmp_path_factory.mktemp("place")

    def start(program, *arguments, **flags):
        given = [f"--{name}={value}" for name, value in flags.items()]
        command = [installed / "keras-bert", program, *given, *arguments]
        return succeed(command, cwd=place)

    start.place = place
    return start


def test_metadata_has_license_authors_and_version(installed):
    code = (
        "import importlib.metadata as m, keras_bert, json; "
        "print(json.dumps([m.distribution('keras-bert-pipeline').read_text('METADATA'), "
        "keras_bert.__file__]))"
    )
    text, file = json.loads(succeed([installed / "python", "-c", code], cwd=installed))
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == keras_bert.__version__
    assert metadata["Author"] == "The keras_bert authors"
    assert "Apache-2.0" in (metadata["License-Expression"] or metadata["License"])
    assert metadata["License-File"] == "LICENSE"
    assert {"cuda", "jax-cuda", "serving"} <= {*metadata.get_all("Provides-Extra")}
    assert Path(file).is_relative_to(installed.parent)


def test_every_file_of_the_package_is_installed(installed, root):
    (own,) = (installed.parent / "lib").glob("python*/site-packages")
    for top in ("keras_bert", "data_tools"):
        expected = {
            path.relative_to(root)
            for path in (root / top).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert expected == {
            path.relative_to(own)
            for path in (own / top).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }


def test_command_lists_all_programs(run):
    listed = run("--help")
    for name in PROGRAMS:
        assert f"  {name} " in listed


def test_bundled_recipe_is_found(run, installed):
    code = (
        "from keras_bert.pretraining.recipe import bundled_recipes, find_recipe; "
        "print(*bundled_recipes(), find_recipe('bert-base'))"
    )
    *names, path = succeed([installed / "python", "-c", code], cwd=run.place).split()
    assert names == ["bert-base", "bert-large", "bert-large-lamb", "budget-24h", "small-corpus"]
    assert Path(path).is_file()


def test_wheel_trains_and_exports_a_model_from_text(run):
    place = run.place
    (place / "text.txt").write_text(TEXT * 4)
    (place / "config.json").write_text(json.dumps(CONFIG))
    run("build-vocab", input_file="text.txt", vocab_file="vocab.txt", vocab_size=100)
    size = len((place / "vocab.txt").read_text().splitlines())
    (place / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": size}))
    run(
        "create-pretraining-data",
        input_file="text.txt",
        vocab_file="vocab.txt",
        output_dir="records",
        max_seq_length=16,
        max_predictions_per_seq=3,
        num_workers=1,
    )
    out = run(
        "pretrain",
        "--nojit_compile",
        "--export",
        bert_config="config.json",
        input_file="records",
        output_dir="out",
        num_train_steps=2,
        num_warmup_steps=1,
        train_batch_size=4,
    )
    assert "export = out/export/1" in out
    assert (place / "out" / "export" / "1" / "saved_model.pb").is_file()
    assert (place / "out" / "model" / "model.safetensors").is_file()
    filled = run("fill-mask", "The film was very [MASK].", model_dir="out", top_k=2)
    assert filled.startswith("The film was very [MASK].\n    ")
