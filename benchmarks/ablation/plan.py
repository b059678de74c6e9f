"""Defines the study: arms, tasks, settings and budget.

The budget is the time on one idle core of an AMD EPYC with AVX512-BF16. Each of the two cores of
the machine runs some of the arms. README.md derives it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from workers import ROOT

from keras_bert.pretraining.recipe import find_recipe

GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")
ALL_TASKS = (*GLUE, "WNUT-17", "SQuAD")
# Tasks that take little time.
CHEAP_TASKS = ("MRPC", "STS-B")
# Tasks of the arms that are not run on all tasks. Pre-training was expected to help on them.
FLOOR_TASKS = ("SST-2", *CHEAP_TASKS)
# The task of the checkpoints during pre-training: it separates models best.
POINT_TASKS = ("WNUT-17",)
# Masked-LM accuracy on the held-out books, in percent, that mini should reach.
TARGET_ACCURACY = 35.0
# How the features of WNUT-17 are made from the hidden states of a model (Table 7 of the paper).
FEATURES = ("last", "second_to_last", "sum_last_four", "concat_last_four")


@dataclass(frozen=True)
class Arm:
    """One pre-trained model, and the tasks on which it is compared with others.

    Attributes:
        name: the name of the arm and of its file of results.
        size: a bundled config, or a JSON file.
        objective: the pre-training objective; None for newly initialized weights.
        records: the kind of training records: dynamic or whole_word.
        tasks: the tasks that the final model is fine-tuned on.
        points: shares of the pre-training steps, in percent, of the checkpoints that are fine-tuned
            on `point_tasks`.
        point_tasks: the tasks for the checkpoints.
        features: the features of WNUT-17 that a tagger is trained on.
        step_factor: a factor for the number of pre-training steps.
        recipe: the recipe, if it is not that of the plan.
        is_optional: whether the arm runs only if --arms names it.
    """

    name: str
    size: str
    objective: str | None
    records: str = "dynamic"
    tasks: Sequence[str] = ALL_TASKS
    points: Sequence[int] = ()
    point_tasks: Sequence[str] = POINT_TASKS
    features: Sequence[str] = ()
    step_factor: int = 1
    recipe: str = ""
    is_optional: bool = False


@dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    Attributes:
        name: the name of the task.
        program: the file of the program.
        epochs: the number of passes over the training examples.
        metrics: the metrics to report, as named in metrics.jsonl; the first one is the main one.
        flags: further flags of the program.
        percent: whether the metrics are already in percent.
        has_test: whether a tagged test set is evaluated too.
    """

    name: str
    program: str
    epochs: float
    metrics: Sequence[str]
    flags: Mapping[str, object]
    percent: bool = False
    has_test: bool = False


def _glue(name: str, epochs: float, *metrics: str) -> Task:
    flags = {"task_name": name, "max_seq_length": 128, "train_batch_size": 32, "do_predict": False}
    return Task(name, "run_classifier.py", epochs, metrics, flags)


# Epochs are in the range of the paper, 2 to 4, except for SST-2 (67,349 examples) and WNUT-17
# (3,394 sentences). Windows of SQuAD have 128 tokens, because pre-training trains no further
# positions. They overlap by about 30 tokens, the longest answer that is predicted.
TASKS = {
    task.name: task
    for task in (
        _glue("CoLA", 4, "matthews_corrcoef"),
        _glue("SST-2", 1, "accuracy"),
        _glue("MRPC", 4, "accuracy", "f1"),
        _glue("STS-B", 4, "spearman", "pearson"),
        _glue("RTE", 4, "accuracy"),
        Task(
            "WNUT-17",
            "run_ner.py",
            6,
            ("f1",),
            {"max_seq_length": 128, "train_batch_size": 32},
            has_test=True,
        ),
        Task(
            "SQuAD",
            "run_squad.py",
            3,
            ("f1", "exact"),
            {"max_seq_length": 128, "doc_stride": 80, "train_batch_size": 32},
            percent=True,
        ),
    )
}


@dataclass(frozen=True)
class Phase:
    """A phase of pre-training: numbers of steps, of examples of a step, of tokens of an example."""

    steps: int
    batch: int
    length: int


def read_recipe(recipe: str) -> dict:
    """Returns the content of a recipe of run_pretraining.py: a name, or a path from the root."""
    return tomllib.loads((ROOT / find_recipe(recipe)).read_text(encoding="utf-8"))


def phases_in(recipe: str) -> tuple[Phase, ...]:
    """Returns the phases of a recipe."""
    content = read_recipe(recipe)
    tables = [{**content["flags"], **phase} for phase in content["phase"]]
    return tuple(
        Phase(phase["num_train_steps"], phase["train_batch_size"], phase["data"]["max_seq_length"])
        for phase in tables
    )


@dataclass(frozen=True)
class Plan:
    """The settings of the study.

    Attributes:
        arms: the arms, in the order in which they run.
        seeds: the seeds of each fine-tuning.
        recipe: the recipe of pre-training.
        passes: the number of passes over the corpus in the records, each with other pairs.
        vocab_size: the number of tokens of the vocabulary.
        pretraining_rates: {size: peak learning rate of pre-training}.
        fine_tuning_rates: {size: peak learning rate of fine-tuning}.
        held_out: the books that are not trained on; nor is the vocabulary learned from them.
        scale: a factor for steps and epochs, below 1 for a trial.
        tagger_units: the size of the LSTMs that read features.
        tagger_epochs: the number of passes of their training.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int] = (0, 1, 2)
    recipe: str = "small-corpus"
    passes: int = 2
    vocab_size: int = 16384
    pretraining_rates: Mapping[str, float] = field(default_factory=dict)
    fine_tuning_rates: Mapping[str, float] = field(default_factory=dict)
    held_out: Sequence[str] = ("time_machine.txt.xz", "cranford.txt.xz")
    scale: float = 1.0
    tagger_units: int = 128
    tagger_epochs: float = 15

    def scale_of(self, arm: Arm) -> float:
        """Returns the factor for the steps of the recipe."""
        return arm.step_factor * self.scale

    def recipe_of(self, arm: Arm) -> str:
        """Returns the recipe of an arm."""
        return arm.recipe or self.recipe

    def phases_of(self, arm: Arm) -> list[Phase]:
        """Returns the phases of an arm's pre-training; the program scales steps in the same way."""
        return [
            replace(phase, steps=max(1, round(phase.steps * self.scale_of(arm))))
            for phase in phases_in(self.recipe_of(arm))
        ]

    def steps_of(self, arm: Arm) -> int:
        """Returns the number of pre-training steps of all phases."""
        return sum(phase.steps for phase in self.phases_of(arm))

    def checkpoint_interval(self, arm: Arm) -> int:
        """Returns the number of steps between two checkpoints, which are also evaluated."""
        return max(1, self.steps_of(arm) // EVALUATIONS)

    def lengths(self) -> list[int]:
        """Returns the lengths of the sequences of all arms."""
        recipes = {self.recipe_of(arm) for arm in self.arms}
        return sorted({phase.length for recipe in recipes for phase in phases_in(recipe)})

    def arm(self, name: str) -> Arm:
        """Returns the arm with a name; raises a KeyError if there is none."""
        return {arm.name: arm for arm in self.arms}[name]


def _recipe(name: str) -> str:
    """Returns the path of a recipe of this folder, from the root."""
    return str(Path(__file__).with_name(f"{name}.toml").relative_to(ROOT))


ARMS = (
    Arm("mini-mlm_nsp", "mini", "mlm_nsp", features=FEATURES),
    Arm("mini-mlm", "mini", "mlm", points=(10, 20, 40, 70)),
    Arm("mini-ltr", "mini", "ltr", points=(10, 20, 40, 70)),
    Arm("mini-none", "mini", None),
    Arm("tiny-mlm_nsp", "tiny", "mlm_nsp"),
    Arm("tiny-none", "tiny", None, tasks=FLOOR_TASKS),
    Arm("mini-mlm_nsp-half", "mini", "mlm_nsp", recipe=_recipe("half"), tasks=FLOOR_TASKS),
    Arm("small-mlm_nsp-half", "small", "mlm_nsp", recipe=_recipe("half"), tasks=FLOOR_TASKS),
    Arm("mini-mlm_nsp-long", "mini", "mlm_nsp", step_factor=2, is_optional=True),
    Arm(
        "mini-mlm_nsp-128",
        "mini",
        "mlm_nsp",
        recipe=_recipe("only_128"),
        tasks=CHEAP_TASKS,
        is_optional=True,
    ),
    Arm("mini-whole_word", "mini", "mlm_nsp", records="whole_word", is_optional=True),
)
PLAN = Plan(
    ARMS,
    pretraining_rates={"tiny": 2e-3, "mini": 1e-3, "small": 5e-4},
    fine_tuning_rates={"tiny": 3e-4, "mini": 2e-4, "small": 1e-4},
)

# The budget. Pre-training: seconds of a step of 4,096 tokens, and of an evaluation.
STEP_SECONDS = {
    ("tiny", "mlm_nsp"): (0.11, 2),
    ("mini", "mlm_nsp"): (0.39, 5),
    ("mini", "mlm"): (0.39, 5),
    ("mini", "ltr"): (0.7, 9),
    ("small", "mlm_nsp"): (1.4, 15),
}
# Fine-tuning and features: seconds of a run with start-up and evaluations, in the order of
# ALL_TASKS: CoLA, SST-2, MRPC, STS-B, RTE, WNUT-17, SQuAD.
FINE_TUNING_SECONDS = {
    "tiny": dict(zip(ALL_TASKS, (29, 55, 36, 38, 35, 42, 70), strict=True)),
    "mini": dict(zip(ALL_TASKS, (65, 135, 97, 95, 88, 105, 215), strict=True)),
    "small": dict(zip(ALL_TASKS, (240, 480, 330, 320, 290, 330, 750), strict=True)),
}
EVALUATIONS = 10  # At every tenth of the steps.
FEATURE_SECONDS = 115
CORPUS_SECONDS = 60
START_SECONDS = 20  # Start-up and compilation of pre-training.
