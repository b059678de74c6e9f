"""Reads the learning curves and final results of runs from their directories.

An unfinished run is read up to its last complete line. The phases of a recipe are one curve. This
module does not import TensorFlow.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json
from keras_bert.training.metrics import EVALUATION, METRICS, read_metrics

THROUGHPUT = "tokens_per_second"
# Suffixes of the score names of all tasks. Of the other metrics, only losses and the throughput are
# plotted.
_SCORES = ("accuracy", "exact", "f1", "f1_macro", "f1_micro", "precision", "recall")
_SCORES += ("matthews_corrcoef", "pearson", "spearman")
_BASELINE = "unigram_"

Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class RunCurves:
    """The metrics of one run by step, and its results.

    Attributes:
        name: the last part of the path of the run directory, with parents if that is not unique.
        path: the run directory.
        training: {metric: (steps [n], values [n])} of the training steps.
        evaluation: {metric: (steps [n], values [n])} of the evaluations.
        results: {metric: value} of the finished run; empty while it is unfinished.
        phases: the steps at which the later phases of a recipe begin.
        count: the number of runs that this is the average of.
        deviations: {"training" or "evaluation": {metric: standard deviations [n]}} of an average
            over several runs; empty for a single run.
    """

    name: str
    path: Path
    training: Mapping[str, Curve]
    evaluation: Mapping[str, Curve]
    results: Mapping[str, float]
    phases: tuple[int, ...] = ()
    count: int = 1
    deviations: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last logged step; 0 if there is none."""
        curves = [*self.training.values(), *self.evaluation.values()]
        return max((int(steps[-1]) for steps, _ in curves), default=0)

    @property
    def baselines(self) -> dict[str, float]:
        """{metric: value} of the unigram baseline in `results`; empty if there is none.

        The baseline knows only the frequencies of tokens. If the run's loss has only one part,
        "loss" is included with the value of that part.
        """
        known = {
            n.removeprefix(_BASELINE): v for n, v in self.results.items() if n.startswith(_BASELINE)
        }
        parts = [name for name in self.training if name.endswith("_loss")]
        if len(parts) == 1 and parts[0] in known:
            known["loss"] = known[parts[0]]
        return known

    def final_metrics(self) -> dict[str, float]:
        """Returns {metric: value} to compare the run with others, evaluations last.

        The values are those of the last logged step and of the last evaluation, except for the
        throughput, which is the median over the run, since it varies. If the run is finished, the
        values in results.json replace those of the last evaluation, because the best weights may be
        from an earlier step.
        """
        metrics = {
            n: float(values[-1]) for n, (_, values) in self.training.items() if _is_plotted(n)
        }
        if THROUGHPUT in metrics:
            metrics[THROUGHPUT] = float(np.median(self.training[THROUGHPUT][1]))
        evaluated = {name: float(values[-1]) for name, (_, values) in self.evaluation.items()}
        metrics |= {EVALUATION + name: value for name, value in evaluated.items()}
        logged = self.training.keys() | evaluated.keys()
        results = {n: v for n, v in self.results.items() if n != "step"}
        return metrics | {EVALUATION * (n in logged) + n: v for n, v in results.items()}


def read_runs(folders: Sequence[str]) -> list[RunCurves]:
    """Reads the curves of run directories, in the given order and without duplicates.

    Raises:
        InputError: a directory contains no run or cannot be read, or no run has metrics yet.
    """
    paths = list(dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders))
    runs = [_read(path, name) for path, name in zip(paths, unique_names(paths), strict=True)]
    if not any(run.last_step for run in runs):
        raise InputError(f"{', '.join(folders)}: no metrics yet; expected a run that logged a step")
    return runs


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Returns a name for each absolute path: its last part, with parents if not unique."""
    depths = [1] * len(paths)
    while True:
        names = ["/".join(p.parts[-depth:]) for p, depth in zip(paths, depths, strict=True)]
        if len(set(names)) == len(names):
            return names
        depths = [d + (names.count(n) > 1) for d, n in zip(depths, names, strict=True)]


def selected_metrics(runs: Sequence[RunCurves]) -> list[str]:
    """Selects the metrics to plot, in the order of the panels: losses, scores, throughput.

    If every run has at most one loss besides "loss", that loss equals "loss" and is not plotted.
    """
    by_run = [[n for n in {**run.training, **run.evaluation} if _is_plotted(n)] for run in runs]
    names = list(dict.fromkeys(name for metrics in by_run for name in metrics))
    losses = [name for name in names if _is_loss(name) and name != "loss"]
    if all(sum(name in losses for name in metrics) <= 1 for metrics in by_run):
        losses = []
    scores = [name for name in names if name.endswith(_SCORES)]
    return [name for name in ("loss", *losses, *scores, THROUGHPUT) if name in names]


def _is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def _is_plotted(name: str) -> bool:
    """Returns whether a metric measures how well or how fast a run learns."""
    return _is_loss(name) or name.endswith(_SCORES) or name == THROUGHPUT


def _read(path: Path, name: str) -> RunCurves:
    if not (path / METRICS).is_file() and not (path / "run.json").is_file():
        raise InputError(f"{path}: has no {METRICS}; expected the folder of a run")
    rows, starts = _read_phases(path)
    results = read_json(path / "results.json") if (path / "results.json").is_file() else {}
    by_kind = {True: [], False: []}  # {whether it is an evaluation: rows}
    for row in rows:
        by_kind[any(metric.startswith(EVALUATION) for metric in row)].append(row)
    return RunCurves(
        name,
        path,
        _curves(by_kind[False]),
        _curves([{n.removeprefix(EVALUATION): v for n, v in row.items()} for row in by_kind[True]]),
        {n: float(v) for n, v in results.items() if isinstance(v, int | float)},
        tuple(starts),
    )


def _read_phases(path: Path) -> tuple[list[dict[str, float]], list[int]]:
    """Reads the metrics of a run, which has a folder for each phase if it follows a recipe.

    Returns:
        The rows with steps that count from the beginning of the first phase, and the steps at which
        the later phases begin.
    """
    # Phases are numbered; `phase-10` follows `phase-9`.
    phases = sorted(path.glob("phase-*"), key=lambda phase: (len(phase.name), phase.name))
    rows, starts, start = [], [], 0
    for folder in phases or [path]:
        try:
            own = read_metrics(folder)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{folder / METRICS}: cannot be read: {error}") from error
        if not own:
            continue
        if start:
            starts.append(start)
        rows += [{**row, "step": start + row["step"]} for row in own]
        start = rows[-1]["step"]
    return rows, starts


def _curves(rows: Sequence[Mapping[str, float]]) -> dict[str, Curve]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                points.setdefault(name, []).append((row["step"], value))
    return {name: tuple(np.array(pairs, float).T) for name, pairs in points.items()}
