"""Makes the tables of the study, in Markdown.

Scores are in points, mean ± standard deviation over seeds. They are development scores of the last
epoch, or, in columns with `test`, test scores: of the best epoch (fine-tuning) or of the last one
(features). The number of seeds is in parentheses if it is not that of the plan.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean, stdev

from ablation import reference
from ablation.claims import Measure, Variant, judge, scores_of, verdict
from ablation.plan import FEATURES, TARGET_ACCURACY, TASKS, Plan
from ablation.results import Results
from ablation.units import Unit

MISSING = "–"
SPLITS = {"last": "development", "test": "test"}  # {name in the results: name in the tables}


def report(results: Results, study: Plan) -> str:
    """Returns the Markdown text of the report."""
    parts = [
        reference.share_of_tokens(study),
        *_section("Pre-training", _pretraining_table(results, study)),
        *_target(results, study),
        *_section("All arms", _arm_table(results, study)),
        *_section("Steps", _steps_table(results, study)),
        *_section("Features and fine-tuning on WNUT-17", _features_table(results, study)),
        *_section("Claims", _claims_table(results, study)),
        *_section("Published: Table 5, BERT-base, development sets", _table_5()),
        *_section("Published: Table 6, development sets", _table_6()),
    ]
    return "\n".join(parts) + "\n"


def summary(scores: Sequence[float], seeds: int) -> str:
    """Formats the mean and the sample standard deviation of scores."""
    if not scores:
        return MISSING
    spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
    count = "" if len(scores) == seeds else f" ({len(scores)})"
    return f"{mean(scores):.1f}{spread}{count}"


def _cell(variant: Variant, task: str, results: Results, study: Plan, split: str) -> str:
    scores = scores_of(variant, task, results, study, Measure(split=split))
    return summary(scores, len(study.seeds))


def _section(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    header, *lines = rows
    return [
        f"\n### {title}\n",
        _row(header),
        _row(["---"] * len(header)),
        *map(_row, lines),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _pretraining_table(results: Results, study: Plan) -> Iterator[Sequence[str]]:
    names = {
        "masked_lm_loss": "masked-LM loss",
        "masked_lm_accuracy": "masked-LM accuracy, %",
        "next_sentence_accuracy": "next-sentence accuracy, %",
        "next_token_loss": "next-token loss",
        "next_token_accuracy": "next-token accuracy, %",
        "tokens_per_second": "tokens/s",
    }
    yield ["held-out books", "steps", *names.values(), "minutes"]
    for arm in study.arms:
        result = results.get(Unit(arm))
        if result is None:
            continue
        steps = result.figures["step"] if arm.objective else 0
        cells = [arm.name, f"{steps:,}"]
        for name in names:
            value = result.figures.get(name)
            if name == "tokens_per_second" and not arm.objective:
                value = None
            percent = 100 if name.endswith("accuracy") else 1
            digits = 2 if name.endswith("loss") else 1 if percent == 100 else 0
            cells.append(MISSING if value is None else f"{percent * value:,.{digits}f}")
        yield [*cells, f"{result.seconds / 60:.0f}"]


def _target(results: Results, study: Plan) -> Iterator[str]:
    """Yields a line about the masked-LM accuracy that the plan expects of mini."""
    found = {
        arm.name: 100 * result.figures["masked_lm_accuracy"]
        for arm in study.arms
        if arm.size == "mini" and arm.objective
        if (result := results.get(Unit(arm))) and "masked_lm_accuracy" in result.figures
    }
    if found:
        best = max(found, key=found.get)
        state = "reached" if found[best] >= TARGET_ACCURACY else "not reached"
        yield (
            f"\nTarget: a masked-LM accuracy of mini of at least {TARGET_ACCURACY:.0f} % on the "
            f"held-out books. It is {state}: {best} has {found[best]:.1f} %."
        )


def _columns() -> list[tuple[str, Measure]]:
    """Returns the columns of the table of all arms: pairs of a task and which of its scores."""
    columns = []
    for task, definition in TASKS.items():
        columns += [(task, Measure(metric)) for metric in definition.metrics]
        if definition.has_test:
            columns.append((task, Measure(definition.metrics[0], "test")))
    return columns


def _name(task: str, measure: Measure) -> str:
    return f"{task} {measure.metric}" + (", test" if measure.split == "test" else "")


def _arm_table(results: Results, study: Plan) -> Iterator[Sequence[str]]:
    columns = _columns()
    yield ["arm", *(_name(task, measure) for task, measure in columns)]
    for arm in study.arms:
        scores = [
            scores_of(Variant(arm.name), task, results, study, measure) for task, measure in columns
        ]
        if any(scores):
            yield [arm.name, *(summary(some, len(study.seeds)) for some in scores)]
    constant = {
        (task, Measure(metric)): score for (task, metric), score in reference.CONSTANT.items()
    }
    cells = (constant.get(column, MISSING) for column in columns)
    yield ["the most frequent answer", *map(str, cells)]
    for size, published in reference.GOOGLE.items():
        main = {(task, Measure(TASKS[task].metrics[0])): score for task, score in published.items()}
        cells = (main.get(column, MISSING) for column in columns)
        yield [f"published: Google's {size}, test", *map(str, cells)]


def _steps_table(results: Results, study: Plan) -> Iterator[Sequence[str]]:
    arms = [arm for arm in study.arms if arm.points]  # All have the same number of steps.
    columns = [(arm, task, split) for split in SPLITS for arm in arms for task in arm.point_tasks]
    yield ["steps", *(f"{arm.name} {task}, {SPLITS[split]}" for arm, task, split in columns)]
    for percent in sorted({percent for arm in arms for percent in (*arm.points, 100)}):
        cells = [
            _cell(Variant(arm.name, percent), task, results, study, split)
            for arm, task, split in columns
        ]
        yield [f"{study.steps_of(arms[0]) * percent // 100:,} ({percent} %)", *cells]


def _features_table(results: Results, study: Plan) -> Iterator[Sequence[str]]:
    arms = [arm for arm in study.arms if arm.features]
    paper = "paper: CoNLL-2003, BERT-base"
    columns = [(arm, split) for split in SPLITS for arm in arms]
    names = (f"{arm.name}, {SPLITS[split]} F1" for arm, split in columns)
    yield ["input of the tagger", *names, paper]
    for features in ("", *FEATURES):
        cells = [
            _cell(Variant(arm.name, features=features), "WNUT-17", results, study, split)
            for arm, split in columns
        ]
        name = features or "fine-tuning"
        yield [name.replace("_", " "), *cells, f"{reference.TABLE_7[name]}"]


def _claims_table(results: Results, study: Plan) -> Iterator[Sequence[str]]:
    yield ["claim", "task", "expected higher", "expected lower", "difference ± error", "verdict"]
    for claim, task, higher, lower in judge(results, study):
        difference, error, judgement = verdict(higher, lower)
        count = len(study.seeds)
        yield [
            claim.text,
            task,
            summary(higher, count),
            summary(lower, count),
            f"{difference:+.1f} ± {error:.1f}",
            judgement,
        ]


def _table_5() -> Iterator[Sequence[str]]:
    yield ["objective", "MRPC accuracy", "SST-2 accuracy", "SQuAD F1"]
    for objective, scores in reference.TABLE_5.items():
        yield [objective, *(f"{score}" for score in scores.values())]


def _table_6() -> Iterator[Sequence[str]]:
    yield ["layers/hidden size/heads", "masked-LM perplexity", "MRPC accuracy", "SST-2 accuracy"]
    for name, *values in reference.TABLE_6:
        yield [name, *(f"{value}" for value in values)]
