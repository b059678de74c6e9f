"""Compares claims, most of them of Devlin et al. (2019), with the results.

The rule was fixed before the first run. For each task, d is the difference of the means over seeds
in the direction of the claim, and e its standard error, sqrt(s1^2/n1 + s2^2/n2):

    d > 2e     seen
    d < -2e    contradicted
    otherwise  not seen at this scale

With three seeds, e itself is uncertain by about half. It is therefore at least MIN_ERROR points.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from ablation.plan import ALL_TASKS, CHEAP_TASKS, FLOOR_TASKS, POINT_TASKS, TASKS, Plan
from ablation.results import Results
from ablation.units import Unit

MIN_ERROR = 0.5
SEEN, NOT_SEEN, CONTRADICTED = "seen", "not seen at this scale", "contradicted"


@dataclass(frozen=True)
class Variant:
    """A model whose scores are compared: an arm, a share of its steps, and its features if any."""

    arm: str
    percent: int = 100
    features: str = ""


@dataclass(frozen=True)
class Measure:
    """Which scores of a task are compared.

    Attributes:
        metric: a metric of the task; by default, its main one.
        split: "last" for the development scores of the last epoch, "test" for the test scores: of
            the best epoch (fine-tuning) or of the last one (features).
    """

    metric: str = ""
    split: str = "last"


@dataclass(frozen=True)
class Claim:
    """A claim that one variant scores higher than another on some tasks."""

    text: str
    higher: Variant
    lower: Variant
    tasks: Sequence[str] = ALL_TASKS


_MLM, _LTR, _BERT = Variant("mini-mlm"), Variant("mini-ltr"), Variant("mini-mlm_nsp")
CLAIMS = (
    Claim("Next-sentence prediction helps (Table 5)", _BERT, _MLM),
    Claim("Attention to both sides helps (Table 5)", _MLM, _LTR),
    Claim("mini is better than tiny (Table 6)", _BERT, Variant("tiny-mlm_nsp")),
    Claim(
        "small is better than mini, with half of the steps (Table 6)",
        Variant("small-mlm_nsp-half"),
        Variant("mini-mlm_nsp-half"),
        FLOOR_TASKS,
    ),
    Claim("Twice the steps help (Figure 5)", _BERT, Variant("mini-mlm_nsp-half"), FLOOR_TASKS),
    Claim("More steps help (Figure 5)", _MLM, Variant("mini-mlm", 10), POINT_TASKS),
    Claim(
        "Masked LM is ahead of left-to-right after few steps (Figure 5)",
        Variant("mini-mlm", 10),
        Variant("mini-ltr", 10),
        POINT_TASKS,
    ),
    Claim(
        "Fine-tuning is better than the best features (Table 7)",
        _BERT,
        Variant("mini-mlm_nsp", features="sum_last_four"),
        ("WNUT-17",),
    ),
    Claim(
        "The last four layers together are better features than the last one (Table 7)",
        Variant("mini-mlm_nsp", features="concat_last_four"),
        Variant("mini-mlm_nsp", features="last"),
        ("WNUT-17",),
    ),
    Claim("Pre-training with mlm_nsp helps mini", _BERT, Variant("mini-none")),
    Claim("Pre-training with mlm helps mini", _MLM, Variant("mini-none")),
    Claim("Pre-training with ltr helps mini", _LTR, Variant("mini-none")),
    Claim(
        "Pre-training with mlm_nsp helps tiny",
        Variant("tiny-mlm_nsp"),
        Variant("tiny-none"),
        FLOOR_TASKS,
    ),
    Claim(
        "Short sequences first give better scores (this project; in A.2, they save time)",
        _BERT,
        Variant("mini-mlm_nsp-128"),
        CHEAP_TASKS,
    ),
)


def scores_of(
    variant: Variant, task: str, results: Results, study: Plan, measure: Measure = Measure()
) -> list[float]:
    """Returns the scores of a variant in points, one for each finished seed.

    These may be more seeds than the plan has, if further ones were run with --seeds.
    """
    if variant.arm not in {arm.name for arm in study.arms}:
        return []
    definition = TASKS[task]
    model = Unit(study.arm(variant.arm), task, percent=variant.percent, features=variant.features)
    units = [dataclasses.replace(model, seed=seed) for seed in results.seeds(model)]
    figures = [results.get(unit).figures.get(measure.split) for unit in units]
    values = [own[measure.metric or definition.metrics[0]] for own in figures if own]
    return [value if definition.percent else 100 * value for value in values]


def verdict(higher: Sequence[float], lower: Sequence[float]) -> tuple[float, float, str]:
    """Returns the difference of the means, its standard error, and the verdict by the rule."""
    difference = mean(higher) - mean(lower)
    squared = sum(stdev(some) ** 2 / len(some) for some in (higher, lower) if len(some) > 1)
    error = max(MIN_ERROR, math.sqrt(squared))
    if abs(difference) <= 2 * error:
        return difference, error, NOT_SEEN
    return difference, error, SEEN if difference > 0 else CONTRADICTED


def judge(results: Results, study: Plan) -> Iterator[tuple[Claim, str, list, list]]:
    """Yields (claim, task, scores of `higher`, scores of `lower`) where both have two or more."""
    for claim in CLAIMS:
        for task in claim.tasks:
            pair = [
                scores_of(variant, task, results, study) for variant in (claim.higher, claim.lower)
            ]
            if all(len(scores) >= 2 for scores in pair):
                yield (claim, task, *pair)
