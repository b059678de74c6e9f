"""Averages the learning curves of runs that differ only in their random seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from keras_bert.training.curves import Curve, RunCurves

_SEED = re.compile(r"[-_./]?seed[-_]?\d+", re.IGNORECASE)


def average_seeds(runs: Sequence[RunCurves]) -> list[RunCurves]:
    """Averages the runs whose names differ only in the number after "seed".

    Returns:
        The runs in their order. Those of a group are one run, named without the seed. Its values
        are means over the runs at the steps that all of them have, and `deviations` are the sample
        standard deviations. Its results are the means of the results that all of them have.
    """
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(_SEED.sub("", run.name) or run.name, []).append(run)
    return [_average(name, group) if len(group) > 1 else group[0] for name, group in groups.items()]


def _average(name: str, runs: Sequence[RunCurves]) -> RunCurves:
    training, training_spread = _mean_curves([run.training for run in runs])
    evaluation, evaluation_spread = _mean_curves([run.evaluation for run in runs])
    known = set.intersection(*({*run.results} for run in runs))
    results = {
        metric: float(np.mean([run.results[metric] for run in runs]))
        for metric in runs[0].results
        if metric in known
    }
    return replace(
        runs[0],
        name=f"{name} (mean of {len(runs)})",
        training=training,
        evaluation=evaluation,
        results=results,
        deviations={"training": training_spread, "evaluation": evaluation_spread},
    )


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
        values = np.array(
            [[dict(zip(*own[metric], strict=True))[step] for step in steps] for own in curves]
        )
        means[metric] = (steps, values.mean(axis=0))
        deviations[metric] = values.std(axis=0, ddof=1)
    return means, deviations
