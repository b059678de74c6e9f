r"""Pre-trains BERT on TFRecords, on masked-LM and next-sentence prediction, or left to right.

    keras-bert pretrain --bert_config=tiny.json --input_file=records --output_dir=out

A recipe is a sequence of phases. With --dry_run, their cost is only estimated:

    keras-bert pretrain --recipe=bert-base --dry_run
    keras-bert pretrain --recipe=bert-base --output_dir=out \
        --input_file=records-{max_seq_length}

To resume an interrupted run, run the same command again. The final weights are equal to those of
an uninterrupted run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl.flags import Flag, FlagValues

from keras_bert.errors import InputError
from keras_bert.pretraining.recipe import Phase, plan_phases, read_recipe
from keras_bert.programs.compilation_cache import use_compilation_cache
from keras_bert.programs.flags import own_flags
from keras_bert.programs.pretraining_flags import (
    FLAGS_NOT_IN_RECIPES,
    FLAGS_THAT_MAY_CHANGE,
    define_flags,
)
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import (
    check_not_input_folder,
    check_output_dir,
    finish,
    strategy_of,
)
from keras_bert.startup import start_tensorflow

if TYPE_CHECKING:
    from keras_bert.pretraining.run import PhaseRun


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Pre-trains and prints the final metrics; with --dry_run, only prints the estimated cost."""
    reject_arguments(arguments)
    phases = read_phases(flags)
    if not flags.dry_run:
        check_output_dir(flags.output_dir, flags.init_checkpoint)
        names = ("input_file", "eval_file")
        inputs = ",".join(phase.flags[name] for phase in phases for name in names)
        check_not_input_folder(flags.output_dir, map(str.strip, inputs.split(",")))
    use_compilation_cache()
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.pretraining.run import dry_run, pretrain, pretrain_phases
    from keras_bert.training.cluster import worker_index
    from keras_bert.training.objective import TrainingRun

    runs = [_run_of(phase) for phase in phases]
    strategy = strategy_of(flags)
    if flags.dry_run:
        print("\n".join(dry_run(runs, strategy)))
        return
    output_dir = Path(flags.output_dir)
    if flags.recipe:
        results = pretrain_phases(runs, strategy, output_dir)
    else:
        (run,) = runs
        training_run = TrainingRun(run.training, strategy, output_dir, run.record)
        results = pretrain(run.settings, training_run)
    if worker_index(strategy) == 0:
        finish(results, output_dir, flags.export)


def read_phases(flags: FlagValues) -> list[Phase]:
    """Returns the phases of --recipe, or without it a single phase with the values of the flags."""
    own = own_flags(flags)
    values = {name: flag.value for name, flag in own.items()}
    phases = [Phase("", 1, values, {})]
    if flags.recipe:
        phases = _phases_of_recipe(own, values)
    if flags.export and phases[-1].flags["objective"] == "ltr":
        raise InputError(
            "--export: left-to-right models cannot be exported; expected --noexport with "
            "--objective=ltr"
        )
    return phases


def _phases_of_recipe(own: Mapping[str, Flag], values: Mapping[str, Any]) -> list[Phase]:
    from data_tools.settings import Settings  # The flags that [data] may set.

    default = Settings()
    data_flags = {field.name: type(getattr(default, field.name)) for field in fields(Settings)}
    data_flags.pop("user_tokens")  # A recipe has no files of its own.
    parsers = {name: flag.parser for name, flag in own.items() if name not in FLAGS_NOT_IN_RECIPES}
    given = {name: flag.value for name, flag in own.items() if not flag.using_default_value}
    if "bert_config_file" in given:  # Setting the alias does not mark the original as given.
        given["bert_config"] = given.pop("bert_config_file")
    phases = read_recipe(values["recipe"], parsers, Settings, data_flags)
    return plan_phases(phases, values, given, values["recipe_scale"])


def _run_of(phase: Phase) -> "PhaseRun":
    from keras_bert.pretraining.run import PhaseRun
    from keras_bert.pretraining.settings import PretrainingSettings
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.objective import TrainingSettings

    own = dict(phase.flags)
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (PretrainingSettings, TrainingSettings)
    )
    own["num_warmup_steps"] = settings.warmup_steps(training.num_train_steps)
    record = {name: value for name, value in own.items() if name not in FLAGS_THAT_MAY_CHANGE}
    return PhaseRun(phase, settings, training, {**record, "backend": BACKEND})


PROGRAM = Program("pretrain", __doc__, define_flags, main, resumable=True)
