"""Defines and reads the flags that all fine-tuning programs share.

With --nodo_train, a main function first takes flags from the run of --init_checkpoint
(`use_flags_of_run`). Then it calls `read`, which imports TensorFlow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging
from absl.flags import FlagValues

from keras_bert.checkpoints.earlier_run import EarlierRun
from keras_bert.errors import InputError
from keras_bert.files import value_of
from keras_bert.programs.compilation_cache import use_compilation_cache
from keras_bert.programs.flags import (
    MAX_BATCH_SIZE,
    MAX_REPEATS,
    MAX_SEQ_LENGTH,
    Definitions,
    own_flags,
)
from keras_bert.programs.run_flags import (
    check_not_input_folder,
    check_output_dir,
    define_computing,
    define_export,
    strategy_of,
)
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.defaults import DEFAULTS, TrainingDefaults

if TYPE_CHECKING:
    from keras_bert.tasks.fine_tuning.settings import FineTuningRun

_INPUT_FLAGS = ("data_dir", "train_file", "eval_file", "test_file", "predict_file")

# Flags that do not change the result, so they may differ when a run is resumed.
FLAGS_THAT_MAY_CHANGE = (
    "export",
    "output_dir",
    "log_steps",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
    "worker_timeout",
)

# absl's name for the type of flags with comma-separated values.
_LIST = "comma separated list of strings"
_TEACHER_FLAGS = ("teacher", "distillation_weight", "temperature")
# Flags of later versions. So that runs of earlier versions can be resumed, run.json lacks them if
# they have their default; the flags of a teacher are there if --teacher is given.
_NEW_FLAGS = (*_TEACHER_FLAGS, "long_text", "window_stride", "window_pooling")


def define_flags(
    define: Definitions,
    defaults: TrainingDefaults = DEFAULTS["classification"],
    max_seq_length: int = 128,
) -> None:
    """Defines the flags of all fine-tuning programs, with the defaults of a task."""
    define.string(
        "init_checkpoint",
        "",
        "Model directory, TF1 checkpoint, KerasHub preset or run folder to start from. If it is a "
        "run folder, --nodo_train uses that run's flags about text and answers.",
    )
    define.string("vocab_file", "", "Vocabulary file. Default: the vocabulary of the checkpoint.")
    define.boolean(
        "do_lower_case", None, "Whether to lower-case text. Default: as stored in the checkpoint."
    )
    define.integer(
        "max_seq_length",
        max_seq_length,
        "Maximum number of tokens in an example.",
        3,
        MAX_SEQ_LENGTH,
    )
    define.string("output_dir", "", "Folder for all files of the run.")
    define.boolean("do_train", True, "Whether to train.")
    define.boolean(
        "do_eval", True, "Whether to evaluate on the development set, if any, after each epoch."
    )
    define.boolean("do_predict", True, "Whether to write predictions for the test set, if any.")
    define.integer(
        "train_batch_size",
        defaults.batch_size,
        "Number of examples per training step.",
        1,
        MAX_BATCH_SIZE,
    )
    define.integer(
        "eval_batch_size",
        32,
        "Number of examples per batch in evaluation and prediction.",
        1,
        MAX_BATCH_SIZE,
    )
    define.number("learning_rate", defaults.learning_rate, "Peak learning rate.", lower_bound=0.0)
    define.number(
        "num_train_epochs",
        float(defaults.epochs),
        "Number of passes over the training examples.",
        0.0,
        MAX_REPEATS,
    )
    define.integer(
        "num_train_steps",
        0,
        "Number of training steps; 0: computed from --num_train_epochs.",
        lower_bound=0,
    )
    define.integer(
        "length_pool",
        defaults.length_pool,
        "Number of batches whose examples are sorted by length together, which reduces padding; 1: "
        "no sorting.",
        1,
    )
    define.number(
        "warmup_proportion",
        defaults.warmup_proportion,
        "Fraction of the training steps in which the learning rate increases to its peak.",
        0.0,
    )
    define.number(
        "layer_decay",
        1.0,
        "Ratio of the learning rate of a layer to that of the layer above it; 1: equal rates.",
        0.0,
    )
    define.boolean(
        "bias_correction", True, "Whether Adam corrects its bias; the published BERT does not."
    )
    define.number("weight_decay", defaults.weight_decay, "Weight decay of AdamW.", lower_bound=0.0)
    define.integer(
        "num_frozen_layers",
        0,
        "Number of layers that are not trained, from the bottom; 1: only the embeddings.",
        lower_bound=0,
    )
    define.integer(
        "early_stopping_patience",
        0,
        "Number of epochs without a better score after which training stops; 0: train all epochs.",
        lower_bound=0,
    )
    define.integer(
        "random_seed", defaults.seed, "Seed for new weights, data order and dropout.", 0, 2**32 - 1
    )
    define.integer("save_checkpoints_steps", 1000, "Number of steps between two checkpoints.", 1)
    define.integer("keep_checkpoint_max", 1, "Number of latest checkpoints to keep.", lower_bound=1)
    define.integer(
        "log_steps", 100, "Number of steps between two log lines of metrics.", lower_bound=1
    )
    define_computing(define)
    define_export(define)
    define.require("init_checkpoint", "output_dir")


def define_long_text(define: Definitions) -> None:
    """Defines the flags for texts that are longer than the window."""
    define.enum(
        "long_text",
        "truncate",
        ["truncate", "head_tail", "windows"],
        "For single texts with more than --max_seq_length tokens: remove the end or the middle, or "
        "split the text into overlapping windows whose logits or vectors are pooled.",
    )
    define.integer(
        "window_stride",
        0,
        "windows: number of tokens between the starts of two windows; 0: half of a window.",
        0,
    )


def long_text_flags(flags: FlagValues) -> tuple[str, ...]:
    """Returns the flags of `define_long_text` whose values may come from an earlier run.

    The others depend on --long_text, so there are none if it is on the command line.
    """
    names = [name for name in ("long_text", "window_stride", "window_pooling") if name in flags]
    return () if flags["long_text"].present else tuple(names)


def define_teacher(define: Definitions) -> None:
    """Defines the flags of programs whose model can learn from a teacher."""
    define.string(
        "teacher",
        "",
        "Fine-tuned model of the same task, with the same vocabulary and labels, whose outputs the "
        "model learns in addition to the labels (distillation).",
    )
    define.number(
        "distillation_weight",
        0.9,
        "Share of the teacher's outputs in the loss, from 0 to 1; the labels have the rest.",
        0.0,
        1.0,
    )
    define.number(
        "temperature", 1.0, "Divides the logits in the loss of the teacher's outputs.", 0.01, 50.0
    )


def use(flags: FlagValues, name: str, value: object) -> None:
    """Sets a flag to a value and logs it; does nothing if the value is empty."""
    if value:
        logging.info("--%s=%s", name, value)
        flags[name].value = value


def use_flags_of_run(flags: FlagValues, *names: str) -> EarlierRun | None:
    """Sets --max_seq_length and the flags `names` to the settings of the model.

    They are saved with the model, or recorded by the run that trained it. This applies only with
    --nodo_train, and not to flags on the command line. Flags that are not recorded, as in an older
    run or in a model of another library, keep their default.

    Returns:
        The run, without settings if --init_checkpoint is not of a run; None with --do_train.

    Raises:
        InputError: the run's files cannot be read, or contain a value that the flag rejects.
    """
    if flags.do_train:
        return None
    model = Path(flags.init_checkpoint)
    run = EarlierRun.of(model)
    recorded = run.recorded(model)
    kinds = {"int": int, "float": float, "bool": bool, _LIST: list}
    used = []
    for flag in (flags[name] for name in ("max_seq_length", *names)):
        kind = kinds.get(flag.flag_type(), str)
        values = [(value_of(*each, flag.name, kind, None), each[0]) for each in recorded]
        value, file = next((each for each in values if each[0] is not None), (None, None))
        if flag.present or value is None or value == flag.value:
            continue
        try:
            flag.value = flag.parser.parse([*map(str, value)] if kind is list else value)
        except ValueError as error:
            raise InputError(f"{file}: {flag.name}: {error}") from None
        shown = ",".join(map(str, value)) if isinstance(value, list) else value
        used.append(f"--{flag.name}={shown}")
    if used:
        logging.info("Using the settings of %s: %s", model, " ".join(used))
    return run


def use_data_dir(flags: FlagValues, names: Mapping[str, Sequence[str]]) -> None:
    """Sets the file flags that the command line does not set to the files in --data_dir, if given.

    --data_dir is then cleared, so that the same run can be resumed with file flags instead.

    Args:
        flags: the flags.
        names: the possible file names for each file flag.

    Raises:
        InputError: --data_dir contains none of the files.
    """
    if not flags.data_dir:
        return
    folder = Path(flags.data_dir)
    found = {
        flag: next((str(folder / name) for name in known if (folder / name).is_file()), "")
        for flag, known in names.items()
    }
    if not any(found.values()):
        known = ", ".join(name for some in names.values() for name in some)
        raise InputError(
            f"--data_dir={folder}: contains none of the expected files {known}. Pass --tfds if it "
            "is the data_dir of TFDS"
        )
    for flag, path in found.items():
        if not flags[flag].value:
            use(flags, flag, path)
    flags.data_dir = ""


def read(flags: FlagValues) -> "FineTuningRun":
    """Imports TensorFlow, and creates a run from the flags of `define_flags`.

    Raises:
        InputError: flags are missing or contradict each other.
    """
    check_output_dir(flags.output_dir, flags.init_checkpoint)
    check_not_input_folder(
        flags.output_dir, [flags[name].value for name in _INPUT_FLAGS if name in flags]
    )
    use_compilation_cache()
    start_tensorflow()  # Imported after the checks, which do not need it.
    from keras_bert.tasks.fine_tuning.settings import FineTuningRun, FineTuningSettings
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.objective import TrainingSettings

    own = {name: flag.value for name, flag in own_flags(flags).items()}
    own["mixed_precision"] = own["mixed_precision"] or fastest_precision()
    settings, training = (
        kind(**{field.name: own[field.name] for field in fields(kind) if field.name in own})
        for kind in (FineTuningSettings, TrainingSettings)
    )
    skipped = set(FLAGS_THAT_MAY_CHANGE)
    given_teacher = _teacher(flags)
    skipped |= {
        name
        for name in _NEW_FLAGS
        if name in flags
        and flags[name].value == flags[name].default
        and not (given_teacher and name in _TEACHER_FLAGS)
    }
    record = {name: value for name, value in own.items() if name not in skipped}
    return FineTuningRun(
        **given_teacher,
        settings=settings,
        training=training,
        strategy=strategy_of(flags),
        output_dir=Path(flags.output_dir),
        record={**record, "backend": BACKEND},
    )


def _teacher(flags: FlagValues) -> dict[str, object]:
    """Returns the fields of FineTuningRun that describe the teacher; empty without one."""
    given = [name for name in _TEACHER_FLAGS if name in flags and flags[name].present]
    if not given:
        return {}
    if not (flags.teacher and flags.do_train):
        missing = "--teacher" if flags.do_train else "--do_train"
        raise InputError(f"--{given[0]}: has no effect without {missing}; expected both")
    from keras_bert.tasks.fine_tuning.distillation import Distillation

    own = {field.name: flags[field.name].value for field in fields(Distillation)}
    return {"teacher": flags.teacher, "distillation": Distillation(**own)}
