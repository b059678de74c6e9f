"""Workers in networks of their own that lose their connection in the middle of a step."""

import contextlib
import json
import sys
import time

import pytest

from tests.disk import skip_unless_needed
from tests.training import worker_processes, worker_tasks
from tests.training.network import make_network
from tests.training.test_multi_worker import assert_close, flags, weights

pytestmark = pytest.mark.slow  # Starts workers.

WORKER_TIMEOUT = 60
MINUTES_TO_END = 10  # While other tests run.


@pytest.fixture
def network(request):
    """Yields a network of two workers, or of `request.param`; skips the test if that fails."""
    with contextlib.ExitStack() as created:
        try:
            made = created.enter_context(make_network(getattr(request, "param", 2)))
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


@contextlib.contextmanager
def supervised(network, root, data, folder, step, **supervision):
    """Starts each worker under a supervisor of its own; yields the supervisors.

    Worker 1 has paused after a step by then, and worker 0 waits for it in the next one.
    """
    own = [f"--{name}={value}" for name, value in {"backoff": 1, "grace": 5, **supervision}.items()]
    supervise = [sys.executable, "-m", "keras_bert.training.supervise", *own, "--"]
    task = [sys.executable, "-m", "tests.training.worker_tasks", "paused_once"]
    run = flags(data, folder / "run", worker_timeout=WORKER_TIMEOUT)
    command = [*supervise, *task, "run_pretraining.py", str(folder), str(step), *run]
    cluster = {"worker": [f"{host}:2222" for host in network.hosts()]}
    processes = []
    with contextlib.ExitStack() as opened:
        for index in range(network.size):
            config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            variables = ["env", f"TF_CONFIG={json.dumps(config)}"]
            log = opened.enter_context(open(folder / f"log-{index}.txt", "w"))
            processes.append(
                network.start(index, [*variables, *command], cwd=root, stdout=log, stderr=log)
            )
        try:
            wait_until((folder / "paused").exists, MINUTES_TO_END * 60, processes, folder)
            time.sleep(1)
            yield processes
        finally:
            for process in processes:
                process.terminate()
                process.wait(60)


def wait_until(condition, seconds, processes, folder):
    deadline = time.monotonic() + seconds
    while not condition():
        assert {process.poll() for process in processes} == {None}, logs(folder)
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.1)


def logs(folder):
    return [path.read_text() for path in sorted(folder.glob("log-?.txt"))]


def test_run_continues_after_a_partition_of_30_seconds(
    network, data, root, tmp_path, random_moment
):
    step, beside = random_moment.randrange(1, worker_tasks.STEPS), tmp_path / "uninterrupted"
    with supervised(network, root, data, tmp_path, step) as processes:
        network.unplug(1)
        (tmp_path / "go").touch()
        time.sleep(30)
        network.plug(1)
        task = (worker_tasks.session, data, beside, ["plain"])
        uninterrupted = worker_processes.start(beside, 2, *task)
        codes = [process.wait(MINUTES_TO_END * 60) for process in processes]
    assert codes == [0, 0], logs(tmp_path)
    ends = [worker_processes.ended(process, MINUTES_TO_END * 60) for process in uninterrupted]
    assert ends == [0, 0]
    for index, log in enumerate(logs(tmp_path)):
        assert f"lost the connection to worker {1 - index}: run the same command again" in log
    assert_close(weights(tmp_path / "run"), weights(beside / "plain"), tolerance=0)


def test_all_workers_name_the_lost_one_after_a_partition_for_good(
    network, data, root, tmp_path, random_moment
):
    """The supervisors restart the workers once; these do not find each other and end, too."""
    step = random_moment.randrange(1, worker_tasks.STEPS)
    with supervised(network, root, data, tmp_path, step, max_restarts=1) as processes:
        network.unplug(1)
        (tmp_path / "go").touch()
        lost = [f"lost the connection to worker {1 - index}" for index in (0, 1)]

        def all_report():
            return all(line in log for line, log in zip(lost, logs(tmp_path), strict=True))

        wait_until(all_report, WORKER_TIMEOUT, processes, tmp_path)
        codes = [process.wait(MINUTES_TO_END * 60) for process in processes]
    assert codes == [75, 75], logs(tmp_path)
    for index, log in enumerate(logs(tmp_path)):
        assert (
            f"worker {index} of 2 waited {WORKER_TIMEOUT} s (--worker_timeout); not connected: "
            f"{network.hosts()[1 - index]}:2222"
        ) in log
        assert "Traceback" not in log


@pytest.mark.parametrize("network", [3], indirect=True)
def test_run_continues_after_two_of_three_workers_are_separated_for_30_seconds(
    network, data, root, tmp_path, random_moment
):
    """Both still reach worker 0, so TensorFlow does not notice that a worker is lost."""
    step = random_moment.randrange(1, worker_tasks.STEPS)
    with supervised(network, root, data, tmp_path, step) as processes:
        network.separate(1, 2)
        (tmp_path / "go").touch()
        time.sleep(30)
        network.unite(1, 2)
        codes = [process.wait(MINUTES_TO_END * 60) for process in processes]
    assert codes == [0, 0, 0], logs(tmp_path)
    found = (
        "run_pretraining.py: ended early: worker 2 lost the connection to worker 1: run the",
        "run_pretraining.py: ended early: lost the connection to worker 2: run the same command",
        "run_pretraining.py: ended early: lost the connection to worker 1: run the same command",
    )
    for line, log in zip(found, logs(tmp_path), strict=True):
        assert line in log
