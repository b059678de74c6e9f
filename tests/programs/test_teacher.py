"""Runs the programs with --teacher: train a teacher, then a smaller student."""

import json

import pytest

WORDS = ["good", "bad", "film", "who", "is", "ada", "bob", "."]
CONTEXT = "ada is good . bob is bad ."
QUESTIONS = [
    {"id": str(i), "question": f"who is {word} ?", "answers": [{"text": name, "answer_start": at}]}
    for i, (word, name, at) in enumerate([("good", "ada", 0), ("bad", "bob", 14)] * 8)
]
SQUAD = {"version": "1.1", "data": [{"paragraphs": [{"context": CONTEXT, "qas": QUESTIONS}]}]}


@pytest.fixture(scope="module")
def place(make_checkpoint, run_program, tmp_path_factory):
    """Creates a folder with data, a model of two layers, and its first layer as small/."""
    place = tmp_path_factory.mktemp("place")
    rows = [f"{('bad', 'good')[i % 2]} film .,{i % 2}\n" for i in range(16)]
    (place / "train.csv").write_text("text,label\n" + "".join(rows))
    (place / "train.conll").write_text("ada\tB-PER\nis\tO\ngood\tO\n\nbob\tB-PER\nis\tO\n\n" * 8)
    (place / "train.json").write_text(json.dumps(SQUAD))
    make_checkpoint(place / "bert", WORDS, num_hidden_layers=2)
    done = run_program("convert.py", str(place / "bert"), str(place / "small"), keep_layers="1")
    assert done.returncode == 0, done.stderr
    return place


PROGRAMS = {
    "run_classifier.py": {"task_name": "custom", "train_file": "train.csv"},
    "run_ner.py": {"train_file": "train.conll"},
    "run_squad.py": {"train_file": "train.json", "max_query_length": 8},
}
FLAGS = {
    "max_seq_length": 24,
    "train_batch_size": 8,
    "num_train_steps": 4,
    "log_steps": 2,
    "jit_compile": False,
    "mixed_precision": "float32",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_student_is_trained_with_a_teacher(run_program, place, program):
    flags = FLAGS | PROGRAMS[program]
    name = program.removesuffix(".py")
    done = run_program(
        program, cwd=place, init_checkpoint="bert", output_dir=f"{name}-teacher", **flags
    )
    assert done.returncode == 0, done.stderr
    flags |= {"teacher": f"{name}-teacher", "temperature": 3.0}
    done = run_program(program, cwd=place, init_checkpoint="small", output_dir=name, **flags)
    assert done.returncode == 0, done.stderr
    assert "The teacher labels" in done.stderr
    row = json.loads((place / name / "metrics.jsonl").read_text().splitlines()[0])
    parts = [row[part] for part in ("label_loss", "soft_loss")]
    assert row["loss"] == pytest.approx(sum(parts))
    assert min(parts) > 0
    record = json.loads((place / name / "run.json").read_text())["settings"]
    assert (record["temperature"], record["distillation_weight"]) == (3.0, 0.9)  # 0.9: default
    assert len(record["teacher_weights_sha256"]) == 64


@pytest.mark.slow
def test_a_tagger_is_trained_with_a_teacher_on_jax(run_program, backend_python, place):
    backend_python("jax")
    flags = FLAGS | PROGRAMS["run_ner.py"] | {"num_train_steps": 2, "log_steps": 1}
    start = {"init_checkpoint": "bert", "output_dir": "tagger"}
    done = run_program("run_ner.py", cwd=place, **start, **flags)
    assert done.returncode == 0, done.stderr
    start = {"init_checkpoint": "small", "teacher": "tagger", "output_dir": "jax"}
    environment = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    done = run_program("run_ner.py", cwd=place, environment=environment, **start, **flags)
    assert done.returncode == 0, done.stderr[-2000:]
    for row in map(json.loads, (place / "jax" / "metrics.jsonl").open()):
        assert row["loss"] == pytest.approx(row["label_loss"] + row["soft_loss"])
        assert row["soft_loss"] > 0
