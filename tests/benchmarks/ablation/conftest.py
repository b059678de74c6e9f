"""A study of two arms without its programs."""

import pytest


@pytest.fixture
def ablation(_benchmarks):
    """Returns the modules of the study by name."""
    import importlib
    from types import SimpleNamespace

    names = (
        "claims",
        "corpus",
        "fine_tuning",
        "plan",
        "plots",
        "programs",
        "report",
        "results",
        "study",
    )
    names += ("pretraining", "tagger", "units")
    return SimpleNamespace(**{name: importlib.import_module(f"ablation.{name}") for name in names})


RECIPE = """
[flags]
learning_rate = 1e-3
num_warmup_steps = 1
dropout_prob = 0.0
[[phase]]
num_train_steps = {steps}
train_batch_size = 8
data = {{ max_seq_length = 16, max_predictions_per_seq = 3 }}
[[phase]]
num_train_steps = {steps}
train_batch_size = 4
continue_optimizer = true
data = {{ max_seq_length = 32, max_predictions_per_seq = 5 }}
"""


def write_recipe(folder, steps):
    """Writes a recipe of two phases, each with a number of steps, and returns its path."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(steps=steps))
    return str(path)


@pytest.fixture
def plan(ablation, tmp_path):
    """Returns a plan of two arms, of which the second has features, and one that is optional."""
    arm = ablation.plan.Arm
    return ablation.plan.Plan(
        arms=(
            arm("a", "tiny", "mlm", tasks=("CoLA", "MRPC"), points=(50,), point_tasks=("MRPC",)),
            arm("b", "mini", None, tasks=("MRPC",), features=("last",)),
            arm("extra", "mini", "ltr", tasks=("MRPC",), is_optional=True),
        ),
        seeds=(0, 1),
        recipe=write_recipe(tmp_path, 500),
        pretraining_rates={"tiny": 2e-3, "mini": 1e-3},
        fine_tuning_rates={"tiny": 3e-4, "mini": 2e-4},
    )


class Killed(BaseException):
    """Ends a study like a signal that no code handles."""


class Computed:
    """Stands for the computations of a study; records them, and kills it before a given one."""

    def __init__(self, ablation, kill_at=None):
        self.done, self.trained, self.kill_at = [], set(), kill_at
        self._result = ablation.results.Result
        self.computations = ablation.study.Computations(
            self.pretrain, lambda arm, _: arm.name in self.trained, self.compute, self.compute
        )

    def pretrain(self, arm, *_):
        self._add(f"{arm.name} pretraining")
        self.trained.add(arm.name)
        return self._result({"step": 10, "curve": [], "run": len(self.done)}, 60.0, 90.0)

    def compute(self, unit, *_):
        self._add(f"{unit.arm.name} {unit.key}")
        metrics = ("matthews_corrcoef", "f1", "accuracy")
        scores = dict.fromkeys(metrics, 0.5 + 0.1 * unit.seed)
        figures = {"last": scores, "best": scores}
        if unit.task == "WNUT-17":
            figures["test"] = dict.fromkeys(metrics, 0.3)
        return self._result(figures, 30.0, 40.0)

    def _add(self, name):
        if self.kill_at == len(self.done):
            raise Killed
        self.done.append(name)


def run(ablation, plan, tmp_path, computed, **selected):
    results = ablation.results.Results(tmp_path / "results", plan)
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    selection = ablation.study.Selection(**selected)
    ablation.study.run_study(plan, selection, results, folders, computed.computations)
    return results


ORDER = [
    "a pretraining",
    "a CoLA/seed-0",
    "a CoLA/seed-1",
    "a MRPC/seed-0",
    "a MRPC/seed-1",
    "a 50%/MRPC/seed-0",
    "a 50%/MRPC/seed-1",
    "b pretraining",
    "b MRPC/seed-0",
    "b MRPC/seed-1",
    "b WNUT-17 features last/seed-0",
    "b WNUT-17 features last/seed-1",
]
