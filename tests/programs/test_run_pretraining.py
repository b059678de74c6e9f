"""Runs run_pretraining.py as a user does: output files, results, recipes, and failures of a GPU."""

import json
import re
import sys
from pathlib import Path

import pytest

import keras_bert
from keras_bert.errors import InputError
from keras_bert.programs import pretrain
from tests.programs.conftest import FLAGS

STEPS = 40
RUN = {
    "eval_file": "eval.tfrecord",
    "num_train_steps": STEPS,
    "learning_rate": 1e-3,
    "train_batch_size": 8,
    "save_checkpoints_steps": 7,
    "log_steps": 1,
    "jit_compile": False,
}


@pytest.fixture(scope="module")
def call(run_program, place):
    """Returns a function: (output_dir, **changes) -> result of a run in this process."""

    def call(output_dir, **changes):
        flags = FLAGS["run_pretraining.py"] | RUN
        flags = {k: v for k, v in (flags | changes).items() if v is not None}
        return run_program("run_pretraining.py", cwd=place, output_dir=output_dir, **flags)

    return call


@pytest.fixture(scope="module")
def whole_run(call, tmp_path_factory):
    """Returns the folder of a finished run, and its standard error."""
    output_dir = tmp_path_factory.mktemp("run") / "out"
    done = call(output_dir, peak_tflops=2e-3)
    assert done.returncode == 0, done.stderr
    return output_dir, done.stderr


@pytest.fixture
def finished(whole_run):
    return whole_run[0]


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_run_writes_the_documented_output_files(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    names = {path.name for path in finished.iterdir()}
    folders = {"model", "checkpoints", "tensorboard"}
    assert names == folders | {"metrics.jsonl", "results.json", "run.json"}
    assert {path.name for path in (finished / "model").iterdir()} >= {
        "config.json",
        "model.safetensors",
    }
    steps = [path.name for path in sorted((finished / "checkpoints").iterdir())]
    assert steps == ["step-00000028", "step-00000035", "step-00000040"]
    events = EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    names = {"loss", "masked_lm_accuracy", "learning_rate", "eval_loss"}
    assert names <= set(events.Tags()["tensors"])


@pytest.mark.slow
def test_metrics_have_one_line_per_step_and_per_evaluation(finished):
    rows = rows_of(finished)
    trained = [row for row in rows if "loss" in row]
    assert [row["step"] for row in trained] == list(range(1, STEPS + 1))
    names = {"loss", "masked_lm_accuracy", "next_sentence_accuracy", "learning_rate"}
    names |= {"gradient_norm", "examples_per_second", "tokens_per_second"}
    assert trained[-1].keys() >= names
    assert [row["step"] for row in rows if "eval_loss" in row] == [7, 14, 21, 28, 35, 40]
    # Linear warm-up over 4 steps from step 0, then lr * (1 - step / total).
    assert [row["learning_rate"] for row in trained[:6]] == pytest.approx(
        [0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3 * (1 - 4 / 40), 1e-3 * (1 - 5 / 40)]
    )


@pytest.mark.slow
def test_finished_command_does_nothing_and_a_changed_setting_is_rejected(finished, call):
    before = (finished / "model" / "model.safetensors").stat().st_mtime_ns
    again = call(finished)
    assert again.returncode == 0
    assert "is finished; nothing to do" in again.stderr
    assert (finished / "model" / "model.safetensors").stat().st_mtime_ns == before
    changed = call(finished, learning_rate=0.002)
    assert changed.returncode == 1
    (line,) = changed.stderr.splitlines()
    assert "learning_rate was 0.001 and is now 0.002" in line


@pytest.mark.slow
def test_training_starts_from_a_model_directory(finished, call, tmp_path):
    changes = {"init_checkpoint": finished / "model", "bert_config": None, "num_train_steps": 2}
    done = call(tmp_path / "warm", **changes)
    assert done.returncode == 0, done.stderr
    warm, cold = rows_of(tmp_path / "warm")[0], rows_of(finished)[0]
    assert warm["masked_lm_loss"] < cold["masked_lm_loss"]


@pytest.mark.slow
def test_non_finite_loss_stops_the_run_and_keeps_the_last_checkpoint(call, tmp_path):
    changes = {"learning_rate": 1e30, "num_warmup_steps": 30, "save_checkpoints_steps": 1}
    done = call(tmp_path, **changes)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert "run_pretraining.py: error: step " in message
    assert "last good checkpoint" in message
    assert str(sorted((tmp_path / "checkpoints").iterdir())[-1]) in message
    assert not (tmp_path / "results.json").exists()


# --- recipes ---


@pytest.mark.slow
def test_recipe_writes_one_folder_per_phase_with_one_schedule(call, tmp_path):
    """Checks a warm-up of 1 step to 1e-4, then 1e-4 * (1 - step / 70) over both phases."""
    names = ("train_batch_size", "num_train_steps", "num_warmup_steps", "learning_rate")
    flags = {"recipe": "recipe.toml", "input_file": "records/{max_seq_length}.tfrecord"}
    done = call(tmp_path, **flags | dict.fromkeys(names), do_eval=False, eval_file=None)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"phase-1", "phase-2", "model", "results.json", "run.json"}
    for name in ("model/model.safetensors", "model/config.json", "results.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "phase-2" / name).read_bytes()
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert settings["phases"] == 2
    assert (settings["num_train_steps"], settings["phase-1"]["num_train_steps"]) == (40, 30)
    rows = [row for name in ("phase-1", "phase-2") for row in rows_of(tmp_path / name)]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates == pytest.approx([0.0] + [1e-4 * (1 - step / 70) for step in range(1, 70)])


@pytest.mark.slow
def test_dry_run_prints_the_cost_of_each_phase_and_writes_no_files(call, tmp_path):
    flags = {"recipe": "recipes/bert-base.toml", "recipe_scale": 0.001, "dry_run": True}
    flags |= {"input_file": None, "eval_file": None, "bert_config": "base"}
    flags |= dict.fromkeys(("num_train_steps", "num_warmup_steps"))
    done = call(tmp_path / "dry", **flags)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "dry").exists()
    first, second = done.stdout.split("recipes/bert-base.toml: phase ")[1:]
    assert "--max_seq_length=128" in first
    assert "--max_seq_length=512" in second
    assert "  steps       900 of 8 sequences" in first
    assert "  tokens      921,600, including padding" in first
    for name in ("parameters", "FLOP", "memory"):
        assert re.search(rf"^  {name} ", first, re.MULTILINE), done.stdout
    assert re.search(r"^[\d.]+ hours at 1 TFLOP/s", second, re.MULTILINE)


# --- the function of the Python API ---


@pytest.mark.slow
def test_function_runs_the_program_and_returns_its_results(finished, place, monkeypatch):
    monkeypatch.chdir(place)
    # The run is finished, so its results show that all settings are the same.
    settings = FLAGS["run_pretraining.py"] | RUN
    records, config = Path(settings.pop("input_file")), settings.pop("bert_config")
    results = keras_bert.pretrain([records], config, output_dir=finished, **settings)
    assert results == json.loads((finished / "results.json").read_text())


def test_function_takes_the_config_of_a_recipe(capsys):
    outputs = []
    for config in ("", "mini", "tiny"):
        assert keras_bert.pretrain([], config, recipe="small-corpus", dry_run=True) == {}
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"num_steps": 1},
            r"^pretrain\(\) got unknown arguments num_steps; expected any of .*recor",
        ),
        ({"learning_rate": -1.0}, r"^learning_rate=-1\.0: expected a finite number of at least 0$"),
        ({"config": 7}, "^config=7: expected a string$"),
        (
            {"config": ""},
            r"^config is required, or init_checkpoint or recipe; the shortest call is: keras",
        ),
        ({"records": "nothing"}, "^records: no record files match 'nothing'"),
        (
            {"output_dir": ""},
            r"^output_dir is required; the shortest call is: keras_bert\.pretrain\(config='tiny', "
            r"records='records', output_dir='out'\)$",
        ),
        ({"recipe_scale": 2.0}, "^recipe_scale: has no effect without recipe; expected both"),
        ({"report_to": "comet"}, "^report_to=comet: expected mlflow, wandb, or both"),
        ({"do_train": False}, "^do_train=false needs an init_checkpoint to evaluate"),
        (
            {"dry_run": True, "distribution_strategy": "multi_worker_mirrored"},
            "dry_run uses only this machine",
        ),
    ],
)
def test_errors_of_the_function_name_arguments(place, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    settings = {"records": "eval.tfrecord", "config": "config.json", "output_dir": tmp_path / "out"}
    with pytest.raises(InputError, match=message):
        keras_bert.pretrain(**settings | arguments)
    assert not (tmp_path / "out").exists()


# --- experiment trackers ---


def test_tracker_that_cannot_be_used(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    done = call(tmp_path / "out", report_to="mlflow")
    assert done.returncode == 1
    message = r"mlflow: ModuleNotFoundError: .*; expected the package mlflow, and a server"
    assert re.search(f"error: --report_to={message}", done.stderr)


# --- GPUs ---


@pytest.mark.slow
def test_utilization_of_a_known_peak_rate_is_logged_and_in_the_results(whole_run):
    folder, err = whole_run
    last = next(row for row in rows_of(folder) if row["step"] == STEPS and "mfu" in row)
    # 16 tokens and 3 predictions a row; three times the forward pass.
    products = 16 * (4 * 16 * 16 + 2 * 16 * 32 + 2 * 16 * 16), 3 * (16 * 50 + 16 * 16)
    flops = 3 * 2 * sum(products)
    assert last["mfu"] == pytest.approx(last["examples_per_second"] * flops / 2e9, rel=1e-5)
    results = json.loads((folder / "results.json").read_text())
    figures = {name: results[name] for name in ("tokens_per_second", "mfu")}
    assert min(figures.values()) > 0
    line = next(line for line in err.splitlines() if "Training throughput: " in line)
    assert all(f"{name}={value:.4g}" in line for name, value in figures.items())


class JaxRuntimeError(Exception):
    """Stands for the exception of JAX."""


def test_memory_that_is_exhausted_during_a_step_ends_the_run_in_one_line(
    tmp_path, call, monkeypatch
):
    reason = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."

    def failing(*_):
        raise JaxRuntimeError(f"{reason}\nat")

    monkeypatch.setattr("keras_bert.training.loop.make_train_steps", lambda *_: failing)
    done = call(tmp_path / "out", gradient_accumulation_steps=2)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"run_pretraining.py: error: --train_batch_size=8: the memory is exhausted ({reason}); the "
        "activations of 4 rows of 16 tokens need at least 0.0 GB; expected a smaller batch, or "
        "more --gradient_accumulation_steps, or --gradient_checkpointing"
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"bert_config": "tiny"}, (8000, 2e-3, 0.0)),
        ({"bert_config": "mini.json"}, (8000, 1e-3, 0.0)),
        ({"bert_config": "small", "num_train_steps": 100}, (100, 5e-4, 0.0)),
        ({"bert_config": "mini", "learning_rate": 2e-4, "dropout_prob": 0.1}, (8000, 2e-4, 0.1)),
        ({"bert_config": "medium"}, (100_000, 1e-4, None)),
        ({"init_checkpoint": "bert"}, (100_000, 1e-4, None)),
        ({"bert_config": "tiny", "recipe": "small-corpus"}, (4000, 1e-3, 0.0)),
    ],
)
def test_small_models_have_the_defaults_of_the_recipe_for_small_corpora(flags, expected):
    values = pretrain.PROGRAM.flags()
    flags = {"input_file": "records-{max_seq_length}", "output_dir": "out"} | flags
    values(["pretrain", *(f"--{name}={value}" for name, value in flags.items())])
    phase, *_ = pretrain.read_phases(values)
    settings = phase.settings
    assert phase.record["num_train_steps"] == phase.training.num_train_steps
    values = phase.training.num_train_steps, settings.learning_rate, settings.dropout_prob
    assert values == expected
