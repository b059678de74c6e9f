r"""Pre-trains BERT on TFRecords, on masked-LM and next-sentence prediction, or left to right.

    keras-bert pretrain --bert_config=tiny.json --input_file=records --output_dir=out

A recipe is a sequence of phases. With --dry_run, their cost is only estimated:

    keras-bert pretrain --recipe=bert-base --dry_run
    keras-bert pretrain --recipe=bert-base --output_dir=out \
        --input_file=records-{max_seq_length}

To resume an interrupted run, run the same command again. The final weights are equal to those of
an uninterrupted run.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from absl import flags as absl_flags
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.pretraining.recipe import RecipePhase, read_recipe
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
    from keras_bert.pretraining.run import Phase

_PARSERS = {
    int: absl_flags.IntegerParser(),
    float: absl_flags.FloatParser(),
    bool: absl_flags.BooleanParser(),
    str: absl_flags.ArgumentParser(),
}


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
    from keras_bert.pretraining.dry_run import dry_run
    from keras_bert.pretraining.run import pretrain
    from keras_bert.training.cluster import worker_index

    runs = [_phase_of(phase) for phase in phases]
    strategy = strategy_of(flags)
    if flags.dry_run:
        print("\n".join(dry_run(runs, strategy)))
        return
    output_dir = Path(flags.output_dir)
    results = pretrain(runs, strategy, output_dir)
    if worker_index(strategy) == 0:
        finish(results, output_dir, flags.export)


def read_phases(flags: FlagValues) -> list[RecipePhase]:
    """Returns the phases of --recipe, or without it a single phase with the values of the flags."""
    defined = own_flags(flags)
    values = {name: flag.value for name, flag in defined.items()}
    phases = [RecipePhase("", values, {})]
    if flags.recipe:
        from data_tools.settings import Settings  # The flags that [data] may set.

        command_line = {
            n: flag.value for n, flag in defined.items() if not flag.using_default_value
        }
        if "bert_config_file" in command_line:  # Setting the alias does not mark the original.
            command_line["bert_config"] = command_line.pop("bert_config_file")
        phases = read_recipe(
            flags.recipe,
            {n: flag.parser for n, flag in defined.items() if n not in FLAGS_NOT_IN_RECIPES},
            {
                field.name: _PARSERS[(get_args(field.type) or (field.type,))[0]]
                for field in fields(Settings)
                if field.name != "user_tokens"  # A recipe has no files of its own.
            },
            Settings,
            values,
            command_line,
            flags.recipe_scale,
        )
    if flags.export and phases[-1].flags["objective"] == "ltr":
        raise InputError(
            "--export: left-to-right models cannot be exported; expected --noexport with "
            "--objective=ltr"
        )
    return phases


def _phase_of(phase: RecipePhase) -> "Phase":
    from keras_bert.pretraining.run import Phase
    from keras_bert.pretraining.settings import PretrainingSettings
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.objective import TrainingSettings

    values = dict(phase.flags)
    values["mixed_precision"] = values["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})
        for kind in (PretrainingSettings, TrainingSettings)
    )
    values["num_warmup_steps"] = settings.warmup_steps(training.num_train_steps)
    record = {name: value for name, value in values.items() if name not in FLAGS_THAT_MAY_CHANGE}
    record["backend"] = BACKEND
    return Phase(settings, training, record, phase.data, phase.continue_optimizer, phase.title)


PROGRAM = Program("pretrain", __doc__, define_flags, main, resumable=True)
