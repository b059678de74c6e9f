"""Workers in networks of their own that lose their connection in the middle of a step."""

import contextlib
import json
import sys
import time

import pytest

from tests.disk import skip_unless_needed
from tests.training import worker_processes, worker_tasks
from tests.training.network import make_network
from tests.training.test_multi_worker import SECONDS_TO_END, assert_close, flags, weights

pytestmark = pytest.mark.slow  # Starts workers.

MINUTES_TO_END = 10  # While other tests run.


@pytest.fixture
def network():
    """Yields a network of two workers; skips the test if the system does not permit it."""
    with contextlib.ExitStack() as created:
        try:
            made = created.enter_context(make_network(2))
        except OSError as error:
            skip_unless_needed("NETWORK", f"network namespaces are not available: {error}")
        yield made


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_records):
    folder = tmp_path_factory.mktemp("data")
    for index in range(3):
        write_records(folder / "records" / f"part-{index}.tfrecord", 20 + index, seed=index)
    write_records(folder / "eval.tfrecord", 17, seed=9)
    (folder / "config.json").write_text(json.dumps(worker_tasks.CONFIG))
    return folder


def start(network, root, data, folder, step, opened):
    """Starts both workers; worker 1 pauses after a step, and worker 0 waits for it in the next."""
    task = [sys.executable, "-m", "tests.training.worker_tasks", "paused_once"]
    run = flags(data, folder / "run", worker_timeout=60)
    cluster = {"worker": [f"{host}:2222" for host in network.hosts()]}
    for index in range(network.size):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        command = ["env", f"TF_CONFIG={json.dumps(config)}", *task, "run_pretraining.py"]
        log = opened.enter_context((folder / f"log-{index}.txt").open("w"))
        command += [str(folder), str(step), *run]
        process = network.start(index, command, cwd=root, stdout=log, stderr=log)
        opened.callback(process.wait)
        opened.callback(process.kill)
        yield process


def logs(folder):
    return [path.read_text() for path in sorted(folder.glob("log-?.txt"))]


def test_workers_end_after_a_partition_and_the_run_resumes_bit_identical(
    network, data, root, tmp_path, random_moment
):
    step, beside = random_moment.randrange(1, worker_tasks.STEPS), tmp_path / "uninterrupted"
    with contextlib.ExitStack() as opened:
        processes = [*start(network, root, data, tmp_path, step, opened)]
        deadline = time.monotonic() + MINUTES_TO_END * 60
        while not (tmp_path / "paused").exists():
            assert {process.poll() for process in processes} == {None}, logs(tmp_path)
            assert time.monotonic() < deadline, logs(tmp_path)
            time.sleep(0.1)
        network.unplug(1)
        (tmp_path / "go").touch()
        assert [process.wait(SECONDS_TO_END) for process in processes] == [75, 75], logs(tmp_path)
        for log in logs(tmp_path):
            assert "ended early: lost the connection to" in log
            assert "Traceback" not in log
        network.plug(1)
        task = (worker_tasks.session, data, beside, ["plain"])
        uninterrupted = worker_processes.start(beside, 2, *task)
        again = [*start(network, root, data, tmp_path, step, opened)]
        codes = [process.wait(MINUTES_TO_END * 60) for process in again]
        assert codes == [0, 0], logs(tmp_path)
        ends = [worker_processes.ended(process, MINUTES_TO_END * 60) for process in uninterrupted]
        assert ends == [0, 0]
    assert_close(weights(tmp_path / "run"), weights(beside / "plain"), tolerance=0)
