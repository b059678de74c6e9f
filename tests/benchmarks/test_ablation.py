"""The study of benchmarks/ablation.py: which units run, what is recorded, and the report."""

import contextlib
import dataclasses
import importlib
import json

import pytest

from keras_bert.errors import InputError
from keras_bert.programs.command import PROGRAMS
from tests.conftest import PROGRAMS as FILES

RECIPE = """
[flags]
learning_rate = 1e-3
num_warmup_steps = 1
dropout_prob = 0.0
[[phase]]
num_train_steps = {steps}
train_batch_size = 8
data = {{ max_seq_length = 16, max_predictions_per_seq = 3 }}
[[phase]]
num_train_steps = {steps}
train_batch_size = 4
continue_optimizer = true
data = {{ max_seq_length = 32, max_predictions_per_seq = 5 }}
"""
ORDER = [
    "a pretraining",
    "a CoLA/seed-0",
    "a CoLA/seed-1",
    "a MRPC/seed-0",
    "a MRPC/seed-1",
    "a 50%/MRPC/seed-0",
    "a 50%/MRPC/seed-1",
    "b pretraining",
    "b MRPC/seed-0",
    "b MRPC/seed-1",
    "b WNUT-17 features last/seed-0",
    "b WNUT-17 features last/seed-1",
]


def write_recipe(folder, steps):
    """Writes a recipe of two phases, each with a number of steps, and returns its path."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(steps=steps))
    return str(path)


@pytest.fixture
def plan(ablation, tmp_path):
    """Returns a plan of two arms, of which the first has a checkpoint and the second features."""
    arm, recipe = ablation.plan.Arm, write_recipe(tmp_path, 500)
    a = {"tasks": ("CoLA", "MRPC"), "points": (50,), "point_task": "MRPC"}
    return ablation.plan.Plan(
        arms=(
            arm("a", "tiny", "mlm", recipe=recipe, **a),
            arm("b", "mini", None, tasks=("MRPC",), features=("last",), recipe=recipe),
        ),
        seeds=(0, 1),
        pretraining_rates={"tiny": 2e-3, "mini": 1e-3},
        fine_tuning_rates={"tiny": 3e-4, "mini": 2e-4},
    )


@pytest.fixture
def run(ablation, plan, tmp_path, monkeypatch):
    """Returns a function that runs a study whose units are not computed."""

    def run(plan=plan):
        """Returns the units that ran, and the results."""
        done = []

        def pretrain(arm, _, folders):
            done.append(f"{arm.name} pretraining")
            folders.run(arm).mkdir(parents=True, exist_ok=True)
            (folders.run(arm) / "results.json").touch()
            return {"step": 10, "curve": []}, ablation.run.Usage(60.0, 90.0)

        def compute(unit, *_):
            done.append(f"{unit.arm.name} {unit.key}")
            metrics = ("matthews_corrcoef", "f1", "accuracy")
            figures = {"last": dict.fromkeys(metrics, 0.5 + 0.1 * unit.seed)}
            if unit.task == "WNUT-17":
                figures["test"] = dict.fromkeys(metrics, 0.3)
            return figures, ablation.run.Usage(30.0, 40.0)

        monkeypatch.setattr(ablation.run, "pretrain", pretrain)
        monkeypatch.setattr(ablation.run, "fine_tune", compute)
        monkeypatch.setattr(ablation.run, "train_tagger", compute)
        results = ablation.run.Results(tmp_path / "results", plan)
        folders = ablation.run.Folders(tmp_path / "data", tmp_path / "work")
        ablation.run.run_study(ablation.run.selected(plan, (), ()), results, folders)
        return done, results

    return run


# --- the units that run ---


def test_all_units_run_in_order_and_are_recorded_once(run, tmp_path):
    assert run()[0] == ORDER
    recorded = json.loads((tmp_path / "results" / "a.json").read_text())["units"]
    assert list(recorded) == [name.removeprefix("a ") for name in ORDER[:7]]
    assert recorded["MRPC/seed-1"]["settings"]["learning_rate"] == 3e-4
    phases = recorded["pretraining"]["settings"]["recipe"]["phase"]
    assert [phase["num_train_steps"] for phase in phases] == [500, 500]
    assert run()[0] == []


def test_results_of_other_settings_are_an_error(run, plan, tmp_path):
    run()
    before = (tmp_path / "results" / "a.json").read_bytes()
    changed = dataclasses.replace(plan, pretraining_rates={"tiny": 1e-3, "mini": 1e-3})
    with pytest.raises(InputError, match="pretraining: was computed with"):
        run(changed)
    assert (tmp_path / "results" / "a.json").read_bytes() == before


# --- the report ---


def test_report_and_plots_of_partial_results(ablation, run, plan, tmp_path):
    empty = ablation.run.Results(tmp_path / "nothing", plan)
    assert "| claim | CoLA |" in ablation.report.report(empty)
    results = run()[1]
    text = ablation.report.report(results)
    assert "| a | 55.0 ± 7.1 | – | 55.0 ± 7.1 | 55.0 ± 7.1 | – |" in text
    assert "| 500 (50 %) | 55.0 ± 7.1 |" in text
    assert "| last | 55.0 ± 7.1 | 30.0 ± 0.0 | 94.9 |" in text
    plot = ablation.plots.draw(results, tmp_path / "plots")
    assert plot.read_bytes().startswith(b"\x89PNG")


# --- the tagger, and the programs ---


def test_commands_of_the_study_have_known_flags(ablation, plan, tmp_path, monkeypatch):
    commands = []

    def run(folders, program, flags):
        commands.append((program, flags))
        return ablation.run.Usage(1.0, 1.0)

    monkeypatch.setattr(ablation.run.Folders, "run_program", run)
    monkeypatch.setattr(ablation.run.Folders, "books", lambda *_: ([tmp_path], [tmp_path]))
    folders = ablation.run.Folders(tmp_path, tmp_path / "work")
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        path = tmp_path / "ner" / "wnut17" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\tO\n")
    for arm in plan.arms:
        with contextlib.suppress(FileNotFoundError):  # No program has written any files.
            ablation.run.pretrain(arm, plan, folders)
        for unit in filter(lambda unit: unit.task, plan.units_of(arm)):
            compute = ablation.run.train_tagger if unit.features else ablation.run.fine_tune
            with contextlib.suppress(FileNotFoundError):
                compute(unit, plan, folders)
    modules = FILES | {f"keras_bert {name}": module for name, (module, _) in PROGRAMS.items()}
    assert len({program for program, _ in commands}) == 6
    for program, flags in commands:
        if program != "ablation.tagger":
            assert {*flags} <= {*importlib.import_module(modules[program]).PROGRAM.flags()}
