r"""Pre-trains BERT on TFRecords: masked-LM and next-sentence prediction, or left to right.

    keras-bert pretrain --bert_config=tiny.json --input_file=records --output_dir=out

A recipe is a sequence of phases; --dry_run reports what it would cost:

    keras-bert pretrain --recipe=bert-base --dry_run
    keras-bert pretrain --recipe=bert-base --output_dir=out \
        --input_file=records-{max_seq_length}

To resume an interrupted run, run the same command again; the final weights are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl.flags import Flag, FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.programs.flags import (
    MAX_BATCH_SIZE,
    MAX_REPEATS,
    MAX_SEQ_LENGTH,
    Definitions,
    own_flags,
)
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import (
    check_not_input_folder,
    check_output_dir,
    define_computing,
    define_export,
    finish,
    strategy_of,
)
from keras_bert.tasks.pretraining.recipe import Phase, plan_phases, read_recipe

if TYPE_CHECKING:
    from keras_bert.tasks.pretraining.phases import PhaseRun


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "recipe",
        "",
        "Recipe of training phases: a TOML file, or bert-base, bert-large, bert-large-lamb or "
        "budget-24h.",
    )
    define.number(
        "recipe_scale",
        1.0,
        "Factor by which the numbers of steps of a recipe are multiplied.",
        0.0,
        MAX_REPEATS,
    )
    define.boolean(
        "dry_run",
        False,
        "Only measure a few steps and print the estimated cost of the run; no files are written.",
    )
    define.string(
        "input_file",
        "",
        "Training records: comma-separated folders, files or globs. With --recipe, "
        "{max_seq_length} is replaced by the length of each phase.",
    )
    define.string(
        "eval_file", "", "Held-out records for evaluation. Default: some of the training records."
    )
    define.string("output_dir", "", "Folder for all files of the run.")
    define.string(
        "bert_config", "", "Model config: a JSON file, or tiny, mini, small, medium, base or large."
    )
    define.alias("bert_config_file", "bert_config")
    define.string(
        "vocab_file", "", "Vocabulary file. Default: the one in the folder of the records."
    )
    define.boolean(
        "do_lower_case",
        None,
        "Whether text is lower-cased. Default: as in the records; otherwise derived from the "
        "vocabulary.",
    )
    define.string(
        "init_checkpoint",
        "",
        "Checkpoint to start from, in any format, or run folder. Default: random weights.",
    )
    define.enum(
        "objective",
        None,
        ["mlm_nsp", "mlm", "ltr"],
        "mlm_nsp: masked LM and next-sentence prediction; mlm: masked LM only; ltr: left-to-right "
        "language model. Default: the objective that the records were created for.",
    )
    define.boolean("do_train", True, "Whether to train.")
    define.boolean(
        "do_eval",
        True,
        "Whether to evaluate at the end of training and, with --eval_file, at each checkpoint.",
    )
    define.integer(
        "max_seq_length",
        0,
        "Expected sequence length of the records; 0: any. Other records are rejected.",
        0,
        MAX_SEQ_LENGTH,
    )
    define.integer(
        "max_predictions_per_seq",
        0,
        "Expected number of predictions per sequence in the records; 0: any. Other records are "
        "rejected.",
        0,
        MAX_SEQ_LENGTH,
    )
    define.integer(
        "train_batch_size",
        32,
        "Number of examples per training step, on all devices together.",
        1,
        MAX_BATCH_SIZE,
    )
    define.integer(
        "batch_ramp_steps",
        0,
        "Number of steps over which the micro-batches per step grow from one to "
        "--gradient_accumulation_steps; 0: no growth.",
        lower_bound=0,
    )
    define.number(
        "dropout_prob",
        None,
        "Dropout rate in training. Default: that of the model config.",
        0.0,
        1.0,
    )
    define.integer(
        "eval_batch_size", 32, "Number of examples per evaluation batch.", 1, MAX_BATCH_SIZE
    )
    define.integer(
        "max_eval_steps",
        0,
        "Maximum number of evaluation batches; 0: all of --eval_file, or 100,000 training "
        "examples, but at most 5% of the training time.",
        lower_bound=0,
    )
    define.enum("optimizer", "adamw", ["adamw", "lamb"], "Optimizer.")
    define.number("learning_rate", 1e-4, "Peak learning rate.", lower_bound=0.0)
    define.integer("num_train_steps", 100_000, "Number of training steps.", lower_bound=1)
    define.integer(
        "num_warmup_steps",
        None,
        "Number of steps in which the learning rate increases linearly to its peak. Default: 1% of "
        "the training steps.",
        lower_bound=0,
    )
    define.integer(
        "save_checkpoints_steps", 1000, "Number of steps between two checkpoints.", lower_bound=1
    )
    define.integer("keep_checkpoint_max", 3, "Number of latest checkpoints to keep.", lower_bound=1)
    define.integer(
        "log_steps", 100, "Number of steps between two log lines of metrics.", lower_bound=1
    )
    define.integer(
        "random_seed", 12345, "Seed for initial weights, data order and dropout.", 0, 2**32 - 1
    )
    define_computing(define)
    define_export(define)
    define.require("input_file", "output_dir", unless="dry_run")
    define.check(
        ["recipe", "recipe_scale", "do_train"],
        _recipe_flags_are_valid,
        "--recipe_scale requires --recipe, and --recipe requires --do_train",
    )
    define.check(
        ["dry_run", "distribution_strategy"],
        _dry_run_uses_one_machine,
        "--dry_run measures only this machine; expected another --distribution_strategy than "
        "multi_worker_mirrored",
    )


# Flags that do not change the result, so they may differ when a run is resumed.
FLAGS_THAT_MAY_CHANGE = (
    "recipe",
    "recipe_scale",
    "dry_run",
    "export",
    "bert_config_file",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
    "worker_timeout",
)
# Flags that a recipe cannot set, since they depend on the user, the machine or this program.
FLAGS_NOT_IN_RECIPES = (
    "recipe",
    "recipe_scale",
    "dry_run",
    "input_file",
    "eval_file",
    "output_dir",
    "bert_config_file",
    "vocab_file",
    "do_lower_case",
    "init_checkpoint",
    "do_train",
    "export",
    "distribution_strategy",
    "num_devices",
    "model_parallel",
    "worker_timeout",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Pre-trains and prints the final metrics; with --dry_run, reports the cost instead."""
    reject_arguments(arguments)
    phases = read_phases(flags)
    if not flags.dry_run:
        check_output_dir(flags.output_dir, flags.init_checkpoint)
        entries = f"{flags.input_file},{flags.eval_file}".split(",")
        check_not_input_folder(flags.output_dir, map(str.strip, entries))
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.tasks.pretraining.dry_run import dry_run
    from keras_bert.tasks.pretraining.phases import pretrain_phases
    from keras_bert.tasks.pretraining.run import pretrain
    from keras_bert.training.cluster import worker_index
    from keras_bert.training.run import TrainingRun

    runs = [_run_of(phase) for phase in phases]
    strategy = strategy_of(flags)
    if flags.dry_run:
        for line in dry_run(runs, strategy):
            print(line, flush=True)
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
    """Returns the phases of the recipe, or a single phase with the flags."""
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
    parsers = {name: flag.parser for name, flag in own.items() if name not in FLAGS_NOT_IN_RECIPES}
    given = {name: flag.value for name, flag in own.items() if not flag.using_default_value}
    if "bert_config_file" in given:  # Setting the alias does not mark the original as given.
        given["bert_config"] = given.pop("bert_config_file")
    phases = read_recipe(values["recipe"], parsers, Settings, data_flags)
    return plan_phases(phases, values, given, values["recipe_scale"])


def _run_of(phase: Phase) -> "PhaseRun":
    from keras_bert.tasks.pretraining.phases import PhaseRun
    from keras_bert.tasks.pretraining.settings import PretrainingSettings
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.run import TrainingSettings

    own = dict(phase.flags)
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (PretrainingSettings, TrainingSettings)
    )
    own["num_warmup_steps"] = settings.warmup_steps(training.num_train_steps)
    record = {name: value for name, value in own.items() if name not in FLAGS_THAT_MAY_CHANGE}
    return PhaseRun(phase, settings, training, {**record, "backend": BACKEND})


def _recipe_flags_are_valid(values: Mapping[str, Any]) -> bool:
    return values["do_train"] if values["recipe"] else values["recipe_scale"] == 1.0


def _dry_run_uses_one_machine(values: Mapping[str, Any]) -> bool:
    return not (values["dry_run"] and values["distribution_strategy"] == "multi_worker_mirrored")


PROGRAM = Program("pretrain", __doc__, define_flags, main, resumable=True)
