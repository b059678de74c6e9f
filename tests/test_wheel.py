"""The wheel, installed by the lines of the Dockerfiles, has every file and all programs."""

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import urllib.request
import venv
from email.parser import Parser
from pathlib import Path

import pytest

import keras_bert
from keras_bert.programs.command import PROGRAMS

pytestmark = pytest.mark.slow

# pip of the base Python for the environment {python}, which may have none, without a network.
PIP = """#!/bin/sh
command=$1; shift
exec {base} -m pip --python {python} $command --no-build-isolation --no-deps --no-index "$@"
"""


def environment_of(bin_dir):
    # PYTHONPATH has the checkout.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return variables | {"PATH": f"{bin_dir}:{os.environ['PATH']}"}


def succeed(command, bin_dir, cwd=None):
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment_of(bin_dir)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Image:
    """Runs the lines of a Dockerfile in folders that stand for / of its stages.

    Attributes:
        bin: the programs of the environment, which has the packages of this one, too.
        folder: the folder for the last stage.
        command: the command that a container starts.
    """

    def __init__(self, root: Path, name: str, place: Path):
        environment = place / "environment"
        venv.create(environment)
        self.bin = environment / "bin"
        pip = PIP.format(base=sys._base_executable, python=self.bin / "python")
        (self.bin / "pip").write_text(pip)
        (self.bin / "pip").chmod(0o755)
        (own,) = (environment / "lib").glob("python*/site-packages")
        # These come after its own packages. Their .pth files, as of an editable install, are not
        # read.
        (own / "others.pth").write_text("\n".join(site.getsitepackages()))
        stages, lists = {}, {"ENTRYPOINT": [], "CMD": []}
        text = (root / "docker" / name).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            keyword, _, rest = line.partition(" ")
            if keyword == "FROM":
                self.folder = place / f"stage-{len(stages)}"
                self.folder.mkdir()
                stages[rest.partition(" AS ")[2]] = self.folder
            elif keyword == "COPY":
                *options, target = shlex.split(rest)
                source = stages[options.pop(0).partition("=")[2]] if rest[0] == "-" else root
                for path in (source / option.lstrip("/") for option in options):
                    into = self.folder / target.lstrip("/")
                    into = into / path.name if target.endswith("/") else into
                    copy = shutil.copytree if path.is_dir() else shutil.copy
                    copy(path, into)
            elif keyword == "RUN":
                succeed(["sh", "-ec", self.located(rest)], self.bin, cwd=self.folder)
            elif keyword == "WORKDIR":
                (self.folder / rest.lstrip("/")).mkdir()
            elif keyword in lists:
                lists[keyword] = json.loads(rest)
            else:
                assert keyword in ("", "#", "USER", "EXPOSE", "HEALTHCHECK"), line
        self.command = [*lists["ENTRYPOINT"], *map(self.located, lists["CMD"])]

    def located(self, text: str) -> str:
        """Returns a text with the absolute paths of the image as paths of this machine."""
        return re.sub(r"(?<![\w./])/(?=\w)", f"{self.folder}/", text)


@pytest.fixture(scope="module")
def image(root, tmp_path_factory) -> Image:
    """Returns the image for training."""
    return Image(root, "train.Dockerfile", tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def installed(image) -> Path:
    """Returns the bin/ of an environment with the wheel and this environment's other packages."""
    return image.bin


def test_metadata_has_license_authors_and_version(installed):
    code = (
        "import importlib.metadata as m, keras_bert, json; "
        "print(json.dumps([m.distribution('keras-bert-pipeline').read_text('METADATA'), "
        "keras_bert.__file__]))"
    )
    text, file = json.loads(succeed(["python", "-c", code], installed, cwd=installed))
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


def test_program_of_data_tools_runs(installed, tmp_path):
    (tmp_path / "text.txt").write_text("The king swore an oath.\nA dog ran home.\n")
    flags = ["--input_file=text.txt", "--vocab_file=vocab.txt", "--vocab_size=100"]
    succeed(["keras-bert", "build-vocab", *flags], installed, cwd=tmp_path)
    assert "[MASK]" in (tmp_path / "vocab.txt").read_text().split()


def test_container_for_training_lists_the_programs(image):
    listed = succeed(image.command, image.bin)
    assert listed == succeed(["keras-bert", "--help"], image.bin)
    for name in PROGRAMS:
        assert f"  {name} " in listed


def test_container_for_serving_answers(root, tmp_path, make_checkpoint):
    image = Image(root, "serve.Dockerfile", tmp_path)
    bert = make_checkpoint(tmp_path / "bert", ["a", "b"])
    embedder = keras_bert.TextEmbedder.from_pretrained(bert, max_seq_length=8)
    embedder.export(image.folder / "model" / "1")
    command = [part.replace("--port=8501", "--port=0") for part in image.command]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment_of(image.bin)
    ) as server:
        try:
            lines = iter(server.stderr)
            line = next(line for line in lines if "REST API: " in line)
            url = line.split("REST API: ")[1].strip().replace("0.0.0.0", "127.0.0.1")
            body = json.dumps({"instances": ["a b", "b"]}).encode()
            header = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/v1/models/model:predict", body, header)
            with urllib.request.urlopen(request, timeout=60) as response:
                assert len(json.load(response)["predictions"]) == 2
            with urllib.request.urlopen(f"{url}/healthz", timeout=60) as response:
                assert response.status == 200
        finally:
            server.terminate()
