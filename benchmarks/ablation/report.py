"""Makes the tables of the study, in Markdown, and compares the paper's claims with the results.

Scores are in points, mean ± standard deviation over seeds. They are development scores of the last
epoch, or, in columns with `test`, test scores: of the best epoch (fine-tuning) or of the last one
(features). The number of seeds is in parentheses if it is not that of the plan.

The rule of the verdicts was fixed before the first run. For each task, d is the difference of the
means over seeds in the direction of the claim, and e its standard error, sqrt(s1^2/n1 + s2^2/n2):

    d > 2e     seen
    d < -2e    contradicted
    otherwise  not seen

With three seeds, e itself is uncertain by about half. It is therefore at least MIN_ERROR points.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from ablation.plan import ALL_TASKS, FEATURES, FLOOR_TASKS, TASKS, Plan, Unit
from ablation.run import Results

MIN_ERROR = 0.5
SEEN, NOT_SEEN, CONTRADICTED = "seen", "not seen", "contradicted"
TARGET_ACCURACY = 35.0  # Of mini on the masked tokens of the held-out books, in percent.
MISSING = "–"
SPLITS = {"last": "development", "test": "test"}  # {name in the results: name in the tables}

# google/bert_uncased_L-{2,4,4}_H-{128,256,512}: {size: {task: score}}, GLUE test, MRPC in accuracy,
# STS-B in Spearman. Trained on 3,300 M words for 1,000,000 steps of 256 sequences.
GOOGLE = {
    "tiny": {"CoLA": 0.0, "SST-2": 83.2, "MRPC": 71.1, "STS-B": 73.6, "RTE": 57.2},
    "mini": {"CoLA": 0.0, "SST-2": 85.9, "MRPC": 71.8, "STS-B": 73.3, "RTE": 57.9},
    "small": {"CoLA": 27.8, "SST-2": 89.7, "MRPC": 76.2, "STS-B": 77.0, "RTE": 61.8},
}
# The development scores of always giving the most frequent answer: {(task, metric): score}.
CONSTANT = {
    ("CoLA", "matthews_corrcoef"): 0.0,
    ("SST-2", "accuracy"): 50.9,  # 444 of 872
    ("MRPC", "accuracy"): 68.4,  # 279 of 408
    ("MRPC", "f1"): 81.2,
    ("RTE", "accuracy"): 52.7,  # 146 of 277
    ("WNUT-17", "f1"): 0.0,
}
# Devlin et al. 2019, Table 7, CoNLL-2003, development F1 of BERT-base.
TABLE_7 = {
    "fine-tuning": "96.4",
    "last": "94.9",
    "second_to_last": "95.6",
    "sum_last_four": "95.9 (weighted)",
    "concat_last_four": "96.1",
}
# 90 % of the 1,000,000 steps of 256 sequences have 128 tokens, the rest 512.
_PAPER_TOKENS = 1_000_000 * 256 * (0.9 * 128 + 0.1 * 512)


class Model(NamedTuple):
    """A model whose scores are compared: an arm, a share of its steps, and its features if any."""

    arm: str
    percent: int = 100
    features: str = ""


class Claim(NamedTuple):
    """A claim that one model scores higher than another on some tasks."""

    text: str
    higher: Model
    lower: Model
    tasks: Sequence[str] = ALL_TASKS


_MLM, _LTR, _BERT = Model("mini-mlm"), Model("mini-ltr"), Model("mini-mlm_nsp")
_HALF, _NONE = Model("mini-mlm_nsp-half"), Model("mini-none")
_NER = ("WNUT-17",)
CLAIMS = (
    Claim("Next-sentence prediction helps (Table 5)", _BERT, _MLM),
    Claim("Attention to both sides helps (Table 5)", _MLM, _LTR),
    Claim("mini is better than tiny (Table 6)", _BERT, Model("tiny-mlm_nsp")),
    Claim(
        "small is better than mini, with half of the steps (Table 6)",
        Model("small-mlm_nsp-half"),
        _HALF,
        FLOOR_TASKS,
    ),
    Claim("Twice the steps help (Figure 5)", _BERT, _HALF, FLOOR_TASKS),
    Claim("More steps help (Figure 5)", _MLM, Model("mini-mlm", 10), _NER),
    Claim(
        "Masked LM is ahead of left-to-right after few steps (Figure 5)",
        Model("mini-mlm", 10),
        Model("mini-ltr", 10),
        _NER,
    ),
    Claim(
        "Fine-tuning is better than the best features (Table 7)",
        _BERT,
        Model("mini-mlm_nsp", features="sum_last_four"),
        _NER,
    ),
    Claim(
        "The last four layers together are better features than the last one (Table 7)",
        Model("mini-mlm_nsp", features="concat_last_four"),
        Model("mini-mlm_nsp", features="last"),
        _NER,
    ),
    Claim("Pre-training with mlm_nsp helps mini", _BERT, _NONE),
    Claim("Pre-training with mlm helps mini", _MLM, _NONE),
    Claim("Pre-training with ltr helps mini", _LTR, _NONE),
    Claim(
        "Pre-training with mlm_nsp helps tiny",
        Model("tiny-mlm_nsp"),
        Model("tiny-none"),
        FLOOR_TASKS,
    ),
)


def scores_of(
    model: Model, task: str, results: Results, metric: str = "", split: str = "last"
) -> list[float]:
    """Returns the scores of a model in points, one for each finished seed.

    These may be more seeds than the plan has, if further ones were run with --seeds.

    Args:
        model: the model.
        task: the task.
        results: the results of the study.
        metric: a metric of the task; by default, its main one.
        split: "last" for the development scores of the last epoch, "test" for the test scores.
    """
    if model.arm not in {arm.name for arm in results.plan.arms}:
        return []
    arm, metric = results.plan.arm(model.arm), metric or TASKS[task].metrics[0]
    first = Unit(arm, task, 0, model.percent, model.features)
    entries = [results.get(first._replace(seed=seed)) for seed in results.seeds(first)]
    values = [e["figures"][split][metric] for e in entries if split in e["figures"]]
    return [value if TASKS[task].percent else 100 * value for value in values]


def verdict(higher: Sequence[float], lower: Sequence[float]) -> tuple[float, float, str]:
    """Returns the difference of the means, its standard error, and the verdict by the rule."""
    difference = mean(higher) - mean(lower)
    squared = sum(stdev(some) ** 2 / len(some) for some in (higher, lower) if len(some) > 1)
    error = max(MIN_ERROR, math.sqrt(squared))
    if abs(difference) <= 2 * error:
        return difference, error, NOT_SEEN
    return difference, error, SEEN if difference > 0 else CONTRADICTED


def report(results: Results) -> str:
    """Returns the Markdown text of the report."""
    tables = {
        "Pre-training": pretraining_table,
        "All arms": arm_table,
        "Steps": steps_table,
        "Features and fine-tuning on WNUT-17": features_table,
        "Claims": claims_table,
    }
    parts = [share_of_tokens(results.plan)]
    for title, rows_of in tables.items():
        header, *rows = rows_of(results)
        lines = (f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))
        parts += [f"\n### {title}\n", *lines]
        parts += target(results) if title == "Pre-training" else []
    return "\n".join(parts) + "\n"


def share_of_tokens(plan: Plan) -> str:
    """Returns a sentence about how many tokens an arm is trained on, compared with the paper."""
    phases = plan.phases_of(plan.arms[0])
    ours = sum(phase.steps * phase.batch * phase.length for phase in phases)
    steps = " and ".join(
        f"{each.steps:,} steps of {each.batch} sequences of {each.length} tokens" for each in phases
    )
    return (
        f"{plan.arms[0].name} was trained on {ours / 1e6:.1f} M tokens ({steps}), "
        f"{100 * ours / _PAPER_TOKENS:.3f} % of the {_PAPER_TOKENS / 1e9:.1f} billion of BERT "
        "(1,000,000 steps of 256 sequences, 90 % of them with 128 tokens and 10 % with 512)."
    )


def summary(scores: Sequence[float], plan: Plan) -> str:
    """Formats the mean and the sample standard deviation of scores."""
    if not scores:
        return MISSING
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    count = "" if len(scores) == len(plan.seeds) else f" ({len(scores)})"
    return f"{mean(scores):.1f}{spread}{count}"


def pretraining_table(results: Results) -> Iterator[Sequence[str]]:
    """Yields the held-out figures of each arm."""
    names = {
        "masked_lm_loss": "masked-LM loss",
        "masked_lm_accuracy": "masked-LM accuracy, %",
        "next_sentence_accuracy": "next-sentence accuracy, %",
        "next_token_loss": "next-token loss",
        "next_token_accuracy": "next-token accuracy, %",
        "tokens_per_second": "tokens/s",
    }
    yield ["held-out books", "steps", *names.values(), "minutes"]
    for arm in results.plan.arms:
        if entry := results.get(Unit(arm)):
            figures = dict(entry["figures"])
            if not arm.objective:  # It was not trained.
                figures |= {"step": 0, "tokens_per_second": None}
            cells = [arm.name, f"{figures['step']:,}"]
            for name in names:
                value = figures.get(name)
                if name.endswith("accuracy"):
                    cells.append(MISSING if value is None else f"{100 * value:,.1f}")
                else:
                    digits = 2 if name.endswith("loss") else 0
                    cells.append(MISSING if value is None else f"{value:,.{digits}f}")
            yield [*cells, f"{entry['seconds'] / 60:.0f}"]


def target(results: Results) -> list[str]:
    """Returns a line about the masked-LM accuracy that the plan expects of mini."""
    accuracies = {
        arm.name: 100 * entry["figures"]["masked_lm_accuracy"]
        for arm in results.plan.arms
        if arm.size == "mini" and arm.objective
        if (entry := results.get(Unit(arm))) and "masked_lm_accuracy" in entry["figures"]
    }
    if not accuracies:
        return []
    best = max(accuracies, key=accuracies.get)
    state = "reached" if accuracies[best] >= TARGET_ACCURACY else "not reached"
    return [
        f"\nTarget: a masked-LM accuracy of mini of at least {TARGET_ACCURACY:.0f} % on the "
        f"held-out books. It is {state}: {best} has {accuracies[best]:.1f} %."
    ]


def arm_table(results: Results) -> Iterator[Sequence[str]]:
    """Yields all scores of each arm, and published and constant ones."""
    columns = []  # (task, metric, split)
    for name, task in TASKS.items():
        columns += [(name, metric, "last") for metric in task.metrics]
        columns += [(name, task.metrics[0], "test")] if task.has_test else []
    names = (f"{task} {metric}" + ", test" * (split == "test") for task, metric, split in columns)
    yield ["arm", *names]
    for arm in results.plan.arms:
        scores = [
            scores_of(Model(arm.name), task, results, metric, split)
            for task, metric, split in columns
        ]
        if any(scores):
            yield [arm.name, *(summary(some, results.plan) for some in scores)]
    published = {"the most frequent answer": CONSTANT}
    for size, of_size in GOOGLE.items():
        main = {(task, TASKS[task].metrics[0]): score for task, score in of_size.items()}
        published[f"published: Google's {size}, test"] = main
    for name, by_metric in published.items():
        values = (
            by_metric.get((task, metric)) if split == "last" else None
            for task, metric, split in columns
        )
        yield [name, *(MISSING if value is None else f"{value}" for value in values)]


def steps_table(results: Results) -> Iterator[Sequence[str]]:
    """Yields the scores of the checkpoints of the arms with points."""
    plan = results.plan
    arms = [arm for arm in plan.arms if arm.points]  # All have the same number of steps.
    columns = [(arm, split) for split in SPLITS for arm in arms]
    names = (f"{arm.name} {arm.point_task}, {SPLITS[split]}" for arm, split in columns)
    yield ["steps", *names]
    for percent in sorted({percent for arm in arms for percent in (*arm.points, 100)}):
        cells = (
            summary(scores_of(Model(arm.name, percent), arm.point_task, results, split=split), plan)
            for arm, split in columns
        )
        yield [f"{plan.steps_of(arms[0]) * percent // 100:,} ({percent} %)", *cells]


def features_table(results: Results) -> Iterator[Sequence[str]]:
    """Yields the scores of taggers on features, and of fine-tuning."""
    columns = [(arm, split) for split in SPLITS for arm in results.plan.arms if arm.features]
    names = (f"{arm.name}, {SPLITS[split]} F1" for arm, split in columns)
    yield ["input of the tagger", *names, "paper: CoNLL-2003, BERT-base"]
    for features in ("", *FEATURES):
        cells = (
            summary(
                scores_of(Model(arm.name, features=features), "WNUT-17", results, split=split),
                results.plan,
            )
            for arm, split in columns
        )
        name = features or "fine-tuning"
        yield [name.replace("_", " "), *cells, TABLE_7[name]]


def claims_table(results: Results) -> Iterator[Sequence[str]]:
    """Yields the verdicts of each claim: a cell for each task, where both models have two scores.

    A cell has the difference of the means and its standard error.
    """
    yield ["claim", *TASKS]
    for claim in CLAIMS:
        cells = []
        for task in TASKS:
            higher, lower = (scores_of(m, task, results) for m in (claim.higher, claim.lower))
            if task in claim.tasks and min(len(higher), len(lower)) >= 2:
                difference, error, judgement = verdict(higher, lower)
                cells.append(f"{difference:+.1f} ± {error:.1f}, {judgement}")
            else:
                cells.append(MISSING)
        yield [claim.text, *cells]
