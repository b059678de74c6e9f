"""Runs run_classifier.py as a user does: GLUE, Parquet, long texts, nodo_train."""

import json
import shutil

import numpy as np
import pytest

from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.load import load


@pytest.mark.slow
def test_run_of_a_glue_task_writes_the_documented_files(run_program, place, tmp_path):
    flags = {"max_seq_length": 16, "num_train_epochs": 1, "export": True, "output_dir": tmp_path}
    flags |= {"task_name": "SST-2", "data_dir": "glue", "init_checkpoint": "bert"}
    done = run_program("run_classifier.py", "--nojit_compile", cwd=place, **flags)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results.keys() >= {"accuracy", "score", "loss"}
    assert "accuracy = " in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"model", "best", "SST-2.tsv", "SST-2.jsonl", "results.json"}
    info = json.loads((tmp_path / "export" / "1" / "export.json").read_text())
    assert info["max_seq_length"] == 16
    assert info["examples"]


@pytest.mark.slow
def test_long_texts_have_the_same_answers_everywhere(run_program, place, tmp_path):
    """The program, the API, the export, and the program on the run or on a copied model."""
    rows = [f"{'film . ' * (i % 7)}{('bad ', 'good ')[i % 2] * 3},{i % 2}" for i in range(16)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    flags = {"task_name": "custom", "train_file": "rows.csv", "eval_file": "rows.csv"}
    flags |= {"init_checkpoint": place / "bert", "output_dir": "out", "export": True}
    flags |= {"max_seq_length": 6, "long_text": "windows"}
    flags |= {"mixed_precision": "float32", "num_train_steps": 3}
    done = run_program("run_classifier.py", "--nojit_compile", cwd=tmp_path, **flags)
    assert done.returncode == 0, done.stderr

    def answers(folder):
        lines = (tmp_path / folder / "predictions.jsonl").read_text().splitlines()
        return np.array([json.loads(line)["probabilities"]["1"] for line in lines])

    expected = answers("out")
    texts = [row.split(",")[0] for row in rows]
    for path in ("out", "out/export/1"):
        found = load(tmp_path / path).predict(texts)
        assert not found["truncated"].any()
        np.testing.assert_allclose(found["probabilities"][:, 1], expected, atol=2e-6)
    shutil.copytree(tmp_path / "out" / "model", tmp_path / "copy")
    again = {"task_name": "custom", "predict_file": "rows.csv", "mixed_precision": "float32"}
    for start in ("out", "copy"):
        names = {"init_checkpoint": start, "output_dir": f"again-{start}"}
        done = run_program("run_classifier.py", "--nodo_train", cwd=tmp_path, **again, **names)
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(answers(f"again-{start}"), expected, atol=2e-6)
    # The command line has priority over the run.
    names = {"init_checkpoint": "out", "output_dir": "head_tail", "long_text": "head_tail"}
    done = run_program("run_classifier.py", "--nodo_train", cwd=tmp_path, **again, **names)
    assert done.returncode == 0, done.stderr
    assert np.abs(answers("head_tail") - expected).max() > 1e-4


@pytest.mark.slow
def test_length_of_a_cross_encoder_is_used(run_program, place, tmp_path):
    arguments = {"problem_type": "reranking", "max_seq_length": 9}
    reranker = TextClassifier.from_pretrained(place / "bert", **arguments)
    reranker.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    del config["keras_bert"]  # As sentence-transformers saves it.
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    (tmp_path / "rows.csv").write_text("text,b,label\nfilm,it is very very very very good,1\n")
    flags = {"init_checkpoint": "saved", "eval_file": "rows.csv", "output_dir": "out"}
    flags |= {"problem_type": "reranking", "columns": "text_pair=b", "mixed_precision": "float32"}
    done = run_program("run_classifier.py", "--nodo_train", cwd=tmp_path, **flags)
    assert done.returncode == 0, done.stderr
    assert "--max_seq_length=9\n" in done.stderr
    (line,) = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    score = reranker.predict(("film", "it is very very very very good"))["score"]
    assert json.loads(line)["prediction"] == pytest.approx(score, abs=1e-5)


# --- flags that are taken from the run, or from its model ---

OF_THE_TASK = {"max_seq_length": 256, "task_name": "custom"}
OF_THE_FILES = {"columns": "text=a,text_pair=b", "problem_type": "multi_label"}
RUN = OF_THE_TASK | OF_THE_FILES | {"columns": ["text=a", "text_pair=b"]}


@pytest.fixture
def used(run_program, tmp_path):
    """Returns a function: arguments -> the flags that are logged as taken, and the error."""

    def run(*arguments, settings=RUN):
        settings = settings | {"class_weights": "balanced"}
        (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
        flags = {"init_checkpoint": ".", "output_dir": "model"}  # The folder is rejected later.
        done = run_program("run_classifier.py", *arguments, cwd=tmp_path, **flags)
        lines = [line.partition("Using the settings of .: ") for line in done.stderr.splitlines()]
        return [flag for *_, flags in lines for flag in flags.split()], lines[-1][0]

    return run


def as_flags(values):
    return [f"--{name}={value}" for name, value in values.items()]


def test_prediction_takes_task_length_and_columns_from_the_run(used):
    assert used("--nodo_train")[0] == as_flags(OF_THE_TASK | OF_THE_FILES)
    # The columns of GLUE are its own.
    glue = used("--nodo_train", "--task_name=RTE", "--data_dir=glue")[0]
    assert glue == ["--max_seq_length=256"]


def test_flags_of_the_command_line_are_kept_even_if_equal_to_the_default(used):
    flags = ["--max_seq_length=128", "--columns=", "--problem_type=single_label"]
    assert used("--nodo_train", *flags)[0] == ["--task_name=custom"]


def test_no_flags_are_taken_for_training(used):
    assert used("--do_train", "--train_file=a.csv")[0] == []


def test_settings_of_the_model_take_precedence_over_those_of_its_run(used, tmp_path):
    """The model of a run may have been replaced."""
    (tmp_path / "model").mkdir()
    config = {"keras_bert": {"max_seq_length": 64, "problem_type": "regression"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    changed = {"max_seq_length": 64, "problem_type": "regression"}
    assert used("--nodo_train")[0] == as_flags(OF_THE_TASK | OF_THE_FILES | changed)


def test_invalid_setting_of_the_run_is_reported_by_name(used):
    error = used("--nodo_train", settings=RUN | {"problem_type": "rank"})[1]
    assert "run.json: problem_type is 'rank'; expected one of " in error
