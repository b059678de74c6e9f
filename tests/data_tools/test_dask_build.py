"""Tests builds on a Dask cluster: its workers and the build are processes of their own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
from tests.data_tools.conftest import changes

pytestmark = pytest.mark.slow
distributed = pytest.importorskip(
    "distributed", reason="not installed: pip install 'keras-bert-pipeline[dask]'"
)

SETTINGS = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2, num_shards=16)
SECONDS = 900


@pytest.fixture
def cluster():
    """Starts a scheduler without workers; these are processes of their own."""
    options = {"n_workers": 0, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(host="127.0.0.1", **options) as cluster:
        yield cluster


@pytest.fixture
def start_build(root):
    """Returns a function that starts a build on Dask; the process is killed after the test."""
    started = []

    def start(files: dict, address: str, settings: Settings = SETTINGS) -> subprocess.Popen:
        flags = files | changes(settings) | {"dask_scheduler": address}
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "keras_bert",
                "create-pretraining-data",
                *(f"--{name}={value}" for name, value in flags.items()),
            ],
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def error_of(build: subprocess.Popen) -> str:
    """Returns what a build logged; it must fail without a traceback."""
    _, log = build.communicate(timeout=SECONDS)
    assert build.returncode == 1
    assert "Traceback" not in log
    return log


def test_build_with_a_killed_worker_equals_a_local_build(
    folder, cluster, start_build, contents, tmp_path, random_moment
):
    """Kills one of two workers while it reads, or after a random number of shards."""
    num_shards = random_moment.randrange(SETTINGS.num_shards - 2)
    create_pretraining_data(**folder, settings=SETTINGS, num_workers=1)
    complete = contents(folder["output_dir"])

    with distributed.Client(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=SECONDS)
        victim, _ = client.run(os.getpid).values()
    output_dir = tmp_path / "dask"
    build = start_build(folder | {"output_dir": str(output_dir)}, cluster.scheduler_address)
    building = output_dir / ".building"

    def is_time_to_kill() -> bool:
        return building.exists() and len(list(building.glob("*.tfrecord.json"))) >= num_shards

    while not is_time_to_kill():
        assert build.poll() is None, build.communicate()[1]
        time.sleep(0.01)
    time.sleep(random_moment.random() if num_shards == 0 else 0)
    assert not (output_dir / "manifest.json").exists()
    os.kill(victim, signal.SIGKILL)
    _, log = build.communicate(timeout=SECONDS)
    assert build.returncode == 0, log
    assert "number of workers: 2" in log
    assert contents(output_dir) == complete


def test_cluster_that_cannot_be_used_is_an_error(folder, cluster, start_build):
    """Starts builds without a scheduler, and without workers."""
    for address in ("tcp://127.0.0.1:9", cluster.scheduler_address):
        error = error_of(start_build(folder, address))
        assert f"--dask_scheduler={address}: no scheduler with a worker answers within 10" in error
    assert not Path(folder["output_dir"]).exists()


def test_killed_scheduler_is_an_error_and_local_workers_resume_the_build(
    folder, cluster, start_build, contents
):
    cluster.scale(1)
    settings = replace(SETTINGS, dupe_factor=100)
    build = start_build(folder, cluster.scheduler_address, settings)
    building = Path(folder["output_dir"], ".building")
    while not list(building.glob("*.tfrecord.json")):
        assert build.poll() is None, build.communicate()[1]
        time.sleep(0.01)
    cluster.close()
    assert "the connection to the scheduler was lost" in error_of(build).splitlines()[-1]
    create_pretraining_data(**folder, settings=settings, num_workers=1)
    resumed = contents(folder["output_dir"])
    shutil.rmtree(folder["output_dir"])
    create_pretraining_data(**folder, settings=settings, num_workers=1)
    assert contents(folder["output_dir"]) == resumed
