"""Plots the learning curves of one or more runs, and prints their results.

    keras-bert plot out

    keras-bert plot out/base out/large --output_file=curves.png

The arguments are folders of runs, finished or not. There is a panel for each loss, each score and
the throughput. Thin lines are the training, lines with dots evaluations, and dotted lines the
unigram baselines of finished runs. Runs whose folder names differ only in the number after "seed",
such as out/mlm-seed-0 and out/mlm-seed-1, are drawn as their mean with the sample standard
deviation, at the steps that all of them have.
"""

import importlib.util
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_bytes
from keras_bert.options import option
from keras_bert.programs.program import Program
from keras_bert.training.log import EVALUATION, METRICS, read_metrics

_SEED = re.compile(r"[-_./]*(?<![a-z])seed[-_]?\d+", re.IGNORECASE)
# Suffixes of the names of plotted metrics, in the order of the panels.
_PLOTTED = ("loss", "accuracy", "exact", "f1", "f1_macro", "f1_micro", "precision", "recall")
_PLOTTED += ("matthews_corrcoef", "pearson", "spearman", "tokens_per_second")
_BASELINE = "unigram_"
_COLUMNS = 3


class Run(NamedTuple):
    """The metrics of a run, {metric: {step: value}}, and the numbers in its results.json, if any.

    The names of the metrics of evaluations start with EVALUATION.
    """

    metrics: dict[str, dict[int, float]]
    results: dict[str, float]


@dataclass(frozen=True)
class PlotOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "output"
    output_file: str = option("curves.png", "PNG file to write.")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Plots the metrics of the given run folders, and prints the results of each."""
    output = Path(flags.output_file)
    if not arguments:
        raise InputError(
            "expected the folders of one or more runs; the shortest command is: " + PROGRAM.example
        )
    if output.suffix != ".png":
        raise InputError(f"--output_file={output}: expected a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "matplotlib is not installed; plots need it: pip install 'keras-bert-pipeline[plot]'"
        )
    folders: dict[str, list[str]] = {}
    for folder in dict.fromkeys(arguments):
        folders.setdefault(_SEED.sub("-seeds", folder), []).append(folder)
    groups = {
        name if len(names) > 1 else names[0]: [read_run(Path(folder)) for folder in names]
        for name, names in folders.items()
    }
    if not any(run.metrics for runs in groups.values() for run in runs):
        names = ", ".join(arguments)
        raise InputError(f"{names}: no metrics yet; expected a run that logged a step")
    write_bytes(output, draw(groups))
    for name, runs in groups.items():
        print(name + f" (mean ± standard deviation of {len(runs)} runs)" * (len(runs) > 1))
        for metric in runs[0].results:
            values = [run.results[metric] for run in runs if metric in run.results]
            spread = f" ± {np.std(values, ddof=1):.3g}" if len(values) > 1 else ""
            print(f"  {metric} = {np.mean(values):.6g}{spread}")


def read_run(folder: Path) -> Run:
    """Reads a run up to its last complete line. The phases of a recipe are one curve."""
    if not (folder / METRICS).is_file() and not (folder / "run.json").is_file():
        raise InputError(f"{folder}: has no {METRICS}; expected the folder of a run")
    metrics: dict[str, dict[int, float]] = {}
    first = 0
    # Phases are numbered; `phase-10` follows `phase-9`.
    phases = sorted(folder.glob("phase-*"), key=lambda phase: (len(phase.name), phase.name))
    for phase in phases or [folder]:
        try:
            rows = read_metrics(phase)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{phase / METRICS}: cannot be read: {error}") from error
        for row in rows:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    metrics.setdefault(name, {})[first + row["step"]] = value
        first += rows[-1]["step"] if rows else 0
    path = folder / "results.json"
    results = read_json(path) if path.is_file() else {}
    return Run(metrics, {n: v for n, v in results.items() if isinstance(v, int | float)})


def draw(groups: dict[str, list[Run]]) -> bytes:
    """Draws the mean curves of each group of runs, a panel per metric, and returns the PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # An optional dependency.
    from matplotlib.figure import Figure

    logged = [name.removeprefix(EVALUATION) for g in groups.values() for r in g for name in r[0]]
    logged = sorted(set(logged), key=lambda name: (len(name), name))  # "loss" before its parts.
    names = [n for suffix in _PLOTTED for n in logged if f"_{n}".endswith(f"_{suffix}")]
    rows, columns = math.ceil(len(names) / _COLUMNS) or 1, min(len(names), _COLUMNS) or 1
    figure = Figure((4.4 * columns, 3.0 * rows + 0.3 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    lines = {}
    for place, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, place + 1, title=name, xlabel="step")
        axes.grid(alpha=0.3)
        for number, (group, runs) in enumerate(groups.items()):
            color = f"C{number}"
            for metric, look in ((name, {"linewidth": 1}), (EVALUATION + name, {"marker": "."})):
                curves = [run.metrics[metric] for run in runs if metric in run.metrics]
                steps = reduce(np.intersect1d, map(list, curves)) if curves else []
                if not len(steps):
                    continue
                values = np.array([[curve[step] for step in steps] for curve in curves], float)
                mean = values.mean(axis=0)
                (lines[group],) = axes.plot(steps, mean, color=color, **look)
                if len(curves) > 1:
                    std = values.std(axis=0, ddof=1)
                    axes.fill_between(steps, mean - std, mean + std, color=color, alpha=0.2)
            if baselines := [r.results[_BASELINE + name] for r in runs if _BASELINE + name in r[1]]:
                axes.axhline(np.mean(baselines), color=color, linestyle=":")
    figure.legend(lines.values(), lines.keys(), loc="outside upper left", frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


PROGRAM = Program("plot", __doc__, (PlotOptions,), main)
