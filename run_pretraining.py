r"""Pre-trains BERT on TFRecords: masked-LM and next-sentence prediction, or left to right.

    python run_pretraining.py --bert_config=tiny.json --input_file=records --output_dir=out

A recipe runs phases one after the other; with --dry_run it says what that would cost:

    python run_pretraining.py --recipe=recipes/bert-base.toml --dry_run
    python run_pretraining.py --recipe=recipes/bert-base.toml --output_dir=out \
        --input_file=records-{max_seq_length}

The same command again continues an interrupted run and ends at the same weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs.program import (
    check_output_dir,
    define_computing,
    define_export,
    finish,
    no_arguments,
    require,
    run,
    start_tensorflow,
)
from keras_bert.tasks.pretraining.recipe import Phase, plan_phases, read_recipe

FLAGS = flags.FLAGS

flags.DEFINE_string("recipe", "", "TOML file of phases, such as recipes/bert-base.toml.")
flags.DEFINE_float("recipe_scale", 1.0, "Multiplies a recipe's steps.", lower_bound=0.0)
flags.DEFINE_bool("dry_run", False, "Say what it would cost, from measured steps; write nothing.")
flags.DEFINE_string(
    "input_file",
    "",
    "Training records: folders, files or globs, by comma; a recipe fills in {max_seq_length}.",
)
flags.DEFINE_string("eval_file", "", "Held-out records; without them, some training records.")
flags.DEFINE_string("output_dir", "", "The run's folder.")
flags.DEFINE_string("bert_config", "", "JSON file, or tiny, mini, small, medium, base, large.")
flags.DEFINE_alias("bert_config_file", "bert_config")
flags.DEFINE_string("vocab_file", "", "Vocabulary; without it, the one beside the records.")
flags.DEFINE_bool("do_lower_case", None, "Casing; by default what records say, or pieces show.")
flags.DEFINE_string("init_checkpoint", "", "A checkpoint of any kind, or a run's folder.")
flags.DEFINE_enum(
    "objective",
    None,
    ["mlm_nsp", "mlm", "ltr"],
    "Masked pieces and next sentences, masked pieces alone, or left to right: each next piece by "
    "those before it. By default what the records hold.",
)
flags.DEFINE_bool("do_train", True, "Train.")
flags.DEFINE_bool("do_eval", True, "Evaluate at the end; with --eval_file at each checkpoint too.")
flags.DEFINE_integer("max_seq_length", 0, "Refuse records of another length.", lower_bound=0)
flags.DEFINE_integer(
    "max_predictions_per_seq", 0, "Refuse records of another number.", lower_bound=0
)
flags.DEFINE_integer("train_batch_size", 32, "Examples a step, in all.", lower_bound=1)
flags.DEFINE_integer(
    "batch_ramp_steps",
    0,
    "Steps over which a step's micro-batches grow from one to --gradient_accumulation_steps.",
    lower_bound=0,
)
flags.DEFINE_float("dropout_prob", None, "Dropout in training, if not the config's.", 0.0, 1.0)
flags.DEFINE_integer("eval_batch_size", 32, "Examples a batch of an evaluation.", lower_bound=1)
flags.DEFINE_integer(
    "max_eval_steps",
    0,
    "Batches of an evaluation; 0: all, of training records 100,000 examples.",
    lower_bound=0,
)
flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "The optimizer.")
flags.DEFINE_float("learning_rate", 1e-4, "Peak learning rate.", lower_bound=0.0)
flags.DEFINE_integer("num_train_steps", 100_000, "Training steps.", lower_bound=1)
flags.DEFINE_integer("num_warmup_steps", 10_000, "Steps of linear warm-up.", lower_bound=0)
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("keep_checkpoint_max", 3, "Checkpoints kept.", lower_bound=1)
flags.DEFINE_integer("log_steps", 100, "Steps between lines of figures.", lower_bound=1)
flags.DEFINE_integer("random_seed", 12345, "Decides weights, data order and dropout.", 0, 2**32 - 1)
define_computing()
define_export()

# What may change between a start and its continuation without changing the outcome.
FREE = (
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
# What is a user's, a machine's or this program's, not a recipe's.
NOT_OF_A_RECIPE = (
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


def main(argv: Sequence[str]) -> None:
    """Reads the flags, pre-trains or says what that would cost, and prints the final figures."""
    no_arguments(argv)
    phases = read_phases()
    if not FLAGS.dry_run:
        check_output_dir(FLAGS.output_dir, FLAGS.init_checkpoint)
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.tasks.pretraining.dry_run import dry_run
    from keras_bert.tasks.pretraining.phases import PhaseRun, pretrain_phases
    from keras_bert.tasks.pretraining.run import pretrain
    from keras_bert.tasks.pretraining.settings import PretrainingSettings
    from keras_bert.training.backend import BACKEND, fastest_precision, make_strategy
    from keras_bert.training.cluster import worker_index
    from keras_bert.training.run import TrainingRun, TrainingSettings

    runs = []
    for phase in phases:
        own = dict(phase.flags)
        own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
        settings, training = (
            kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
            for kind in (PretrainingSettings, TrainingSettings)
        )
        record = {name: value for name, value in own.items() if name not in FREE}
        record["backend"] = BACKEND
        runs.append(PhaseRun(phase, settings, training, record))
    strategy = make_strategy(
        FLAGS.distribution_strategy, FLAGS.num_devices, FLAGS.worker_timeout, FLAGS.model_parallel
    )
    if FLAGS.dry_run:
        for line in dry_run(runs, strategy):
            print(line, flush=True)
        return
    output_dir = Path(FLAGS.output_dir)
    if FLAGS.recipe:
        results = pretrain_phases(runs, strategy, output_dir)
    else:
        results = pretrain(settings, TrainingRun(training, strategy, output_dir, record))
    if worker_index(strategy) == 0:
        finish(results, output_dir, FLAGS.export)


def read_phases() -> list[Phase]:
    """Returns the phases that the flags ask for: those of the recipe, or one of the flags alone."""
    own = {flag.name: flag for flag in FLAGS.get_flags_for_module("__main__")}
    values = {name: flag.value for name, flag in own.items()}
    phases = [Phase("", 1, values, {})]
    if FLAGS.recipe:
        phases = phases_of_recipe(own, values)
    if FLAGS.export and phases[-1].flags["objective"] == "ltr":
        raise InputError(
            "--objective=ltr has nothing to --export: a left-to-right model is not served"
        )
    return phases


def phases_of_recipe(own: Mapping[str, flags.Flag], values: Mapping[str, Any]) -> list[Phase]:
    """Returns the phases of --recipe, with this program's flags and their values filled in."""
    from data_tools.settings import Settings  # What [data] may say.

    default = Settings()
    data_flags = {field.name: type(getattr(default, field.name)) for field in fields(Settings)}
    parsers = {name: flag.parser for name, flag in own.items() if name not in NOT_OF_A_RECIPE}
    given = {name: flag.value for name, flag in own.items() if not flag.using_default_value}
    if "bert_config_file" in given:  # An alias, of which the flag itself does not know.
        given["bert_config"] = given.pop("bert_config_file")
    phases = read_recipe(FLAGS.recipe, parsers, Settings, data_flags)
    return plan_phases(phases, values, given, FLAGS.recipe_scale)


def only_with_a_recipe(values: Mapping[str, Any]) -> bool:
    """Tells whether --recipe_scale has a recipe to scale, and a recipe is trained."""
    return values["do_train"] if values["recipe"] else values["recipe_scale"] == 1.0


def measures_one_machine(values: Mapping[str, Any]) -> bool:
    """Tells whether a dry run has one machine to measure."""
    return not (values["dry_run"] and values["distribution_strategy"] == "multi_worker_mirrored")


if __name__ == "__main__":
    require("input_file", "output_dir", unless="dry_run")
    flags.register_multi_flags_validator(
        ["recipe", "recipe_scale", "do_train"],
        only_with_a_recipe,
        message="--recipe_scale needs a --recipe, and --recipe needs --do_train",
    )
    flags.register_multi_flags_validator(
        ["dry_run", "distribution_strategy"],
        measures_one_machine,
        message="--dry_run measures this machine alone, not those of multi_worker_mirrored",
    )
    run(main, goes_on=True)
