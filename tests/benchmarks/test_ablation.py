"""The study of benchmarks/ablation.py: which units run, what is recorded, and the report."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

from keras_bert.errors import InputError
from tests import processes

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


class Killed(BaseException):
    """Ends a study like a signal that no code handles."""


@pytest.fixture
def run(ablation, plan, tmp_path, monkeypatch):
    """Returns a function that runs a study whose units are not computed."""

    def run(plan=plan, arms=(), tasks=(), kill_at=None):
        """Returns the units that ran, up to a kill, and the results."""
        done = []

        def add(name):
            if kill_at == len(done):
                raise Killed
            done.append(name)

        def pretrain(arm, _, folders):
            add(f"{arm.name} pretraining")
            folders.run(arm).mkdir(parents=True, exist_ok=True)
            (folders.run(arm) / "results.json").touch()
            return {"step": 10, "curve": []}, ablation.run.Usage(60.0, 90.0)

        def compute(unit, *_):
            add(f"{unit.arm.name} {unit.key}")
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
        with contextlib.suppress(Killed):
            ablation.run.run_study(ablation.run.selected(plan, arms, tasks), results, folders)
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


@pytest.mark.parametrize("kill_at", [0, 1, 4, 7, 8, 11])
@pytest.mark.parametrize("disk_is_lost", [False, True])
def test_killed_study_resumes(ablation, run, plan, tmp_path, kill_at, disk_is_lost):
    run(kill_at=kill_at)
    if disk_is_lost and (tmp_path / "work").exists():
        ablation.run.shutil.rmtree(tmp_path / "work")
    # With the disk, the model of the arm in progress is lost: it is trained again, but not
    # recorded again.
    pretraining = f"{ORDER[kill_at].split()[0]} pretraining"
    trains_again = disk_is_lost and pretraining in ORDER[:kill_at]
    done, results = run()
    assert done == [pretraining] * trains_again + ORDER[kill_at:]
    assert all(results.get(unit) for arm in plan.arms for unit in plan.units_of(arm))


def test_arms_and_tasks_are_selected_and_listed(ablation, run, plan):
    done, results = run(arms=("a",), tasks=("CoLA",))
    assert done == ["a pretraining", "a CoLA/seed-0", "a CoLA/seed-1"]
    lines = list(ablation.run.list_units(ablation.run.selected(plan, (), ()), results))
    assert len(lines) == len(ORDER) + 2
    assert lines[0] == "a: 3 of 7 units done in 2 min"
    assert lines[1].endswith("60 s")
    assert lines[4].endswith("missing")


def test_results_of_other_settings_are_an_error(run, plan, tmp_path):
    run()
    before = (tmp_path / "results" / "a.json").read_bytes()
    changed = dataclasses.replace(plan, pretraining_rates={"tiny": 1e-3, "mini": 1e-3})
    with pytest.raises(InputError, match="pretraining: was computed with"):
        run(changed)
    assert (tmp_path / "results" / "a.json").read_bytes() == before


@pytest.mark.parametrize("scale", [1.0, 0.002, 0.003, 0.05, 0.31])
def test_shares_of_runs_have_a_checkpoint(ablation, plan, tmp_path, scale):
    plan = dataclasses.replace(plan, scale=scale)
    folders, arm = ablation.run.Folders(tmp_path, tmp_path), plan.arms[0]
    interval = plan.checkpoint_interval(arm)
    saved = {
        f"phase-{number}/checkpoints/step-{step:08}"
        for number, phase in enumerate(plan.phases_of(arm), 1)
        for step in range(interval, phase.steps + 1, interval)
    }
    for percent, expected in ((10, "phase-1"), (20, ""), (40, ""), (70, "phase-2")):
        path = ablation.run.checkpoint(arm, percent, plan, folders)
        name = str(path.relative_to(folders.run(arm)))
        assert name in saved
        assert scale < 1 or name.startswith(expected)


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


def test_recorded_report_is_that_of_the_recorded_results(ablation, root):
    """The page on what models learn has its figures from the recorded report."""
    results = ablation.run.Results(root / "benchmarks/ablation_results", ablation.plan.PLAN)
    recorded = (results.folder / "report.md").read_text(encoding="utf-8")
    assert ablation.report.report(results) == recorded


def test_verdict_follows_the_rule(ablation):
    verdict = ablation.report.verdict
    assert verdict([80.0, 81.0, 82.0], [70.0, 71.0, 72.0])[2] == "seen"
    assert verdict([70.0, 71.0, 72.0], [80.0, 81.0, 82.0])[2] == "contradicted"
    assert verdict([80.0, 85.0, 90.0], [78.0, 83.0, 88.0])[2] == "not seen"
    # Seeds that happen to agree do not make a small difference certain.
    assert verdict([80.9, 80.9, 80.9], [80.0, 80.0, 80.0])[2] == "not seen"
    difference, error, _ = verdict([80.0, 81.0, 82.0], [70.0, 72.0, 74.0])
    assert difference == pytest.approx(9.0)
    assert error == pytest.approx(np.sqrt(1 / 3 + 4 / 3))


# --- the tagger, and the programs in miniature ---


def test_features_of_words(ablation):
    values = np.arange(24.0).reshape(2, 4, 3)  # Two tokens, four layers from the last one on.
    combine, first_tokens = ablation.tagger.combine, ablation.tagger.first_tokens
    assert np.array_equal(combine(values, "second_to_last")[0], [3, 4, 5])
    assert np.array_equal(combine(values, "sum_last_four")[0], [18, 22, 26])
    assert np.array_equal(combine(values, "concat_last_four")[1], np.arange(12.0, 24.0))
    # [CLS] a b b [] c [SEP], and the same truncated to [CLS] a b b [SEP]
    assert first_tokens(np.array([1, 2, 0, 1]), 6).tolist() == [1, 2, 0, 4]
    assert first_tokens(np.array([1, 2, 0, 1]), 5).tolist() == [1, 2, 0, 0]


CONFIG = {
    "vocab_size": 120,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}


def write_data(folder):
    """Writes four books of some KB, and a corpus for MRPC and WNUT-17."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "en", "i", "or", "u")]
    # Enough different words for the vocabulary.
    words = ["".join(random.choice(syllables, 3)) for _ in range(400)]

    def sentence():
        return " ".join(random.choice(words, random.integers(4, 12))).capitalize() + "."

    books, mrpc, wnut = folder / "corpus/gutenberg-85", folder / "glue/MRPC", folder / "ner/wnut17"
    for path in (books, mrpc, wnut):
        path.mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        paragraphs = [" ".join(sentence() for _ in range(6)) for _ in range(20)]
        (books / f"{name}.txt").write_text("\n\n".join(paragraphs))
    for split in ("train", "dev"):
        rows = [f"{n % 2}\t1\t2\t{sentence()}\t{sentence()}\n" for n in range(40)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (mrpc / f"{split}.tsv").write_text(header + "".join(rows))
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        lines = [
            "".join(f"{word}\t{'B-x' if word[0] == 'b' else 'O'}\n" for word in sentence().split())
            for _ in range(20)
        ]
        (wnut / name).write_text("\n".join(lines))


@pytest.mark.slow
def test_whole_study_in_miniature(root, ablation, run_program, tmp_path, monkeypatch):
    """Runs all programs of the study: one task, one seed and features."""
    monkeypatch.setattr(ablation.run, "NICENESS", 0)  # Other tests use the CPU.

    def run(folders, program, flags):
        if program.startswith("ablation."):
            arguments = [f"--{name}={ablation.run._text(value)}" for name, value in flags.items()]
            done = processes.run(["-m", *program.split(), *arguments], cwd=root / "benchmarks")
            assert done.returncode == 0, done.stderr
            return ablation.run.Usage(1.0, 1.0)
        file = program.removeprefix("keras_bert ").replace("-", "_").removesuffix(".py") + ".py"
        texts = {name: ablation.run._text(value) for name, value in flags.items()}
        done = run_program(file, **texts)
        assert done.returncode == 0, done.stderr
        return ablation.run.Usage(1.0, 1.0)

    monkeypatch.setattr(ablation.run.Folders, "run_program", run)
    write_data(tmp_path / "data")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    arm = ablation.plan.Arm(
        "miniature",
        str(config),
        "mlm",
        tasks=("MRPC",),
        features=("concat_last_four",),
        recipe=write_recipe(tmp_path, 5),
    )
    plan = ablation.plan.Plan(
        arms=(arm,),
        seeds=(0,),
        passes=1,
        vocab_size=CONFIG["vocab_size"],
        pretraining_rates={arm.size: 1e-3},
        fine_tuning_rates={arm.size: 1e-3},
        held_out=("three.txt", "four.txt"),
    )
    units = {arm: list(plan.units_of(arm))}
    results = ablation.run.Results(tmp_path / "results", plan)
    folders = ablation.run.Folders(tmp_path / "data", tmp_path / "work")
    ablation.run.run_study(units, results, folders)
    pretraining, mrpc, features = map(results.get, units[arm])
    curve = pretraining["figures"]["curve"]
    assert [row["step"] for row in curve] == [*range(1, 11)]
    assert [row["length"] for row in curve] == [16] * 5 + [32] * 5
    assert 0 <= mrpc["figures"]["last"]["accuracy"] <= 1
    assert 0 <= features["figures"]["test"]["f1"] <= 1
    assert not list((tmp_path / "work" / "fine_tuning" / "miniature").iterdir())
    assert "| miniature | " in ablation.report.report(results)
    assert ablation.plots.draw(results, tmp_path).stat().st_size
