"""Draws the plots of the study as PNG files.

ablation_steps.png     fine-tuned score over pre-training steps, with the spread over seeds, and
                       the score without pre-training
ablation_arms.png      the scores of all arms, one panel per task
ablation_held_out.png  the held-out accuracy over the steps
"""

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ablation import reference
from ablation.claims import Variant, scores_of
from ablation.plan import TASKS, Arm, Plan
from ablation.results import Results
from ablation.units import Unit
from keras_bert.files import write_bytes

_COLUMNS = 4  # Panels of tasks in a row.
_DOTS_PER_INCH = 150
_LOOK = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def draw_all(results: Results, study: Plan, folder: Path) -> list[Path]:
    """Writes the plots to a folder, and returns their paths."""
    plots: dict[str, tuple[float, Callable[..., None]]] = {
        "ablation_steps.png": (4.0, _draw_steps),
        "ablation_arms.png": (4.6, _draw_arms),
        "ablation_held_out.png": (4.0, _draw_held_out),
    }
    for name, (height, draw) in plots.items():
        write_bytes(folder / name, _png(10, height, partial(draw, results=results, study=study)))
    return [folder / name for name in plots]


def _png(width: float, height: float, add_panels: Callable[[Any], None]) -> bytes:
    """Returns a figure of a size in inches as PNG; `add_panels` draws into it."""
    import matplotlib  # Imported late, since it is an optional dependency.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        add_panels(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    return file.getvalue()


def _color(arm: Arm, study: Plan) -> str:
    """Returns the color of an arm, which is the same in all plots."""
    return f"C{study.arms.index(arm)}"


def _draw_steps(figure: Any, results: Results, study: Plan) -> None:
    arms = [arm for arm in study.arms if arm.points]
    tasks = list(dict.fromkeys(task for arm in arms for task in arm.point_tasks))
    for place, task in enumerate(tasks):
        axes = figure.add_subplot(1, len(tasks), place + 1)
        for arm in (arm for arm in arms if task in arm.point_tasks):
            points = [
                (study.steps_of(arm) * percent // 100, scores)
                for percent in (*sorted(arm.points), 100)
                if (scores := scores_of(Variant(arm.name, percent), task, results, study))
            ]
            if points:
                steps, scores = zip(*points, strict=True)
                axes.errorbar(
                    steps,
                    [mean(some) for some in scores],
                    [_spread(some) for some in scores],
                    label=arm.name,
                    color=_color(arm, study),
                    marker="o",
                    markersize=3.5,
                    capsize=3,
                )
        floors = [arm for arm in study.arms if arm.objective is None and arm.size == arms[0].size]
        for arm in floors:
            if scores := scores_of(Variant(arm.name), task, results, study):
                axes.axhline(mean(scores), color="#888888", linestyle="--", label=arm.name)
        axes.set_title(f"{task}, {TASKS[task].metrics[0]}", loc="left", fontweight="bold")
        axes.set_xlabel("pre-training steps")
        axes.set_xlim(left=0)
    _legend(figure)


def _draw_arms(figure: Any, results: Results, study: Plan) -> None:
    """Draws a panel per task with a row per arm: the seeds, their mean and standard deviation."""
    found = {
        arm: {task: scores_of(Variant(arm.name), task, results, study) for task in TASKS}
        for arm in study.arms
    }
    arms = [arm for arm, scores in found.items() if any(scores.values())]
    for place, (task, definition) in enumerate(TASKS.items()):
        axes = figure.add_subplot(math.ceil(len(TASKS) / _COLUMNS), _COLUMNS, place + 1)
        for row, arm in enumerate(arms):
            if scores := found[arm][task]:
                color = _color(arm, study)
                axes.plot(scores, [row] * len(scores), ".", color=color, alpha=0.4)
                look = {"fmt": "o", "markersize": 4.5, "capsize": 3, "color": color}
                axes.errorbar(mean(scores), row, xerr=_spread(scores), **look)
        constant = reference.CONSTANT.get((task, definition.metrics[0]))
        if constant is not None:
            axes.axvline(constant, color="#888888", linestyle=":", label="most frequent answer")
        axes.set_title(f"{task}, {definition.metrics[0]}", loc="left", fontsize=9)
        axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
        axes.tick_params("y", labelleft=place % _COLUMNS == 0, length=0)
        axes.set_ylim(len(arms) - 0.5, -0.5)
    _legend(figure)


def _draw_held_out(figure: Any, results: Results, study: Plan) -> None:
    panels = {
        "masked_lm_accuracy": "masked-LM accuracy",
        "next_token_accuracy": "next-token accuracy",
        "next_sentence_accuracy": "next-sentence accuracy",
    }
    curves = {
        arm: result.figures["curve"]
        for arm in study.arms
        if arm.objective and (result := results.get(Unit(arm)))
    }
    shown = {f"eval_{metric}" for metric in panels}
    shown &= {name for rows in curves.values() for row in rows for name in row}
    panels = {metric: title for metric, title in panels.items() if f"eval_{metric}" in shown}
    for place, (metric, title) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for arm, rows in curves.items():
            _draw_curve(axes, rows, f"eval_{metric}", arm.name, _color(arm, study))
        axes.set_title(f"{title}, %", loc="left", fontweight="bold")
        axes.set_xlabel("pre-training steps")
    _legend(figure)


def _draw_curve(axes: Any, rows: Sequence[dict], metric: str, name: str, color: str) -> None:
    """Draws a curve, dotted until the sequences get their final length, and interrupted there."""
    points = [(row["step"], 100 * row[metric], row["length"]) for row in rows if metric in row]
    for length in dict.fromkeys(length for *_, length in points):
        line = [(step, value) for step, value, own in points if own == length]
        is_last = length == points[-1][2]
        look = {"linestyle": "-", "label": name} if is_last else {"linestyle": ":"}
        axes.plot(*zip(*line, strict=True), color=color, marker="o", markersize=3, **look)


def _spread(scores: Sequence[float]) -> float:
    return stdev(scores) if len(scores) > 1 else 0.0


def _legend(figure: Any) -> None:
    """Draws one legend for all panels, with each name once."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower left", ncols=5, frameon=False
        )
