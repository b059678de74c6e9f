"""Runs run_ner.py with --teacher on both backends; test_fit_and_programs.py has the other tasks."""

import json

import pytest

FLAGS = {
    "train_file": "train.conll",
    "max_seq_length": 24,
    "train_batch_size": 8,
    "num_train_steps": 2,
    "log_steps": 1,
    "jit_compile": False,
    "mixed_precision": "float32",
}


@pytest.fixture(scope="module")
def run(make_checkpoint, run_program, tmp_path_factory):
    """Returns a function that trains small/, the first layer of bert/, and its folder of runs.

    The run in teacher/ has trained bert/.
    """
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.conll").write_text("ada\tB-PER\nis\tO\ngood\tO\n\nbob\tB-PER\nis\tO\n\n" * 8)
    make_checkpoint(folder / "bert", ["good", "is", "ada", "bob"], num_hidden_layers=2)
    done = run_program("convert.py", str(folder / "bert"), str(folder / "small"), keep_layers="1")
    assert done.returncode == 0, done.stderr

    def run(output_dir, init_checkpoint="small", environment=None, **flags):
        flags = FLAGS | {"init_checkpoint": init_checkpoint, "output_dir": output_dir} | flags
        done = run_program("run_ner.py", cwd=folder, environment=environment, **flags)
        assert done.returncode == 0, done.stderr
        return folder / output_dir, done.stderr

    run("teacher", "bert")
    return run


def check_losses(folder):
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        parts = [row[part] for part in ("label_loss", "soft_loss")]
        assert row["loss"] == pytest.approx(sum(parts))
        assert min(parts) > 0


@pytest.mark.slow
def test_a_student_is_trained_with_a_teacher(run):
    folder, log = run("student", teacher="teacher", temperature=3.0)
    assert "The teacher labels" in log
    check_losses(folder)
    record = json.loads((folder / "run.json").read_text())["settings"]
    assert (record["temperature"], record["distillation_weight"]) == (3.0, 0.9)  # 0.9: default
    assert len(record["teacher_weights_sha256"]) == 64


@pytest.mark.slow
def test_a_student_is_trained_with_a_teacher_on_jax(run, backend_python):
    backend_python("jax")
    environment = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    folder, _ = run("jax", environment=environment, teacher="teacher")
    check_losses(folder)
