"""run_classifier.py as a user runs it: results, several seeds, no flags, bad input."""

import json
import os
import subprocess
import sys

import pytest

from tests.tasks.classification.conftest import tiny_model, write_reviews

__all__ = ["tiny_model", "write_reviews"]


def run(root, cwd, *arguments, **values):
    flags = [f"--{name}={value}" for name, value in values.items()]
    return subprocess.run(
        [sys.executable, str(root / "run_classifier.py"), *arguments, *flags],
        cwd=cwd,
        env={**os.environ, "TFDS_DATA_DIR": str(cwd / "tfds")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model, write_reviews):
    """A user's folder, with SST-2 and a model under data/."""
    folder = tmp_path_factory.mktemp("place")
    glue = folder / "data" / "glue" / "SST-2"
    glue.mkdir(parents=True)
    (folder / "data" / "bert").symlink_to(tiny_model)
    kind = {"header": "sentence\tlabel", "row": "{text}\t{label}"}
    for name, n in (("train", 64), ("dev", 20)):
        path = write_reviews(glue / f"{name}.tsv", n, **kind)
        text = path.read_text().replace("\tbad", "\t0").replace("\tgood", "\t1")
        path.write_text(text)
    (glue / "test.tsv").write_text("index\tsentence\n0\tgood .\n1\tbad .\n")
    return folder


def test_without_flags_it_takes_what_is_at_hand(root, place):
    done = run(root, place, "--nojit_compile", max_seq_length=16, num_train_epochs=1, seeds="1,2")
    assert done.returncode == 0, done.stderr
    assert "--task_name=SST-2" in done.stderr
    assert "--init_checkpoint=data/bert" in done.stderr
    results = json.loads((place / "out" / "SST-2" / "results.json").read_text())
    assert results["seeds"] == [1, 2]
    assert results.keys() >= {"accuracy_mean", "accuracy_std", "score_mean", "loss_mean"}
    assert "accuracy_mean = " in done.stdout
    assert (place / "out" / "SST-2" / "seed-1" / "model" / "model.safetensors").exists()


def test_without_data_it_says_what_to_put_where(root, tmp_path):
    done = run(root, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("run_classifier.py: found no task and no checkpoint.")
    assert "data/glue/MRPC" in done.stderr
    assert "--task_name=MRPC --data_dir=DIR --init_checkpoint=DIR" in done.stderr
    assert done.stderr.count("\n") < 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_name": "SNLI"}, "--task_name=SNLI: expected CoLA"),
        ({"problem_type": "ranking"}, "--problem_type=ranking"),
        ({"init_checkpoint": "nowhere"}, "nowhere: no such checkpoint"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_1(root, place, changes, message):
    values = {"task_name": "SST-2", "data_dir": "data/glue", "output_dir": "bad"} | changes
    done = run(root, place, **values)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (place / "bad").exists()
