"""The study of benchmarks/ablation.py: the units that run, what is recorded, what a kill leaves."""

import dataclasses
import json
import lzma

import numpy as np
import pytest

from keras_bert.common.errors import InputError


@pytest.fixture
def ablation(_benchmarks):
    """Returns the modules of the study by name."""
    import importlib
    from types import SimpleNamespace

    names = (
        "claims",
        "corpus",
        "fine_tuning",
        "plan",
        "plots",
        "programs",
        "report",
        "results",
        "study",
    )
    names += ("pretraining", "tagger", "units")
    return SimpleNamespace(**{name: importlib.import_module(f"ablation.{name}") for name in names})


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


def write_recipe(folder, steps):
    """Writes a recipe of two phases, each with a number of steps, and returns its path."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(steps=steps))
    return str(path)


@pytest.fixture
def plan(ablation, tmp_path):
    """Returns a plan of two arms, of which the second has features, and one that is optional."""
    arm = ablation.plan.Arm
    return ablation.plan.Plan(
        arms=(
            arm("a", "tiny", "mlm", tasks=("CoLA", "MRPC"), points=(50,), point_tasks=("MRPC",)),
            arm("b", "mini", None, tasks=("MRPC",), features=("last",)),
            arm("extra", "mini", "ltr", tasks=("MRPC",), is_optional=True),
        ),
        seeds=(0, 1),
        recipe=write_recipe(tmp_path, 500),
        pretraining_rates={"tiny": 2e-3, "mini": 1e-3},
        fine_tuning_rates={"tiny": 3e-4, "mini": 2e-4},
    )


class Killed(BaseException):
    """Ends a study like a signal that no code handles."""


class Computed:
    """Stands for the computations of a study; records them, and kills it before a given one."""

    def __init__(self, ablation, kill_at=None):
        self.done, self.trained, self.kill_at = [], set(), kill_at
        self._result = ablation.results.Result
        self.computations = ablation.study.Computations(
            self.pretrain, lambda arm, _: arm.name in self.trained, self.compute, self.compute
        )

    def pretrain(self, arm, *_):
        self._add(f"{arm.name} pretraining")
        self.trained.add(arm.name)
        return self._result({"step": 10, "curve": [], "run": len(self.done)}, 60.0, 90.0)

    def compute(self, unit, *_):
        self._add(f"{unit.arm.name} {unit.key}")
        metrics = ("matthews_corrcoef", "f1", "accuracy")
        scores = dict.fromkeys(metrics, 0.5 + 0.1 * unit.seed)
        return self._result({"last": scores, "best": scores}, 30.0, 40.0)

    def _add(self, name):
        if self.kill_at == len(self.done):
            raise Killed
        self.done.append(name)


def run(ablation, plan, tmp_path, computed, **selected):
    results = ablation.results.Results(tmp_path / "results", plan)
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    selection = ablation.study.Selection(**selected)
    ablation.study.run_study(plan, selection, results, folders, computed.computations)
    return results


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


def test_single_seed_is_not_judged(ablation, plan, tmp_path):
    arms = [
        dataclasses.replace(arm, name=name)
        for arm, name in zip(plan.arms, ("mini-mlm_nsp", "mini-none"), strict=False)
    ]
    for seeds, count in (((0,), 0), ((0, 1), 1)):
        some = dataclasses.replace(plan, arms=arms, seeds=seeds)
        results = run(ablation, some, tmp_path, Computed(ablation))
        judged = [claim.text for claim, *_ in ablation.claims.judge(results, some)]
        assert judged.count("Pre-training helps mini") == count


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


def test_checkpoints_are_found_in_the_phases(ablation, plan, tmp_path):
    folders = ablation.corpus.Folders(tmp_path, tmp_path / "work")
    arm, run = plan.arms[0], tmp_path / "work/pretraining/a"
    for percent, expected in (
        (10, "phase-1/checkpoints/step-00000100"),
        (50, "phase-1/checkpoints/step-00000500"),
        (70, "phase-2/checkpoints/step-00000200"),
        (100, "."),
    ):
        assert ablation.pretraining.checkpoint(arm, percent, plan, folders) == run / expected


@pytest.mark.parametrize("scale", [0.002, 0.003, 0.05, 0.31])
def test_shares_of_scaled_runs_have_a_checkpoint(ablation, plan, tmp_path, scale):
    plan = dataclasses.replace(plan, scale=scale)
    folders, arm = ablation.corpus.Folders(tmp_path, tmp_path), plan.arms[0]
    interval = plan.checkpoint_interval(arm)
    saved = {
        f"phase-{number}/checkpoints/step-{step:08}"
        for number, phase in enumerate(plan.phases_of(arm), 1)
        for step in range(interval, phase.steps + 1, interval)
    }
    for percent in (10, 20, 40, 70):
        path = ablation.pretraining.checkpoint(arm, percent, plan, folders)
        assert str(path.relative_to(ablation.pretraining.run_folder(arm, folders))) in saved


def test_report_and_plots_of_partial_results(ablation, plan, tmp_path):
    empty = ablation.results.Results(tmp_path / "nothing", plan)
    assert "| claim | task |" in ablation.report.report(empty, plan)
    results = run(ablation, plan, tmp_path, Computed(ablation))
    text = ablation.report.report(results, plan)
    assert "| a | 55.0 ± 7.1 | – | 55.0 ± 7.1 | 55.0 ± 7.1 | – |" in text
    assert "| 500 (50 %) | 55.0 ± 7.1 |" in text
    assert "| last | 55.0 ± 7.1 | 94.9 |" in text
    assert (
        "| the most frequent answer | 0.0 | 50.9 | 68.4 | 81.2 | – | – | 52.7 | 0.0 | – |" in text
    )
    assert "| published: Google's mini, test | 0.0 | 85.9 | 71.8 | – | 73.3 |" in text
    for path in ablation.plots.draw_all(results, plan, tmp_path / "plots"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_verdict_follows_the_rule(ablation):
    verdict = ablation.claims.verdict
    assert verdict([80.0, 81.0, 82.0], [70.0, 71.0, 72.0])[2] == "seen"
    assert verdict([70.0, 71.0, 72.0], [80.0, 81.0, 82.0])[2] == "contradicted"
    assert verdict([80.0, 85.0, 90.0], [78.0, 83.0, 88.0])[2] == "not seen at this scale"
    # Seeds that happen to agree do not make a small difference certain.
    assert verdict([80.9, 80.9, 80.9], [80.0, 80.0, 80.0])[2] == "not seen at this scale"
    difference, error, _ = verdict([80.0, 81.0, 82.0], [70.0, 72.0, 74.0])
    assert difference == pytest.approx(9.0)
    assert error == pytest.approx(np.sqrt(1 / 3 + 4 / 3))


def test_features_are_made_from_the_layers(ablation):
    values = np.arange(24.0).reshape(2, 4, 3)  # Two tokens, four layers from the last one on.
    combine = ablation.tagger.combine
    assert np.array_equal(combine(values, "last")[0], [0, 1, 2])
    assert np.array_equal(combine(values, "second_to_last")[0], [3, 4, 5])
    assert np.array_equal(combine(values, "sum_last_four")[0], [18, 22, 26])
    assert np.array_equal(combine(values, "concat_last_four")[1], np.arange(12.0, 24.0))


def test_words_without_a_token_have_no_place(ablation):
    first_tokens = ablation.tagger.first_tokens
    # [CLS] a b b [] c [SEP]
    assert first_tokens(np.array([1, 2, 0, 1]), 6).tolist() == [1, 2, 0, 4]
    # The same truncated to [CLS] a b b [SEP]
    assert first_tokens(np.array([1, 2, 0, 1]), 5).tolist() == [1, 2, 0, 0]


@pytest.mark.slow
def test_tagger_learns_from_features(ablation):
    tagger, random = ablation.tagger, np.random.default_rng(0)
    data = []
    for length in random.integers(1, 30, 64):
        tags = random.integers(0, 2, length)
        features = np.stack([tags, 1 - tags] * 8, axis=1).astype(np.float32)
        data.append(tagger.Tagged(features, [("O", "B-x")[tag] for tag in tags]))
    model = tagger.train(data, ["O", "B-x"], epochs=100, units=16, seed=0)
    predicted = tagger.predict(model, data, ["O", "B-x"])
    hits = [
        a == b
        for each, tags in zip(data, predicted, strict=True)
        for a, b in zip(each.tags, tags, strict=True)
    ]
    assert np.mean(hits) > 0.95


CONFIG = {
    "vocab_size": 120,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}


def write_data(folder):
    """Writes three books of some KB, and a corpus for MRPC and WNUT-17."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "en", "i", "or", "u")]
    # Enough different words for the vocabulary.
    words = ["".join(random.choice(syllables, 3)) for _ in range(400)]

    def sentence():
        return " ".join(random.choice(words, random.integers(4, 12))).capitalize() + "."

    books = folder / "corpus" / "gutenberg-85"
    books.mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        paragraphs = [" ".join(sentence() for _ in range(6)) for _ in range(20)]
        with lzma.open(books / f"{name}.txt.xz", "wt") as file:
            file.write("\n\n".join(paragraphs))
    mrpc = folder / "glue" / "MRPC"
    mrpc.mkdir(parents=True)
    for split in ("train", "dev"):
        rows = [f"{n % 2}\t1\t2\t{sentence()}\t{sentence()}\n" for n in range(40)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (mrpc / f"{split}.tsv").write_text(header + "".join(rows))
    wnut = folder / "ner" / "wnut17"
    wnut.mkdir(parents=True)
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        lines = [
            "".join(f"{word}\t{'B-x' if word[0] == 'b' else 'O'}\n" for word in sentence().split())
            for _ in range(20)
        ]
        (wnut / name).write_text("\n".join(lines))


def write_inputs(folder):
    """Writes the data of a study and a model config, and returns the path of the config."""
    write_data(folder / "data")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    return str(config)


def miniature_plan(ablation, folder, *arms, steps):
    """Returns a plan of arms of the model of CONFIG."""
    return ablation.plan.Plan(
        arms=arms,
        seeds=(0,),
        recipe=write_recipe(folder, steps),
        passes=1,
        vocab_size=CONFIG["vocab_size"],
        pretraining_rates={arms[0].size: 1e-3},
        fine_tuning_rates={arms[0].size: 1e-3},
        held_out=("three.txt.xz", "four.txt.xz"),
    )


@pytest.mark.slow
def test_whole_study_in_miniature(ablation, tmp_path, monkeypatch):
    """Runs all programs of the study: one task, one seed, a checkpoint and features."""
    monkeypatch.setattr(ablation.programs, "NICENESS", 0)  # Other tests use the CPU.
    size = write_inputs(tmp_path)
    arm = ablation.plan.Arm(
        "miniature",
        size,
        "mlm",
        tasks=("MRPC",),
        points=(50,),
        point_tasks=("MRPC",),
        features=("concat_last_four",),
    )
    plan = miniature_plan(ablation, tmp_path, arm, steps=5)
    results = ablation.results.Results(tmp_path / "results", plan)
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    ablation.study.run_study(plan, ablation.study.Selection(), results, folders)
    units = list(ablation.units.units_of(arm, plan))
    assert [unit.key for unit in units] == [
        "pretraining",
        "MRPC/seed-0",
        "WNUT-17 features concat_last_four/seed-0",
        "50%/MRPC/seed-0",
    ]
    assert results.missing(units) == []
    curve = results.get(units[0]).figures["curve"]
    assert [row["step"] for row in curve] == [*range(1, 11)]
    assert [row["length"] for row in curve] == [16] * 5 + [32] * 5
    assert 0 <= results.get(units[1]).figures["last"]["accuracy"] <= 1
    assert 0 <= results.get(units[2]).figures["test"]["f1"] <= 1
    assert not list((tmp_path / "work" / "fine_tuning" / "miniature").iterdir())
    text = ablation.report.report(results, plan)
    assert "| miniature | " in text
    assert all(path.stat().st_size for path in ablation.plots.draw_all(results, plan, tmp_path))

    # The results are kept and the disk is lost: only a missing unit and its model are computed.
    recorded = json.loads((tmp_path / "results" / "miniature.json").read_text())
    entry = recorded["units"].pop("MRPC/seed-0")
    (tmp_path / "results" / "miniature.json").write_text(json.dumps(recorded))
    lost = dataclasses.replace(folders, work=tmp_path / "new_work")
    results = ablation.results.Results(tmp_path / "results", plan)
    ablation.study.run_study(plan, ablation.study.Selection(), results, lost)
    again = json.loads((tmp_path / "results" / "miniature.json").read_text())["units"]
    assert again["MRPC/seed-0"]["figures"] == entry["figures"]
    assert again["pretraining"] == recorded["units"]["pretraining"]


@pytest.mark.slow
def test_torch_learns_the_same(ablation, tmp_path, monkeypatch, peers_python):
    """Both start from the same weights, and train on the same batches with the same schedule."""
    import ablation_torch

    monkeypatch.setattr(ablation.programs, "NICENESS", 0)
    size = write_inputs(tmp_path)
    arm = ablation.plan.Arm("miniature-mlm_nsp", size, "mlm_nsp")
    start = ablation.plan.Arm("miniature-none", size, None)
    plan = miniature_plan(ablation, tmp_path, arm, start, steps=20)
    results = ablation.results.Results(tmp_path / "results", plan)
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    ours, theirs = ablation_torch.compare(arm, start, results, folders, peers_python)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [*range(4, 41, 4)]
    for name in ("masked_lm_loss", "next_sentence_loss"):
        own = np.array([row[f"eval_{name}"] for row in ours])
        np.testing.assert_allclose(own, [row[name] for row in theirs], atol=0.02)
        assert own[4] < own[0] - 0.05 or name == "next_sentence_loss"
    assert len([*ablation_torch.report(ours, theirs)]) == 12
    assert abs(ablation_torch.last_difference(ours, theirs)) < ablation_torch.TOLERANCE
