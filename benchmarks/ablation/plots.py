"""Draws the plots of the study as PNG files.

ablation_steps.png  fine-tuned score over pre-training steps, with the spread over seeds, and the
                    score without pre-training
ablation_arms.png   the scores of all arms, one panel per task
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ablation.plan import TASKS
from ablation.report import CONSTANT, Model, scores_of
from ablation.run import Results

_COLUMNS = 4  # Panels of tasks in a row.
_LOOK = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Writes the plots to a folder, and returns their paths."""
    import matplotlib  # Imported late, since it is an optional dependency.
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, height, draw in (("steps", 4.0, _draw_steps), ("arms", 4.6, _draw_arms)):
        with matplotlib.rc_context(_LOOK):
            figure = Figure(figsize=(10, height), layout="constrained")
            draw(figure, results)
            _add_legend(figure)
            paths.append(folder / f"ablation_{name}.png")
            figure.savefig(paths[-1], dpi=150)
    return paths


def _draw_steps(figure: Any, results: Results) -> None:
    plan = results.plan
    arms = {arm: f"C{index}" for index, arm in enumerate(plan.arms) if arm.points}
    tasks = list(dict.fromkeys(arm.point_task for arm in arms))
    for index, task in enumerate(tasks, 1):
        axes = figure.add_subplot(1, len(tasks), index)
        for arm, color in arms.items():
            points = [
                (plan.steps_of(arm) * percent // 100, scores)
                for percent in (*sorted(arm.points), 100)
                if (scores := scores_of(Model(arm.name, percent), task, results))
            ]
            if points:
                steps, scores = zip(*points, strict=True)
                means, spreads = map(mean, scores), map(_spread, scores)
                look = {"marker": "o", "markersize": 3.5, "capsize": 3}
                axes.errorbar(steps, [*means], [*spreads], label=arm.name, color=color, **look)
        for arm in plan.arms:
            scores = scores_of(Model(arm.name), task, results)
            if arm.objective is None and arm.size == next(iter(arms)).size and scores:
                axes.axhline(mean(scores), color="#888888", linestyle="--", label=arm.name)
        axes.set_title(f"{task}, {TASKS[task].metrics[0]}", loc="left", fontweight="bold")
        axes.set_xlabel("pre-training steps")
        axes.set_xlim(left=0)


def _draw_arms(figure: Any, results: Results) -> None:
    """Draws a panel per task with a row per arm: the seeds, their mean and standard deviation."""
    scores = {
        arm: {task: scores_of(Model(arm.name), task, results) for task in TASKS}
        for arm in results.plan.arms
    }
    arms = [arm for arm, by_task in scores.items() if any(by_task.values())]
    for index, (task, definition) in enumerate(TASKS.items()):
        axes = figure.add_subplot(math.ceil(len(TASKS) / _COLUMNS), _COLUMNS, index + 1)
        for row, arm in enumerate(arms):
            if values := scores[arm][task]:
                color = f"C{results.plan.arms.index(arm)}"
                axes.plot(values, [row] * len(values), ".", color=color, alpha=0.4)
                look = {"fmt": "o", "markersize": 4.5, "capsize": 3, "color": color}
                axes.errorbar(mean(values), row, xerr=_spread(values), **look)
        constant = CONSTANT.get((task, definition.metrics[0]))
        if constant is not None:
            axes.axvline(constant, color="#888888", linestyle=":", label="most frequent answer")
        axes.set_title(f"{task}, {definition.metrics[0]}", loc="left", fontsize=9)
        axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
        axes.tick_params("y", labelleft=index % _COLUMNS == 0, length=0)
        axes.set_ylim(len(arms) - 0.5, -0.5)


def _spread(scores: Sequence[float]) -> float:
    return stdev(scores) if len(scores) > 1 else 0.0


def _add_legend(figure: Any) -> None:
    """Draws one legend for all panels, with each name once."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        look = {"loc": "outside lower left", "ncols": 5, "frameon": False}
        figure.legend(handles.values(), handles.keys(), **look)
