"""The study of benchmarks/ablation.py: the units that run, and what is recorded."""

import dataclasses
import json

import pytest

from keras_bert.errors import InputError
from tests.benchmarks.ablation.conftest import ORDER, Computed, Killed, run


def test_all_units_run_in_order_and_are_recorded(ablation, plan, tmp_path):
    computed = Computed(ablation)
    run(ablation, plan, tmp_path, computed)
    assert computed.done == ORDER
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["a.json", "b.json"]
    recorded = json.loads((tmp_path / "results" / "a.json").read_text())["units"]
    assert list(recorded) == [name.removeprefix("a ") for name in ORDER[:7]]
    assert recorded["MRPC/seed-1"]["settings"]["learning_rate"] == 3e-4
    phases = recorded["pretraining"]["settings"]["recipe"]["phase"]
    assert [phase["num_train_steps"] for phase in phases] == [500, 500]
    again = Computed(ablation)
    run(ablation, plan, tmp_path, again)
    assert again.done == []


@pytest.mark.parametrize("kill_at", range(len(ORDER)))
@pytest.mark.parametrize("disk_is_lost", [False, True])
def test_study_that_is_killed_between_units_resumes(
    ablation, plan, tmp_path, kill_at, disk_is_lost
):
    computed = Computed(ablation, kill_at)
    with pytest.raises(Killed):
        run(ablation, plan, tmp_path, computed)
    first = json.loads(path.read_text()) if (path := tmp_path / "results/a.json").exists() else {}
    again = Computed(ablation)
    again.trained = set() if disk_is_lost else computed.trained
    results = run(ablation, plan, tmp_path, again)
    arm = ORDER[kill_at].split()[0]
    # With the disk, the model of the arm in progress is lost: it is trained again, but not
    # recorded again.
    trains_again = disk_is_lost and f"{arm} pretraining" in ORDER[:kill_at]
    assert again.done == [f"{arm} pretraining"] * trains_again + ORDER[kill_at:]
    selection = ablation.study.Selection()
    units = [unit for some in selection.units(plan).values() for unit in some]
    assert results.missing(units) == []
    for key, entry in first.get("units", {}).items():
        assert json.loads((tmp_path / "results/a.json").read_text())["units"][key] == entry


def test_arms_and_tasks_are_selected(ablation, plan, tmp_path):
    computed = Computed(ablation)
    run(ablation, plan, tmp_path, computed, arms=("a",), tasks=("CoLA",))
    assert computed.done == ["a pretraining", "a CoLA/seed-0", "a CoLA/seed-1"]
    computed = Computed(ablation)
    run(ablation, plan, tmp_path, computed, arms=("extra",))
    assert computed.done == ["extra pretraining", "extra MRPC/seed-0", "extra MRPC/seed-1"]
    with pytest.raises(KeyError, match="unknown"):
        ablation.study.Selection(arms=("unknown",)).units(plan)


def test_missing_units_of_a_partial_file_are_computed(ablation, plan, tmp_path):
    run(ablation, plan, tmp_path, Computed(ablation))
    path = tmp_path / "results" / "a.json"
    content = json.loads(path.read_text())
    del content["units"]["CoLA/seed-1"]
    path.write_text(json.dumps(content))
    computed = Computed(ablation)
    computed.trained = {"a", "b"}
    run(ablation, plan, tmp_path, computed)
    assert computed.done == ["a CoLA/seed-1"]


def test_run_is_deleted_after_it_is_recorded(ablation, plan, tmp_path):
    """A kill between the two leaves the record, and a part of a run is never resumed."""
    folder = tmp_path / "work" / "fine_tuning" / "a" / "CoLA-seed-0"

    class Computing(Computed):
        def compute(self, unit, *_):
            if unit.key == "CoLA/seed-0":
                folder.mkdir(parents=True)
                (folder / "metrics.jsonl").touch()
            elif unit.key == "CoLA/seed-1":
                assert "CoLA/seed-0" in (tmp_path / "results" / "a.json").read_text()
                assert not list(folder.parent.iterdir())
            return super().compute(unit)

    computed = Computing(ablation)
    run(ablation, plan, tmp_path, computed)
    assert computed.done == ORDER
    # What a kill left while the run was deleted does not stop the next deletion.
    deleted = folder.with_name("CoLA-seed-0.deleted")
    for left in (folder, deleted):
        left.mkdir(parents=True)
        (left / "run.json").touch()
    unit = ablation.units.Unit(plan.arms[0], "CoLA", 0)
    ablation.fine_tuning.delete_run(unit, ablation.corpus.Folders(tmp_path, tmp_path / "work"))
    assert not list(folder.parent.iterdir())


def test_scores_of_other_pretraining_are_not_kept(ablation, plan, tmp_path):
    run(ablation, plan, tmp_path, Computed(ablation))
    changed = dataclasses.replace(plan, pretraining_rates={"tiny": 1e-3, "mini": 1e-3})
    with pytest.raises(InputError, match="or delete the file to compute it again"):
        run(ablation, changed, tmp_path, Computed(ablation))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], r"a\.json: is not JSON"),
        (lambda text: "", r"a\.json: is not JSON"),
        (lambda text: "<<<<<<< HEAD\n" + text, r"a\.json: is not JSON"),
        (lambda text: '{"arm": "b", "units": {}}', "is not a file of results of a; expected one"),
        (lambda text: '{"arm": "a", "units": []}', "is not a file of results of a; expected one"),
        (lambda text: text.replace('"seconds"', '"time"'), r"pretraining: expected an object with"),
        (
            lambda text: text.replace('"learning_rate": 0.0003', '"learning_rate": 0.1'),
            r"CoLA/seed-0: was computed with \{'learning_rate': 0\.1\}; expected \{'learning_rate'",
        ),
    ],
)
def test_damaged_file_is_an_error_and_stays_as_it_is(ablation, plan, tmp_path, damage, message):
    run(ablation, plan, tmp_path, Computed(ablation))
    path = tmp_path / "results" / "a.json"
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    computed = Computed(ablation)
    with pytest.raises(InputError, match=message):
        run(ablation, plan, tmp_path, computed)
    assert computed.done == []
    assert path.read_bytes() == before


def test_interrupted_write_leaves_the_file_before_it(ablation, plan, tmp_path, monkeypatch):
    run(ablation, plan, tmp_path, Computed(ablation), arms=("a",), tasks=("CoLA",))
    path = tmp_path / "results" / "a.json"
    before = path.read_bytes()

    def fail(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        with pytest.raises(Killed):
            run(ablation, plan, tmp_path, Computed(ablation), arms=("a",))
    assert path.read_bytes() == before


def test_list_has_all_units_and_the_remaining_time(ablation, plan, tmp_path):
    run(ablation, plan, tmp_path, Computed(ablation), arms=("a",), tasks=("CoLA",))
    results = ablation.results.Results(tmp_path / "results", plan)
    lines = list(ablation.study.list_units(plan, ablation.study.Selection(), results))
    assert len(lines) == len(ORDER) + 3
    assert lines[0].startswith("a: 3 of 7 units done; budget ")
    assert "used 2 min" in lines[0]
    assert lines[1].split()[:1] == ["pretraining"]
    assert lines[1].endswith("done in 60 s")
    assert lines[4].endswith("missing")
    assert "used 2 min" in lines[-1]


def test_budget_of_the_plan_is_below_ten_hours(ablation, tmp_path):
    plan = ablation.plan.PLAN
    units = [unit for some in ablation.study.Selection().units(plan).values() for unit in some]
    seconds = [ablation.units.estimated_seconds(unit, plan) for unit in units]
    assert all(seconds)
    assert (sum(seconds) + ablation.plan.CORPUS_SECONDS) / 2 < 10 * 3600  # Two cores.
