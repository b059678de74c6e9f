"""The report of benchmarks/ablation.py, and the rule of its verdicts."""

import dataclasses

import numpy as np
import pytest

from tests.benchmarks.ablation.conftest import Computed, run


def test_single_seed_is_not_judged(ablation, plan, tmp_path):
    arms = [
        dataclasses.replace(arm, name=name)
        for arm, name in zip(plan.arms, ("mini-mlm_nsp", "mini-none"), strict=False)
    ]
    for seeds, count in (((0,), 0), ((0, 1), 1)):
        some = dataclasses.replace(plan, arms=arms, seeds=seeds)
        results = run(ablation, some, tmp_path, Computed(ablation))
        judged = [claim.text for claim, *_ in ablation.claims.judge(results, some)]
        assert judged.count("Pre-training with mlm_nsp helps mini") == count


def test_report_and_plots_of_partial_results(ablation, plan, tmp_path):
    empty = ablation.results.Results(tmp_path / "nothing", plan)
    assert "| claim | task |" in ablation.report.report(empty, plan)
    results = run(ablation, plan, tmp_path, Computed(ablation))
    text = ablation.report.report(results, plan)
    assert "| a | 55.0 ± 7.1 | – | 55.0 ± 7.1 | 55.0 ± 7.1 | – |" in text
    assert "| 500 (50 %) | 55.0 ± 7.1 |" in text
    assert "| last | 55.0 ± 7.1 | 30.0 ± 0.0 | 94.9 |" in text
    assert (
        "| the most frequent answer | 0.0 | 50.9 | 68.4 | 81.2 | – | – | 52.7 | 0.0 | – | – |"
        in text
    )
    assert "| published: Google's mini, test | 0.0 | 85.9 | 71.8 | – | 73.3 |" in text
    for path in ablation.plots.draw_all(results, plan, tmp_path / "plots"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_test_scores_are_beside_development_scores(ablation, plan, tmp_path):
    arm = dataclasses.replace(plan.arms[0], tasks=("WNUT-17",), point_tasks=("WNUT-17",))
    some = dataclasses.replace(plan, arms=(arm,))
    text = ablation.report.report(run(ablation, some, tmp_path, Computed(ablation)), some)
    assert f"| a | {'– | ' * 7}55.0 ± 7.1 | 30.0 ± 0.0 | – | – |" in text
    assert "| 500 (50 %) | 55.0 ± 7.1 | 30.0 ± 0.0 |" in text


def test_curve_is_dotted_until_sequences_have_their_final_length(ablation):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    rows = [{"step": step, "loss": 1.0, "length": 32 if step < 3 else 128} for step in range(1, 5)]
    ablation.plots._draw_curve(axes, rows, "loss", "a", "C0")
    found = [(line.get_linestyle(), [*line.get_xdata()]) for line in axes.lines]
    assert found == [(":", [1, 2]), ("-", [3, 4])]
    assert axes.get_legend_handles_labels()[1] == ["a"]


def test_further_seeds_are_reported(ablation, plan, tmp_path):
    for seeds in (plan.seeds, (7,)):
        some = dataclasses.replace(plan, seeds=seeds)
        run(ablation, some, tmp_path, Computed(ablation), arms=["a"], tasks=["MRPC"])
    results = ablation.results.Results(tmp_path / "results", plan)
    variant = ablation.claims.Variant("a")
    scores = ablation.claims.scores_of(variant, "MRPC", results, plan)
    assert scores == pytest.approx([50, 60, 120])  # Of the seeds 0, 1 and 7.
    assert "| 76.7 ± 37.9 (3) |" in ablation.report.report(results, plan)


def test_recorded_report_is_that_of_the_recorded_results(ablation, root):
    """The page on what models learn includes the recorded report."""
    plan = ablation.plan.PLAN
    results = ablation.results.Results(root / "benchmarks/ablation_results", plan)
    recorded = (results.folder / "report.md").read_text(encoding="utf-8")
    assert ablation.report.report(results, plan) == recorded


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
