"""MLflow and Weights & Biases, without a server: their callbacks in `fit`, and --report_to."""

import json
import os
import subprocess

import pytest

# `fit` with both callbacks, and what the packages have stored of its history.
FIT = """
import sys
import mlflow.keras
import wandb
from wandb.integration.keras import WandbMetricsLogger
from keras_bert import TextClassifier

data = (["good film", "bad book"] * 4, ["b", "a"] * 4)
classifier = TextClassifier.from_pretrained(sys.argv[1], labels=["a", "b"])
options = {"epochs": 2, "batch_size": 4, "verbose": 0, "jit_compile": False}
with mlflow.start_run() as run, wandb.init() as other:
    callbacks = [mlflow.keras.MlflowCallback(), WandbMetricsLogger()]
    history = classifier.fit(*data, validation_data=data, callbacks=callbacks, **options).history
    mlflow.flush_async_logging()
    last = {name: other.summary[f"epoch/{name}"] for name in history}
    assert other.summary["epoch/epoch"] == 1
    assert other.summary["epoch/learning_rate"] < 5e-5
assert last == {name: values[-1] for name, values in history.items()}, (last, history)
client = mlflow.MlflowClient()
stored = {
    name: [each.value for each in client.get_metric_history(run.info.run_id, name)]
    for name in history
}
assert stored == history, (stored, history)
assert client.get_run(run.info.run_id).data.params["optimizer_weight_decay"] == "0.01"
"""
# Prints {metric: [[step, value], ...]} of the only run of MLflow, and one of its parameters.
STORED = """
import json, mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs(["0"])
names = [name for name in run.data.metrics if not name.startswith("system/")]
history = lambda name: client.get_metric_history(run.info.run_id, name)
histories = {name: sorted([each.step, each.value] for each in history(name)) for name in names}
batch_size = run.data.params["train_batch_size"]
print(json.dumps([run.info.run_name, run.info.status, batch_size, histories]))
"""


@pytest.fixture
def python(peers_python, root, tmp_path):
    """Returns a function: (packages, arguments) -> output of Python in .peers, without network."""

    def run(packages, *arguments):
        environment = os.environ | {
            "PYTHONPATH": str(root),
            "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_AUTOLOGGING_TESTING": "true",  # Otherwise, errors of the callback are logged.
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(tmp_path),
            "WANDB_SILENT": "true",
        }
        find = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
        command = [peers_python, "-c", find, *packages.split()]
        if subprocess.run(command, check=False).returncode:
            pytest.skip(f"{packages}: not in .peers, which is older than benchmarks/peers.txt")
        command = [peers_python, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=root
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_callbacks_of_the_packages_work_in_fit(python, pretrained):
    python("mlflow wandb", "-c", FIT, pretrained)


def test_program_reports_its_metrics_to_both_packages(python, pretrained, tmp_path):
    rows = "".join(f"{('bad', 'good')[i % 2]} film\t{i % 2}\n" for i in range(8))
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + rows)
    flags = {"task_name": "custom", "init_checkpoint": pretrained, "output_dir": tmp_path / "out"}
    flags |= {"train_file": tmp_path / "texts.tsv", "eval_file": tmp_path / "texts.tsv"}
    flags |= {"max_seq_length": 8, "train_batch_size": 4, "num_train_epochs": 2, "log_steps": 1}
    flags |= {"report_to": "mlflow,wandb", "mixed_precision": "float32", "jit_compile": False}
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    python("mlflow wandb", "-m", "keras_bert", "classify", *arguments)

    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    expected = {}
    for row in map(json.loads, lines):
        step = row.pop("step")
        for name, value in row.items():
            expected.setdefault(name, []).append([step, value])
    assert {"loss", "eval_loss", "learning_rate"} <= expected.keys()
    name, status, batch_size, stored = json.loads(python("mlflow", "-c", STORED))
    assert (name, status, batch_size) == ("out", "FINISHED", "4")
    assert stored == expected
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"epoch/eval_accuracy" in file.read_bytes()
