"""Runs run_squad.py as a user does: a tiny model memorizes questions."""

import json
import shutil

import pytest

WORDS = "rollo charles denmark france king swore fealty to of the who ?".split()  # noqa: SIM905


def entry(name, answer, context, start=None):
    answers = [{"text": answer, "answer_start": context.index(answer) if start is None else start}]
    return {"id": name, "question": "Who swore?", "answers": answers}


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    """Writes a checkpoint with random weights and questions about eight contexts."""
    folder = tmp_path_factory.mktemp("squad")
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 384}
    make_checkpoint(folder / "start", WORDS, **sizes, **no_dropout)
    paragraphs = []
    for i, name in enumerate(["Rollo", "Charles", "Denmark", "France"]):
        for j, context in enumerate([f"the king {name} swore", f"{name} of the king swore fealty"]):
            paragraphs.append({"context": context, "qas": [entry(f"{i}{j}", name, context)]})
    (folder / "squad").mkdir()
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        write(folder / "squad" / name, paragraphs)
    return folder


def write(path, paragraphs):
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def finished(run_program, folder):
    flags = {
        "init_checkpoint": folder / "start",
        "data_dir": folder / "squad",
        "output_dir": folder / "out",
        "max_seq_length": 24,
        "max_query_length": 8,
        "train_batch_size": 8,
        "learning_rate": 3e-3,
        "num_train_steps": 40,
        "warmup_proportion": 0.0,
        "mixed_precision": "float32",
        "jit_compile": False,
        "export": True,
    }
    done = run_program("run_squad.py", **flags)
    assert done.returncode == 0, done.stderr
    return folder / "out", done


@pytest.mark.slow
def test_run_memorizes_and_writes_the_documented_output_files(finished):
    output_dir, done = finished
    results = json.loads((output_dir / "results.json").read_text())
    assert results["exact"] == results["f1"] == 100.0
    assert "exact = 100" in done.stdout
    expected = {"model", "best", "checkpoints", "tensorboard", "export", "examples.json"}
    predictions = {"predictions.json", "nbest_predictions.json"}
    assert {path.name for path in output_dir.iterdir()} == expected | predictions | {
        *("metrics.jsonl", "run.json", "results.json"),
    }
    answers = json.loads((output_dir / "predictions.json").read_text())
    assert answers["00"] == "Rollo"
    config = json.loads((output_dir / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]


@pytest.mark.slow
def test_prediction_takes_settings_and_threshold_from_the_run(run_program, folder, finished):
    """Takes lengths and v2.0 from run.json, and the threshold from results.json."""
    run = folder / "v2"
    shutil.copytree(finished[0] / "model", run / "model")
    config = json.loads((run / "model" / "config.json").read_text())
    del config["keras_bert"]  # As in models of older runs.
    (run / "model" / "config.json").write_text(json.dumps(config))
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": None}
    settings |= {"max_seq_length": 24, "max_query_length": 8}  # An older run lacks some settings.
    (run / "run.json").write_text(json.dumps({"settings": settings}))
    (run / "results.json").write_text(json.dumps({"null_score_diff_threshold": -1e4}))
    context = "the king Denmark swore"
    questions = [{"context": context, "qas": [{"id": "x", "question": "Who swore?"}]}]
    done = run_program(
        "run_squad.py",
        "--nodo_train",
        "--nodo_eval",
        "--nojit_compile",
        init_checkpoint=run,
        predict_file=write(folder / "questions.json", questions),
        output_dir=folder / "predicted",
    )
    assert done.returncode == 0, done.stderr
    taken = "--max_seq_length=24 --max_query_length=8 --version_2_with_negative=True"
    assert f"Using the settings of {run}: {taken}\n" in done.stderr
    assert "--null_score_diff_threshold=-10000.0" in done.stderr
    predicted = {
        path.stem: json.loads(path.read_text()) for path in (folder / "predicted").glob("*.json")
    }
    assert predicted["predictions"] == {"x": ""}
    assert predicted["nbest_predictions"]["x"][0]["text"] == "Denmark"
    assert -1e4 < predicted["null_odds"]["x"] < 0
    assert predicted["run"]["settings"]["max_seq_length"] == 24
