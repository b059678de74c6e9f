"""Runs run_ner.py with --teacher; test_fit_and_programs.py has other tasks, memorize.py JAX."""

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


@pytest.mark.slow
def test_a_student_is_trained_with_a_teacher(make_checkpoint, run_program, tmp_path):
    """The student is the first layer of the model that the teacher was trained from."""
    (tmp_path / "train.conll").write_text("ada\tB-PER\nis\tO\ngood\tO\n\nbob\tB-PER\nis\tO\n\n" * 8)
    make_checkpoint(tmp_path / "bert", ["good", "is", "ada", "bob"], num_hidden_layers=2)
    small = run_program("convert.py", "bert", "small", cwd=tmp_path, keep_layers="1")
    assert small.returncode == 0, small.stderr
    student = {"teacher": "teacher", "temperature": 3.0}
    for start, output_dir, flags in (("bert", "teacher", {}), ("small", "student", student)):
        flags = FLAGS | {"init_checkpoint": start, "output_dir": output_dir} | flags
        done = run_program("run_ner.py", cwd=tmp_path, **flags)
        assert done.returncode == 0, done.stderr
    assert "The teacher labels" in done.stderr
    lines = (tmp_path / "student" / "metrics.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        parts = [row[part] for part in ("label_loss", "soft_loss")]
        assert row["loss"] == pytest.approx(sum(parts))
        assert min(parts) > 0
    record = json.loads((tmp_path / "student" / "run.json").read_text())["settings"]
    assert (record["temperature"], record["distillation_weight"]) == (3.0, 0.9)  # 0.9: default
    assert len(record["teacher_weights_sha256"]) == 64
