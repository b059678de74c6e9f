"""The flags that all fine-tuning programs share: flags in; settings, devices and record out.

A program calls `define` where it defines its own flags, fills in those that are left open
(`take_from_run`, `take`, `take_files`, `complete`), and calls `read` before it imports what needs
TensorFlow.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags, logging

from keras_bert.common.errors import InputError
from keras_bert.programs.program import (
    check_output_dir,
    define_computing,
    define_export,
    start_tensorflow,
)
from keras_bert.tasks.fine_tuning.earlier_run import EarlierRun

if TYPE_CHECKING:
    from keras_bert.tasks.fine_tuning.settings import FineTuningRun

# What is defined here belongs to the program that calls `define`; its --help shows it.
flags.disclaim_key_flags()
FLAGS = flags.FLAGS

# Where a checkpoint is looked for when no flag says it.
_CHECKPOINTS = ("data/*/config.json", "demo/run/model/config.json")

# What may change between a start and its continuation without changing the outcome.
FREE = (
    "export",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
    "worker_timeout",
)


def define(
    *,
    max_seq_length: int = 128,
    train_batch_size: int = 32,
    learning_rate: float = 5e-5,
    num_train_epochs: float = 3.0,
    length_pool: int = 50,
) -> None:
    """Defines the common flags, with a program's own defaults.

    Args:
        max_seq_length: pieces of an example at most.
        train_batch_size: examples a step.
        learning_rate: its peak.
        num_train_epochs: passes over the training examples.
        length_pool: batches whose examples are sorted together.
    """
    flags.DEFINE_string(
        "init_checkpoint",
        "",
        "Model directory, TF1 checkpoint or a run's folder; with --nodo_train, flags of text and "
        "answers are that run's unless given.",
    )
    flags.DEFINE_string("vocab_file", "", "Vocabulary; without it, the checkpoint's.")
    flags.DEFINE_bool("do_lower_case", None, "Lower-case text; without it, as the checkpoint says.")
    flags.DEFINE_integer("max_seq_length", max_seq_length, "Pieces of an example.", lower_bound=3)
    flags.DEFINE_string("output_dir", "", "The run's folder.")
    flags.DEFINE_bool("do_train", True, "Train.")
    flags.DEFINE_bool("do_eval", True, "Score the development set after each epoch, if any.")
    flags.DEFINE_bool("do_predict", True, "Write predictions of the test set, if any.")
    flags.DEFINE_integer("train_batch_size", train_batch_size, "Examples a step.", lower_bound=1)
    flags.DEFINE_integer(
        "eval_batch_size", 32, "Examples a batch where nothing is learnt.", lower_bound=1
    )
    flags.DEFINE_float("learning_rate", learning_rate, "Peak learning rate.", lower_bound=0.0)
    flags.DEFINE_float("num_train_epochs", num_train_epochs, "Passes over the examples.", 0.0)
    flags.DEFINE_integer("num_train_steps", 0, "Training steps; 0: by epochs.", lower_bound=0)
    flags.DEFINE_integer(
        "length_pool", length_pool, "Batches cut by length together; 1: random batches.", 1
    )
    flags.DEFINE_float("warmup_proportion", 0.1, "Share of the steps that warm up.", 0.0)
    flags.DEFINE_float("layer_decay", 1.0, "Learning rate of a layer over that above it.", 0.0)
    flags.DEFINE_bool("bias_correction", True, "Adam's; false as in the paper of BERT.")
    flags.DEFINE_float("weight_decay", 0.01, "AdamW's weight decay.", lower_bound=0.0)
    flags.DEFINE_integer(
        "num_frozen_layers", 0, "Layers kept as they are; 1: the embeddings.", lower_bound=0
    )
    flags.DEFINE_integer(
        "early_stopping_patience", 0, "Epochs without a better score; 0: never.", lower_bound=0
    )
    flags.DEFINE_integer(
        "random_seed", 12345, "Decides weights, data order, dropout.", 0, 2**32 - 1
    )
    flags.DEFINE_list("seeds", [], "Several seeds, a run each, instead of --random_seed.")
    flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.", 1)
    flags.DEFINE_integer("keep_checkpoint_max", 1, "Checkpoints kept.", lower_bound=1)
    flags.DEFINE_integer("log_steps", 100, "Steps between lines of figures.", lower_bound=1)
    define_computing()
    define_export()


def read() -> "FineTuningRun":
    """Reads the common flags; starts TensorFlow, so that bad flags and --help need not wait.

    Returns:
        What they say.

    Raises:
        InputError: flags that do not go together.
    """
    for name in ("init_checkpoint", "output_dir"):
        if not FLAGS[name].value:
            raise InputError(f"--{name} is required and must not be empty")
    check_output_dir(FLAGS.output_dir, FLAGS.init_checkpoint)
    seeds = _seeds()
    start_tensorflow()
    from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
    from keras_bert.training.backend import BACKEND, fastest_precision, make_strategy
    from keras_bert.training.run import TrainingSettings

    own = {flag.name: flag.value for flag in FLAGS.get_flags_for_module("__main__")}
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (FineTuningSettings, TrainingSettings)
    )
    left_out = {*FREE, "seeds"}
    return FineTuningRun(
        settings=settings,
        training=training,
        strategy=make_strategy(
            FLAGS.distribution_strategy,
            FLAGS.num_devices,
            FLAGS.worker_timeout,
            FLAGS.model_parallel,
        ),
        output_dir=Path(FLAGS.output_dir),
        record={name: value for name, value in own.items() if name not in left_out}
        | {"backend": BACKEND},
        seeds=seeds,
    )


def take(name: str, value: object) -> None:
    """Fills in a flag that was left open, and says so.

    Args:
        name: the flag.
        value: what was found for it; nothing is done with an empty one.
    """
    if value:
        logging.info("--%s=%s", name, value)
        FLAGS[name].value = value


def take_from_run(*names: str) -> EarlierRun | None:
    """Fills in flags that the command line leaves open with those of the run to predict with.

    Nothing is taken where there is training, or where --init_checkpoint is not of a run. A flag
    that the run does not tell of, as an older version had none, keeps its default.

    Args:
        names: of the program's own flags, those that say how text becomes input and how outputs
            become answers; --max_seq_length is taken in any case.

    Returns:
        The run, without settings if --init_checkpoint is not of one; None where there is training.

    Raises:
        InputError: the run's files cannot be read, or a setting there is none of the flag's.
    """
    if FLAGS.do_train or not FLAGS.init_checkpoint:
        return None
    run = EarlierRun.of(Path(FLAGS.init_checkpoint))
    kinds = {"int": int, "float": float, "bool": bool}
    taken = []
    for flag in (FLAGS[name] for name in ("max_seq_length", *names)):
        value = run.setting(flag.name, kinds.get(flag.flag_type(), str), None)
        if flag.present or value is None or value == flag.value:
            continue
        try:
            flag.value = flag.parser.parse(value)
        except ValueError as error:
            raise InputError(f"{run.folder / 'run.json'}: {flag.name}: {error}") from None
        taken.append(f"--{flag.name}={value}")
    if taken:
        logging.info("as the run %s: %s", run.folder, " ".join(taken))
    return run


def take_files(folders: Iterable[Path], names: Mapping[str, Sequence[str]]) -> bool:
    """Fills in the file flags that are left open.

    From --data_dir, or, where no flag names any file, from the first folder at hand that has what
    the run needs: a file to train on, or with --nodo_train another one. The files then stand in for
    --data_dir, so that a run goes on however its files were named.

    Args:
        folders: where to look without --data_dir.
        names: {file flag: the names that its file goes by}; --train_file is among them.

    Returns:
        Whether there are files.

    Raises:
        InputError: --data_dir has none of them.
    """
    data_dir = FLAGS.data_dir
    if not data_dir and any(FLAGS[flag].value for flag in names):
        return True
    for folder in [Path(data_dir)] if data_dir else folders:
        found = {
            flag: next((str(folder / name) for name in known if (folder / name).is_file()), "")
            for flag, known in names.items()
        }
        # --data_dir may add to files that flags name; else there must be what a run begins with.
        needed = [path for flag, path in found.items() if FLAGS.do_train == (flag == "train_file")]
        if any(found.values() if data_dir else needed):
            for flag, path in found.items():
                if not FLAGS[flag].value:
                    take(flag, path)
            FLAGS.data_dir = ""
            return True
    if data_dir:
        known = ", ".join(name for some in names.values() for name in some)
        raise InputError(
            f"--data_dir={data_dir}: holds none of the files {known}, and there is no --tfds"
        )
    return False


def complete(no_data: str, default_output_dir: str, help_text: str) -> None:
    """Fills in --init_checkpoint and --output_dir; ends the program if there is too little.

    Args:
        no_data: what is missing beside a checkpoint, such as "no column files", or "".
        default_output_dir: the run's folder where no flag names one.
        help_text: what to put where; {found} in it becomes what is missing.
    """
    if not FLAGS.init_checkpoint:
        take("init_checkpoint", _find_checkpoint())
    missing = [no_data, "" if FLAGS.init_checkpoint else "no checkpoint"]
    if any(missing):
        print(help_text.format(found=" and ".join(filter(None, missing))), file=sys.stderr)
        sys.exit(1)
    if not FLAGS.output_dir:
        take("output_dir", default_output_dir)


def _find_checkpoint() -> str:
    """Returns a model directory that is at hand, or an empty string."""
    found = [path.parent for pattern in _CHECKPOINTS for path in sorted(Path().glob(pattern))]
    return next((str(path) for path in found if (path / "model.safetensors").is_file()), "")


def _seeds() -> list[int]:
    if not FLAGS.seeds:
        return [FLAGS.random_seed]
    given = f"--seeds={','.join(FLAGS.seeds)}"
    if not FLAGS.do_train:
        raise InputError(f"{given} needs --do_train: without it the seed decides nothing")
    if FLAGS["random_seed"].present:
        raise InputError(f"{given} and --random_seed={FLAGS.random_seed}: expected one of them")
    try:
        seeds = [int(seed) for seed in FLAGS.seeds]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32 or len(set(seeds)) < len(seeds):
        raise InputError(
            f"{given}: expected different whole numbers from 0 to 4294967295, by comma"
        )
    return seeds
