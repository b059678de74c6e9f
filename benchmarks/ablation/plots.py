"""Draws the plots of the study as PNG files.

ablation_steps.png     fine-tuned score over pre-training steps, with the spread over seeds, and
                       the score without pre-training
ablation_arms.png      the scores of all arms, task by task
ablation_held_out.png  the held-out accuracy over the steps
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ablation.claims import Variant, scores_of
from ablation.plan import TASKS, Plan
from ablation.results import Results
from ablation.units import Unit
from keras_bert.common.files import write_bytes

_LOOK = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
_DOTS_PER_INCH = 150


def draw_all(results: Results, study: Plan, folder: Path) -> list[Path]:
    """Writes the plots that have data to a folder, and returns their paths."""
    plots: dict[str, Callable[[Any, Results, Plan], None]] = {
        "ablation_steps.png": _draw_steps,
        "ablation_arms.png": _draw_arms,
        "ablation_held_out.png": _draw_held_out,
    }
    return [_write(folder / name, draw, results, study) for name, draw in plots.items()]


def _write(path: Path, draw: Callable, results: Results, study: Plan) -> Path:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(10, 4), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, results, study)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    write_bytes(path, file.getvalue())
    return path


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
    axes = figure.add_subplot(1, 1, 1)
    bars = {
        arm.name: [scores_of(Variant(arm.name), task, results, study) for task in TASKS]
        for arm in study.arms
    }
    bars = {name: scores for name, scores in bars.items() if any(scores)}
    width = 0.8 / max(1, len(bars))
    for place, (name, scores) in enumerate(bars.items()):
        shift = (place - (len(bars) - 1) / 2) * width
        drawn = [(task + shift, some) for task, some in enumerate(scores) if some]
        axes.bar(
            [at for at, _ in drawn],
            [mean(some) for _, some in drawn],
            width,
            yerr=[_spread(some) for _, some in drawn],
            error_kw={"elinewidth": 0.8},
            label=name,
        )
    names = [f"{task}\n{definition.metrics[0]}" for task, definition in TASKS.items()]
    axes.set_xticks(range(len(TASKS)), names)
    axes.set_ylabel("development score")
    _legend(figure)


def _draw_held_out(figure: Any, results: Results, study: Plan) -> None:
    panels = {
        "masked_lm_accuracy": "masked-LM accuracy",
        "next_token_accuracy": "next-token accuracy",
        "next_sentence_accuracy": "next-sentence accuracy",
    }
    curves = {
        arm.name: result.figures["curve"]
        for arm in study.arms
        if arm.objective and (result := results.get(Unit(arm)))
    }
    colors = {name: f"C{place}" for place, name in enumerate(curves)}
    shown = {f"eval_{metric}" for metric in panels}
    shown &= {name for rows in curves.values() for row in rows for name in row}
    panels = {metric: title for metric, title in panels.items() if f"eval_{metric}" in shown}
    for place, (metric, title) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for name, rows in curves.items():
            _draw_curve(axes, rows, f"eval_{metric}", name, colors[name])
        axes.set_title(f"{title}, %", loc="left", fontweight="bold")
        axes.set_xlabel("pre-training steps")
    _legend(figure)


def _draw_curve(axes: Any, rows: Sequence[dict], metric: str, name: str, color: str) -> None:
    """Draws a curve; it is interrupted where the length of the sequences changes."""
    points = [(row["step"], 100 * row[metric], row["length"]) for row in rows if metric in row]
    for length in dict.fromkeys(length for *_, length in points):
        line = [(step, value) for step, value, own in points if own == length]
        axes.plot(*zip(*line, strict=True), label=name, color=color, marker="o", markersize=3)


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
