r"""Pre-trains BERT on TFRecords, on masked-LM and next-sentence prediction, or left to right.

    keras-bert pretrain --bert_config=tiny --input_file=records --output_dir=out

Without a recipe, the configs tiny, mini and small are trained for the 8,000 steps of the recipe
small-corpus, with its learning rates (2e-3, 1e-3 and 5e-4) and without dropout, by default. Their
records should have 32 tokens: with 128 from the start, mini did not learn to use the context.
--recipe=small-corpus trains with 32 tokens, and then with 128.

A recipe is a sequence of phases. With --dry_run, their cost is only estimated:

    keras-bert pretrain --recipe=bert-base --dry_run
    keras-bert pretrain --recipe=bert-base --output_dir=out \
        --input_file=records-{max_seq_length}

To resume an interrupted run, run the same command again. The final weights are equal to those of
an uninterrupted run.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from absl import logging
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.files import check_not_input_folder
from keras_bert.options import option, same_as
from keras_bert.pretraining.recipe import Phase, phase_of, read_recipe
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.programs import runs
from keras_bert.programs.options import recorded, values_of
from keras_bert.programs.program import Program, call_with, reject_arguments
from keras_bert.startup import start_tensorflow
from keras_bert.training.settings import Devices, TrainingSettings

# The learning rates of small models by the recipe small-corpus (docs/guides/recipes.md).
_SMALL = {"tiny": 2e-3, "mini": 1e-3, "small": 5e-4}


@dataclass(frozen=True)
class PretrainOptions(runs.RunOptions):
    """The options of the program that are not settings of the run."""

    output_dir: str = same_as(runs.RunOptions, "output_dir", unless="dry_run")
    recipe: str = option(
        "",
        "Recipe of training phases: a TOML file, or bert-base, bert-large, bert-large-lamb, "
        "budget-24h or small-corpus.",
        needs="do_train",
        may_change=True,
        group="training",
    )
    recipe_scale: float = option(
        1.0,
        "Factor by which the numbers of steps of a recipe are multiplied.",
        min=0,
        needs="recipe",
        may_change=True,
        group="training",
    )
    dry_run: bool = option(
        False,
        "Only print an estimate of the memory and the operations of the run; no files are written.",
        may_change=True,
    )


def pretrain(
    records: str | os.PathLike | Sequence[str | os.PathLike],
    config: str | os.PathLike = "",
    *,
    output_dir: str | os.PathLike = "",
    **settings: Any,
) -> dict[str, float]:
    """Pre-trains a BERT on TFRecords, as `keras-bert pretrain` does; the same call resumes a run.

    Example:
        keras_bert.pretrain("records", "tiny", output_dir="out", num_train_steps=10_000)
        filler = keras_bert.MaskFiller.from_pretrained("out")

    Args:
        records: folders, files or globs of records of `keras-bert create-pretraining-data`.
        config: the config of a new model: `tiny`, `mini`, `small`, `medium`, `base` or `large`, or
            a JSON file. Not needed with `init_checkpoint` or `recipe`.
        output_dir: the folder of the run.
        **settings: flags of the program, such as `num_train_steps` and `learning_rate`.

    Returns:
        {metric: value} as in results.json, such as "masked_lm_loss"; {} with `dry_run`.
    """
    names = {"input_file": "records", "bert_config": "config"}
    arguments = {"records": records, "config": config, "output_dir": output_dir}
    # An empty value would replace that of a recipe.
    passed = {name: value for name, value in arguments.items() if value}
    return call_with(PROGRAM, names, **passed, **settings)


def main(flags: FlagValues, arguments: Sequence[str]) -> dict[str, float]:
    """Pre-trains and prints the final metrics; with --dry_run, only prints the estimated cost."""
    reject_arguments(arguments)
    runs.check_export(flags)
    phases = read_phases(flags)
    first = phases[0].settings
    if not (first.bert_config or first.init_checkpoint):
        raise InputError(
            "--bert_config is required, or --init_checkpoint or --recipe; the shortest command is: "
            f"{PROGRAM.example}"
        )
    if flags.dry_run and flags.distribution_strategy == "multi_worker_mirrored":
        raise InputError(
            "--dry_run uses only this machine; expected another --distribution_strategy than "
            "multi_worker_mirrored"
        )
    if not flags.dry_run:
        runs.check_output_dir(flags.output_dir, flags.init_checkpoint)
        names = ("input_file", "eval_file")
        inputs = ",".join(phase.record[name] for phase in phases for name in names)
        check_not_input_folder(flags.output_dir, map(str.strip, inputs.split(",")))
    runs.use_compilation_cache()
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.pretraining import run
    from keras_bert.training.cluster import worker_index

    phases = [_with_defaults(phase, flags) for phase in phases]
    strategy = runs.make_strategy(flags)
    if flags.dry_run:
        print("\n".join(run.dry_run(phases, strategy)))
        return {}
    output_dir = Path(flags.output_dir)
    results = run.pretrain(phases, strategy, output_dir)
    if worker_index(strategy) == 0:
        runs.finish(results, output_dir, flags.export)
    return results


def read_phases(flags: FlagValues) -> list[Phase]:
    """Returns the phases of --recipe, or without it a single phase with the values of the flags."""
    rate = _SMALL.get(flags.bert_config.removesuffix(".json"))
    is_bundled = not (flags.recipe or flags.init_checkpoint or Path(flags.bert_config).is_file())
    if rate and is_bundled:
        defaults = {"num_train_steps": 8000, "learning_rate": rate, "dropout_prob": 0.0}
        for name, value in defaults.items():
            if not flags[name].present:
                flags[name].value = value
                logging.info("Default for %s: --%s=%g", flags.bert_config, name, value)
    values = values_of(flags)
    phases = [phase_of(values)]
    if flags.recipe:
        from data_tools.settings import Settings  # The flags that [data] may set.

        present = {name: value for name, value in values.items() if flags[name].present}
        phases = read_recipe(flags.recipe, Settings, values, present, flags.recipe_scale)
    if flags.export and phases[-1].settings.objective == "ltr":
        raise InputError(
            "--export: left-to-right models cannot be exported; expected --noexport with "
            "--objective=ltr"
        )
    return phases


def _with_defaults(phase: Phase, flags: FlagValues) -> Phase:
    """Replaces the values of flags that depend on the device or on others, and selects records."""
    from keras_bert.training.backend import BACKEND, fastest_precision

    precision = phase.settings.mixed_precision or fastest_precision()
    warmup = phase.settings.warmup_steps(phase.training.num_train_steps)
    values = {**phase.record, "mixed_precision": precision, "num_warmup_steps": warmup}
    return replace(
        phase,
        settings=replace(phase.settings, mixed_precision=precision),
        record={**recorded(flags, values), "backend": BACKEND},
    )


PROGRAM = Program(
    "pretrain",
    __doc__,
    (PretrainOptions, PretrainingSettings, TrainingSettings, Devices),
    main,
    resumable=True,
    defaults={"mixed_precision": None},
)
