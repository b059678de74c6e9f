"""Defines the study: arms, tasks, settings, and the units of work.

A unit is the pre-training of an arm, or one fine-tuning of an arm with a task and a seed. Its key
is the name of its entry in the arm's file of results:

    pretraining                          the pre-training of the arm
    MRPC/seed-0                          fine-tuning of the final model
    40%/MRPC/seed-0                      fine-tuning of the checkpoint at 40 % of the steps
    WNUT-17 features last/seed-0         a tagger on the last layer of the final model
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from workers import ROOT

GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE")
ALL_TASKS = (*GLUE, "WNUT-17", "SQuAD")
# Tasks of the arms that are not run on all tasks. Pre-training was expected to help on them.
FLOOR_TASKS = ("SST-2", "MRPC", "STS-B")
# How the features of WNUT-17 are made from the hidden states of a model (Table 7 of the paper).
FEATURES = ("last", "second_to_last", "sum_last_four", "concat_last_four")
EVALUATIONS = 10  # At every tenth of the pre-training steps, with a checkpoint.


class Arm(NamedTuple):
    """One pre-trained model, and the tasks on which it is compared with others.

    Attributes:
        name: the name of the arm and of its file of results.
        size: a bundled config, or a JSON file.
        objective: the pre-training objective; None for newly initialized weights.
        tasks: the tasks that the final model is fine-tuned on.
        points: shares of the pre-training steps, in percent, of the checkpoints that are fine-tuned
            on `point_task`.
        point_task: the task for the checkpoints; WNUT-17 separates models best.
        features: the features of WNUT-17 that a tagger is trained on.
        recipe: the recipe of the pre-training: a bundled one, or a path.
    """

    name: str
    size: str
    objective: str | None
    tasks: Sequence[str] = ALL_TASKS
    points: Sequence[int] = ()
    point_task: str = "WNUT-17"
    features: Sequence[str] = ()
    recipe: str = "small-corpus"


class Task(NamedTuple):
    """A fine-tuning task.

    Attributes:
        program: the file of the program.
        epochs: the number of passes over the training examples.
        metrics: the metrics to report, as named in metrics.jsonl; the first one is the main one.
        flags: further flags of the program.
        percent: whether the metrics are already in percent.
        has_test: whether a tagged test set is evaluated too.
    """

    program: str
    epochs: float
    metrics: Sequence[str]
    flags: Mapping[str, object]
    percent: bool = False
    has_test: bool = False


def glue(name: str, epochs: float, *metrics: str) -> Task:
    """Returns a task of GLUE."""
    flags = {"task_name": name, "max_seq_length": 128, "train_batch_size": 32, "do_predict": False}
    return Task("run_classifier.py", epochs, metrics, flags)


# Epochs are in the range of the paper, 2 to 4, except for SST-2 (67,349 examples) and WNUT-17
# (3,394 sentences). Windows of SQuAD have 128 tokens, because pre-training trains no further
# positions. They overlap by about 30 tokens, the longest answer that is predicted.
_SIZES = {"max_seq_length": 128, "train_batch_size": 32}
_WINDOWS = {"max_seq_length": 128, "doc_stride": 80, "train_batch_size": 32}
TASKS = {
    "CoLA": glue("CoLA", 4, "matthews_corrcoef"),
    "SST-2": glue("SST-2", 1, "accuracy"),
    "MRPC": glue("MRPC", 4, "accuracy", "f1"),
    "STS-B": glue("STS-B", 4, "spearman", "pearson"),
    "RTE": glue("RTE", 4, "accuracy"),
    "WNUT-17": Task("run_ner.py", 6, ("f1",), _SIZES, has_test=True),
    "SQuAD": Task("run_squad.py", 3, ("f1", "exact"), _WINDOWS, percent=True),
}


class Phase(NamedTuple):
    """A phase of pre-training: numbers of steps, of examples of a step, of tokens of an example."""

    steps: int
    batch: int
    length: int


class Unit(NamedTuple):
    """One unit of work of an arm.

    `task` is empty for the pre-training. `features` is a name in FEATURES, or empty for
    fine-tuning. `percent` is the share of the pre-training steps that the model was trained for.
    """

    arm: Arm
    task: str = ""
    seed: int = 0
    percent: int = 100
    features: str = ""

    @property
    def key(self) -> str:
        """The name of the unit's entry in the file of the arm."""
        if not self.task:
            return "pretraining"
        point = "" if self.percent == 100 else f"{self.percent}%/"
        features = f" features {self.features}" if self.features else ""
        return f"{point}{self.task}{features}/seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """The settings of the study.

    Attributes:
        arms: the arms, in the order in which they run.
        seeds: the seeds of each fine-tuning.
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
    passes: int = 2
    vocab_size: int = 16384
    pretraining_rates: Mapping[str, float] = field(default_factory=dict)
    fine_tuning_rates: Mapping[str, float] = field(default_factory=dict)
    held_out: Sequence[str] = ("time_machine.txt.xz", "cranford.txt.xz")
    scale: float = 1.0
    tagger_units: int = 128
    tagger_epochs: float = 15

    def arm(self, name: str) -> Arm:
        """Returns the arm with a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def phases_of(self, arm: Arm) -> list[Phase]:
        """Returns the phases of an arm's pre-training; the program scales steps in the same way."""
        recipe = read_recipe(arm.recipe)
        tables = [{**recipe["flags"], **phase} for phase in recipe["phase"]]
        return [
            Phase(
                max(1, round(table["num_train_steps"] * self.scale)),
                table["train_batch_size"],
                table["data"]["max_seq_length"],
            )
            for table in tables
        ]

    def steps_of(self, arm: Arm) -> int:
        """Returns the number of pre-training steps of all phases."""
        return sum(phase.steps for phase in self.phases_of(arm))

    def checkpoint_interval(self, arm: Arm) -> int:
        """Returns the number of steps between two checkpoints, which are also evaluated."""
        return max(1, self.steps_of(arm) // EVALUATIONS)

    def units_of(self, arm: Arm) -> Iterator[Unit]:
        """Yields the units of an arm in the order in which they run."""
        yield Unit(arm)
        models = [(task, 100, "") for task in arm.tasks]
        models += [("WNUT-17", 100, features) for features in arm.features]
        models += [(arm.point_task, percent, "") for percent in arm.points]
        for task, percent, features in models:
            yield from (Unit(arm, task, seed, percent, features) for seed in self.seeds)

    def settings_of(self, unit: Unit) -> dict[str, object]:
        """Returns the settings that determine a unit's result, as JSON values.

        A unit's entry in a file of results has its settings, so that results of other settings are
        noticed. Folders are not settings.
        """
        if not unit.task:
            return self.pretraining_settings(unit.arm)
        if unit.features:
            epochs = self.tagger_epochs * self.scale
            return {"features": unit.features, "epochs": epochs, "units": self.tagger_units}
        task = TASKS[unit.task]
        return {
            **task.flags,
            "num_train_epochs": task.epochs * self.scale,
            "learning_rate": self.fine_tuning_rates[unit.arm.size],
        }

    def pretraining_settings(self, arm: Arm) -> dict[str, object]:
        """Returns the settings of an arm's pre-training.

        Without an objective, there is no training; the initial weights are those of `mlm_nsp`.
        """
        settings = {
            "bert_config": arm.size,
            "objective": arm.objective or "mlm_nsp",
            "records": "dynamic",
            "held_out": list(self.held_out),
            "vocab_size": self.vocab_size,
            "passes": self.passes,
            "random_seed": 0,
        }
        if arm.objective is None:
            return {**settings, "num_train_steps": 1, "learning_rate": 0.0}
        return {
            **settings,
            "recipe": read_recipe(arm.recipe),
            "recipe_scale": self.scale,
            "learning_rate": self.pretraining_rates[arm.size],
        }


def read_recipe(name: str) -> dict:
    """Returns the content of a recipe of run_pretraining.py: a name, or a path from the root."""
    path = name if name.endswith(".toml") else f"keras_bert/recipes/{name}.toml"
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


_HALF = str(Path(__file__).with_name("half.toml").relative_to(ROOT))
PLAN = Plan(
    (
        Arm("mini-mlm_nsp", "mini", "mlm_nsp", features=FEATURES),
        Arm("mini-mlm", "mini", "mlm", points=(10, 20, 40, 70)),
        Arm("mini-ltr", "mini", "ltr", points=(10, 20, 40, 70)),
        Arm("mini-none", "mini", None),
        Arm("tiny-mlm_nsp", "tiny", "mlm_nsp"),
        Arm("tiny-none", "tiny", None, FLOOR_TASKS),
        Arm("mini-mlm_nsp-half", "mini", "mlm_nsp", FLOOR_TASKS, recipe=_HALF),
        Arm("small-mlm_nsp-half", "small", "mlm_nsp", FLOOR_TASKS, recipe=_HALF),
    ),
    pretraining_rates={"tiny": 2e-3, "mini": 1e-3, "small": 5e-4},
    fine_tuning_rates={"tiny": 3e-4, "mini": 2e-4, "small": 1e-4},
)
