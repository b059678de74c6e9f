"""Averages the learning curves of runs that differ only in their random seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.training.curves import Curve, RunCurves, unique_names

_SEED = re.compile(r"(?<![a-z])seed[-_]?\d+", re.IGNORECASE)


def average_seeds(runs: Sequence[RunCurves]) -> list[RunCurves]:
    """Averages the runs whose directories differ only in the number after "seed".

    Runs without metrics are omitted from an average.

    Returns:
        The runs in their order. Those of a group are one run, named without the seed. Its values
        are means over the runs at the steps that all of them have, and `deviations` are the sample
        standard deviations. Its results are the means of the results that all of them have.

    Raises:
        InputError: the runs of a group have no step in common.
    """
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(_SEED.sub("seed", str(run.path)), []).append(run)
    found = []
    for group in groups.values():
        logged = [run for run in group if run.last_step]
        path = _without_seed(group[0].path) if len(logged) > 1 else group[0].path
        found.append((path, _average(logged) if len(logged) > 1 else (logged or group)[0]))
    # A path may occur twice: of a run without a seed, and of the average of others.
    paths = list(dict.fromkeys(path for path, _ in found))
    names = dict(zip(paths, unique_names(paths), strict=True))
    return [
        replace(run, name=names[path] + (f" (mean of {run.count})" if run.count > 1 else ""))
        for path, run in found
    ]


def _without_seed(path: Path) -> Path:
    parts = [_SEED.sub("", part).strip("-_. ") for part in path.parts[1:]]
    return Path(path.anchor, *filter(None, parts))


def _average(runs: Sequence[RunCurves]) -> RunCurves:
    training, training_spread = _mean_curves([run.training for run in runs])
    evaluation, evaluation_spread = _mean_curves([run.evaluation for run in runs])
    if not training and not evaluation:
        raise InputError(
            f"{', '.join(str(run.path) for run in runs)}: have no step in common; expected runs "
            "that log the same steps"
        )
    known = set.intersection(*({*run.results} for run in runs))
    results = {
        metric: float(np.mean([run.results[metric] for run in runs]))
        for metric in runs[0].results
        if metric in known
    }
    average = replace(
        runs[0],
        training=training,
        evaluation=evaluation,
        results=results,
        count=len(runs),
        deviations={"training": training_spread, "evaluation": evaluation_spread},
    )
    has_same_phases = all(run.phases == runs[0].phases for run in runs)
    phases = [start for start in runs[0].phases if has_same_phases and start < average.last_step]
    return replace(average, phases=tuple(phases))


def _mean_curves(
    curves: Sequence[Mapping[str, Curve]],
) -> tuple[dict[str, Curve], dict[str, np.ndarray]]:
    """Returns the mean curves and the standard deviations of the metrics that all runs have."""
    means, deviations = {}, {}
    for metric in curves[0]:
        if not all(metric in of_run for of_run in curves):
            continue
        steps = reduce(np.intersect1d, (of_run[metric][0] for of_run in curves))
        if not len(steps):
            continue
        # The last value of a step counts, as after a resumption.
        by_step = [dict(zip(*of_run[metric], strict=True)) for of_run in curves]
        values = np.array([[own[step] for step in steps] for own in by_step])
        means[metric] = (steps, values.mean(axis=0))
        deviations[metric] = values.std(axis=0, ddof=1)
    return means, deviations
