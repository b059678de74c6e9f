"""Runs run_squad.py as a user does: a tiny model memorizes a question."""

import json
import shutil

import pytest

from tests.programs.conftest import FLAGS


@pytest.fixture(scope="module")
def finished(run_program, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        shutil.copy(place / "squad.json", folder / name)
    flags = FLAGS["run_squad.py"] | {
        "train_file": "",
        "data_dir": folder,
        "output_dir": folder / "out",
        "max_seq_length": 24,
        "learning_rate": 3e-3,
        "num_train_steps": 40,
        "warmup_proportion": 0.0,
        "jit_compile": False,
        "export": True,
    }
    done = run_program("run_squad.py", cwd=place, **flags)
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
    assert answers["0"] == "Rollo"
    config = json.loads((output_dir / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]


@pytest.mark.slow
def test_prediction_takes_settings_and_threshold_from_the_run(
    run_program, place, finished, tmp_path
):
    """Takes lengths and v2.0 from run.json, and the threshold from results.json."""
    run = tmp_path / "v2"
    shutil.copytree(finished[0] / "model", run / "model")
    config = json.loads((run / "model" / "config.json").read_text())
    del config["keras_bert"]  # As in models of older runs.
    (run / "model" / "config.json").write_text(json.dumps(config))
    settings = {"version_2_with_negative": True, "null_score_diff_threshold": None}
    settings |= {"max_seq_length": 24, "max_query_length": 8}  # An older run lacks some settings.
    (run / "run.json").write_text(json.dumps({"settings": settings}))
    (run / "results.json").write_text(json.dumps({"null_score_diff_threshold": -1e4}))
    done = run_program(
        "run_squad.py",
        "--nodo_train",
        "--nodo_eval",
        "--nojit_compile",
        init_checkpoint=run,
        predict_file=place / "squad.json",
        output_dir=tmp_path / "predicted",
    )
    assert done.returncode == 0, done.stderr
    taken = "--max_seq_length=24 --max_query_length=8 --version_2_with_negative=True"
    assert f"Using the settings of {run}: {taken}\n" in done.stderr
    assert "--null_score_diff_threshold=-10000.0" in done.stderr
    predicted = {
        path.stem: json.loads(path.read_text()) for path in (tmp_path / "predicted").glob("*.json")
    }
    assert {*predicted["predictions"].values()} == {""}
    assert predicted["nbest_predictions"]["0"][0]["text"] == "Rollo"
    assert -1e4 < predicted["null_odds"]["0"] < 0
    assert predicted["run"]["settings"]["max_seq_length"] == 24
