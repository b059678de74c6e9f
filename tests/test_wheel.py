"""The wheel, installed outside the checkout, has every file and all programs."""

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


def test_program_of_data_tools_runs(run):
    (run.place / "text.txt").write_text("The king swore an oath.\nA dog ran home.\n")
    run("build-vocab", input_file="text.txt", vocab_file="vocab.txt", vocab_size=100)
    assert "[MASK]" in (run.place / "vocab.txt").read_text().split()
