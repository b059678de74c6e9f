"""Tests builds on a Dask cluster: a scheduler and workers in processes of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
from tests import processes
from tests.data_tools.conftest import changes

pytestmark = pytest.mark.slow
pytest.importorskip("distributed", reason="not installed: pip install 'keras-bert-pipeline[dask]'")

SETTINGS = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=100, num_shards=16)
SECONDS = 900

# Imported by Python at its start: changes the version that a worker reports.
OTHER_VERSION = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: "2.20.0" if name == "tensorflow-text" else version(name)
"""


class Cluster:
    """A Dask scheduler and its workers, processes that communicate by TCP."""

    def __init__(self, folder: Path, root: Path):
        self._folder = folder
        self._path = os.pathsep.join([str(root), *filter(None, sys.path)])
        self._processes: list[subprocess.Popen] = []
        self._log = folder / "cluster.log"
        self._start("scheduler", "--host=127.0.0.1", "--port=0")
        self._wait_for((folder / "scheduler.json").exists)
        text = (folder / "scheduler.json").read_text()
        self.address = re.search(r'"address": "(tcp://[^"]*)"', text)[1]

    def start_worker(self, first_path: str = "") -> subprocess.Popen:
        already = self._log.read_text().count("Registered to")
        process = self._start("worker", "--nthreads=1", "--no-nanny", first_path=first_path)
        self._wait_for(lambda: self._log.read_text().count("Registered to") > already)
        return process

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, *words: str, first_path: str = "") -> subprocess.Popen:
        words += (f"--scheduler-file={self._folder / 'scheduler.json'}", "--no-dashboard")
        with open(self._log, "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *words],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | {"PYTHONPATH": f"{first_path}:{self._path}"},
            )
        self._processes.append(process)
        return process

    def _wait_for(self, is_true) -> None:
        end = time.monotonic() + SECONDS
        while not is_true():
            assert time.monotonic() < end, self._log.read_text()
            assert all(process.poll() is None for process in self._processes), self._log.read_text()
            time.sleep(0.05)


@pytest.fixture
def cluster(root, tmp_path) -> Iterator[Cluster]:
    """Starts a scheduler without workers."""
    cluster = Cluster(tmp_path, root)
    yield cluster
    cluster.stop()


def start_build(files: dict, address: str) -> processes.Process:
    flags = files | changes(SETTINGS) | {"dask_scheduler": address}
    command = ["-m", "keras_bert", "create-pretraining-data"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return processes.start(command, stderr=processes.PIPE)


def wait_for_shards(build: processes.Process, building: Path, count: int) -> None:
    while not building.exists() or len(list(building.glob("*.tfrecord.json"))) < count:
        assert build.poll() is None, build.communicate()[1]
        time.sleep(0.01)


def error_of(build: processes.Process) -> str:
    """Returns what a build logged; it must fail without a traceback."""
    _, log = build.communicate(timeout=SECONDS)
    assert build.returncode == 1
    assert "Traceback" not in log
    return log


def test_build_with_a_killed_worker_or_scheduler_equals_a_local_build(
    folder, cluster, contents, tmp_path, random_moment
):
    """Kills one of two workers while it reads, or after a random number of shards.

    In another build, kills the scheduler; a local process then resumes the build.
    """
    num_shards = random_moment.randrange(SETTINGS.num_shards - 2)
    create_pretraining_data(**folder, settings=SETTINGS, num_workers=1)
    complete = contents(folder["output_dir"])

    victim, _ = cluster.start_worker(), cluster.start_worker()
    output_dir = tmp_path / "dask"
    build = start_build(folder | {"output_dir": str(output_dir)}, cluster.address)
    wait_for_shards(build, output_dir / ".building", num_shards)
    time.sleep(random_moment.random() if num_shards == 0 else 0)
    assert not (output_dir / "manifest.json").exists()
    victim.kill()
    _, log = build.communicate(timeout=SECONDS)
    assert build.returncode == 0, log
    assert "number of workers: 2" in log
    assert contents(output_dir) == complete

    other = folder | {"output_dir": str(tmp_path / "other")}
    build = start_build(other, cluster.address)
    wait_for_shards(build, tmp_path / "other" / ".building", 1)
    cluster.stop()
    assert "the connection to the scheduler was lost" in error_of(build).splitlines()[-1]
    create_pretraining_data(**other, settings=SETTINGS, num_workers=1)
    assert contents(other["output_dir"]) == complete


def test_cluster_that_cannot_be_used_is_an_error(folder, cluster, tmp_path):
    """Starts builds without a scheduler, without workers, and with a worker of other versions."""
    address = cluster.address
    without_worker = ("tcp://127.0.0.1:9", address)
    # Both wait for 10 s.
    builds = [
        start_build(folder | {"output_dir": str(tmp_path / f"out-{index}")}, each)
        for index, each in enumerate(without_worker)
    ]
    for build, each in zip(builds, without_worker, strict=True):
        message = f"--dask_scheduler={each}: no scheduler with a worker answers within 10 s"
        assert message in error_of(build)
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    cluster.start_worker(first_path=str(tmp_path))
    error = error_of(start_build(folder, address))
    assert re.search(
        r"worker on .*: tensorflow-text was 2\.21\.\d, now 2\.20\.0; expected the same", error
    )
    assert not Path(folder["output_dir"]).exists()
    assert not [*tmp_path.glob("out-*")]
