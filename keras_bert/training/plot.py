"""Draws the learning curves of runs as an image and an HTML page.

python -m keras_bert.training.plot out/base out/large --output=curves.png
"""

if __name__ == "__main__":  # Before the imports, so that Ctrl-C ends them with one line.
    import sys

    from keras_bert.programs.start import start

    sys.argv[0] = "keras_bert.training.plot"
    start("keras_bert.programs.plot")

import base64
import html
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_bert.training.curves import THROUGHPUT, RunCurves, selected_metrics
from keras_bert.training.metrics import EVALUATION

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
_COLUMNS = 3
_TRAINING = {"linewidth": 1.1}
_EVALUATION = {"linewidth": 1.6, "marker": "o", "markersize": 3.2}
_BASELINE = {"linewidth": 1.0, "linestyle": ":"}
_PHASE = {"linewidth": 0.8, "linestyle": "--"}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
  color: #222; background: #fff; }}
h1 {{ font-size: 1.3rem; }}
img {{ width: 100%; height: auto; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .9rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child {{ text-align: left; font-weight: normal; }}
thead th {{ font-weight: 600; }}
caption {{ text-align: left; color: #666; padding: .6rem 0; caption-side: bottom; }}
</style>
<h1>{title}</h1>
<img src="data:image/png;base64,{picture}" alt="{alt}">
<div><table>
<caption>Metrics of the last logged step. eval_: metrics of the last evaluation, or the results of a
finished run. tokens_per_second: the median over the run.</caption>
<thead><tr><th></th>{header}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
</html>
"""


def png(width: float, height: float, add_panels: Callable[[Any], None]) -> bytes:
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


def draw(runs: Sequence[RunCurves]) -> bytes:
    """Draws the learning curves with one panel per metric, and returns them as PNG.

    Thin lines are training metrics, lines with dots are evaluations, and dotted lines are the
    unigram baselines of finished runs. Bands and bars are the standard deviations of averages, and
    dashed vertical lines the beginnings of phases. At least one run must have metrics.
    """
    names = selected_metrics(runs)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    colors = _colors(len(runs))
    longest = max(run.last_step for run in runs)

    def add_panels(figure: Any) -> None:
        for place, name in enumerate(names):
            axes = figure.add_subplot(rows, columns, place + 1)
            for run, color in zip(runs, colors, strict=True):
                _draw_curves(axes, run, name, color)
            axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
            axes.set_xlabel("step")
            axes.set_xlim(0, 1.02 * longest)
            if name == THROUGHPUT:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(_thousands)
            axes.yaxis.set_major_formatter(_thousands)
        _draw_legends(figure, runs, colors)

    return png(4.4 * columns, 3.0 * rows + 0.8, add_panels)


def make_page(runs: Sequence[RunCurves], picture: bytes) -> str:
    """Returns a self-contained HTML page with a PNG and a table of metrics, one column per run."""
    metrics = [one.final_metrics() for one in runs]
    panels = [name for panel in selected_metrics(runs) for name in (panel, EVALUATION + panel)]
    rest = [name for one in metrics for name in one]
    names = [name for name in dict.fromkeys([*panels, *rest]) if name in rest]
    table = {"step": [f"{one.last_step:,}" for one in runs]}
    table["state"] = ["finished" if one.results else "not finished" for one in runs]
    table |= {name: [_shown(one.get(name)) for one in metrics] for name in names}
    rows = [
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        for name, values in table.items()
    ]
    return _PAGE.format(
        title=html.escape("Learning curves of " + ", ".join(run.name for run in runs)),
        picture=base64.b64encode(picture).decode(),
        alt=html.escape(", ".join(selected_metrics(runs)) + " over the steps"),
        header="".join(f"<th>{html.escape(run.name)}</th>" for run in runs),
        rows="\n".join(rows),
    )


def _colors(count: int) -> list[Any]:
    import matplotlib

    if count <= 10:
        return [matplotlib.colormaps["tab10"](place) for place in range(count)]
    return [matplotlib.colormaps["turbo"](0.05 + 0.9 * p / (count - 1)) for p in range(count)]


def _draw_curves(axes: Any, run: RunCurves, name: str, color: Any) -> None:
    """Draws one metric of one run; the training curve is fainter next to an evaluation curve."""
    evaluated = name in run.evaluation
    if name in run.training:
        steps, values = _interrupted(run, *run.training[name])
        look = {**_TRAINING, "color": color, "alpha": 0.5 if evaluated else 0.9}
        axes.plot(steps, values, **look, marker=".", markevery=_isolated(values))
        if run.deviations:
            _, spread = _interrupted(run, run.training[name][0], run.deviations["training"][name])
            axes.fill_between(steps, values - spread, values + spread, color=color, alpha=0.15)
    if evaluated:
        steps, values = run.evaluation[name]
        axes.plot(*_interrupted(run, steps, values), **_EVALUATION, color=color)
        if run.deviations:
            spread = run.deviations["evaluation"][name]
            axes.errorbar(steps, values, spread, fmt="none", capsize=2.5, ecolor=color)
    for start in run.phases:
        axes.axvline(start, **_PHASE, color=color)
    if name in run.baselines:
        axes.axhline(run.baselines[name], **_BASELINE, color=color)


def _interrupted(run: RunCurves, steps: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """Interrupts a curve where a phase begins, since its examples may have another length."""
    places = np.searchsorted(steps, run.phases, side="right")
    return [np.insert(some, places, np.nan) for some in (steps, values)]


def _isolated(values: np.ndarray) -> list[int]:
    """Returns the indices of points without a neighbor, which are invisible as a line."""
    is_known = np.pad(~np.isnan(values), 1)
    return np.flatnonzero(is_known[1:-1] & ~is_known[:-2] & ~is_known[2:]).tolist()


def _draw_legends(figure: Any, runs: Sequence[RunCurves], colors: Sequence[Any]) -> None:
    """Draws two legends: the colors of the runs at the top, and the line styles at the bottom."""
    from matplotlib.lines import Line2D

    names = [
        Line2D([], [], color=color, linewidth=3, label=run.name)
        for run, color in zip(runs, colors, strict=True)
    ]
    kinds = {"training": _TRAINING, "evaluation": _EVALUATION}
    if any(run.baselines for run in runs):
        kinds["unigram baseline"] = _BASELINE
    if any(run.phases for run in runs):
        kinds["new phase"] = _PHASE
    lines = [Line2D([], [], **look, color="#555555", label=kind) for kind, look in kinds.items()]
    # The width of a legend entry in inches: the line sample, and about 0.075 per letter.
    wide = 0.7 + 0.075 * max(len(run.name) for run in runs)
    columns = max(1, min(len(runs), int(figure.get_figwidth() / wide)))
    figure.legend(handles=names, loc="outside upper left", ncols=columns, frameon=False)
    figure.legend(handles=lines, loc="outside lower left", ncols=len(lines), frameon=False)


def _thousands(value: float, _: int) -> str:
    """Formats an axis label: 20k for 20,000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
