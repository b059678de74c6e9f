"""The files of docs/cluster restart a run that has lost a worker, to the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from tests.training.worker_tasks import CONFIG
from tests.training.workers import free_address

pytestmark = pytest.mark.slow  # Starts workers.

STEPS = 100
RECIPE = f"""
[flags]
bert_config = "{{folder}}/config.json"
learning_rate = 1e-3
num_warmup_steps = 10
[[phase]]
num_train_steps = {STEPS}
train_batch_size = 12
data = {{{{max_seq_length = 16, max_predictions_per_seq = 3}}}}
"""
FLAGS = "--nojit_compile --mixed_precision=float32 --save_checkpoints_steps=20 --worker_timeout=60"
# Stands for Slurm's srun: starts two tasks on one machine, and returns the highest exit code.
SRUN = """#!/bin/bash
export SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2
for index in 0 1; do
  SLURM_PROCID=$index "$@" &
  echo $! > pid-$index
done
wait $(cat pid-0); first=$?
wait $(cat pid-1); second=$?
exit $((first > second ? first : second))
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory, write_records):
    """Returns a folder with records and a recipe."""
    folder = tmp_path_factory.mktemp("shared")
    for index in range(2):
        write_records(folder / "records-16" / f"part-{index}.tfrecord", 20, seed=index)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


def read(root: Path, name: str, shared: Path, output_dir: Path) -> str:
    text = (root / "docs" / "cluster" / name).read_text()
    text = text.replace("/shared/bert", str(output_dir)).replace("/shared/", f"{shared}/")
    return text.replace("--recipe=bert-base", f"--recipe={shared}/recipe.toml {FLAGS}")


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path}


def start_pods(shared: Path, root: Path, output_dir: Path) -> list[subprocess.Popen]:
    """Starts the containers of the JobSet."""
    jobset = yaml.safe_load(read(root, "pretrain.jobset.yaml", shared, output_dir))
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["env"][0]["value"].count(":2222") == job["completions"] == 2
    workers = ", ".join(json.dumps(free_address()) for _ in range(2))
    return [
        subprocess.Popen(
            container["command"],
            env=environment() | {"WORKERS": workers, "JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(2)
    ]


def wait_for_checkpoint(output_dir: Path) -> None:
    deadline = time.monotonic() + 300
    while not list(output_dir.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def jobset_run(shared, root):
    """Runs the JobSet, which restarts a run that has lost a worker; returns the run's folder."""
    jobset = yaml.safe_load((root / "docs" / "cluster" / "pretrain.jobset.yaml").read_text())
    policy = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    output_dir = shared / "jobset"
    survivor, killed = start_pods(shared, root, output_dir)
    wait_for_checkpoint(output_dir)
    killed.kill()
    assert survivor.wait(60) in rule["onExitCodes"]["values"]
    assert 128 - killed.wait() in rule["onExitCodes"]["values"]
    assert [worker.wait(300) for worker in start_pods(shared, root, output_dir)] == [0, 0]
    return output_dir


def test_sbatch_requeues_a_run_that_has_lost_a_worker(shared, root, jobset_run, tmp_path):
    """The run ends with the bits of the JobSet, whose worker was killed at another moment."""
    (tmp_path / "bin").mkdir()
    scontrol = f"""#!/bin/bash
if [[ $1 == show ]]; then echo localhost; else echo "$@" >> {tmp_path}/requeued; fi
"""
    for name, text in (("srun", SRUN), ("scontrol", scontrol)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "job").write_text(read(root, "pretrain.sbatch", shared, tmp_path / "bert"))
    variables = environment() | {"SLURM_JOB_ID": str(os.getpid())}
    variables["PATH"] = f"{tmp_path}/bin:{variables['PATH']}"
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=variables)
    wait_for_checkpoint(tmp_path / "bert")
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
    assert job.wait(60) == 137
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    assert subprocess.run(["bash", "job"], cwd=tmp_path, env=variables, check=False).returncode == 0
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    models = (
        load_file(folder / "model" / "model.safetensors")
        for folder in (tmp_path / "bert", jobset_run)
    )
    weights, expected = models
    assert weights.keys() == expected.keys()
    assert all((weights[name] == value).all() for name, value in expected.items())
