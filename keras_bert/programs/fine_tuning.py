"""Reads the flags that all fine-tuning programs share, and does their runs.

With --nodo_train, a main function first takes flags from the run of --init_checkpoint
(`use_flags_of_run`). Then it calls `run`, which imports TensorFlow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging
from absl.flags import FlagValues

from keras_bert.checkpoints.earlier_run import CONFIG, EarlierRun
from keras_bert.checkpoints.hub import local_model
from keras_bert.errors import InputError
from keras_bert.files import check_not_input_folder, read_json
from keras_bert.options import fit_arguments, from_values, option, same_as
from keras_bert.programs import runs
from keras_bert.programs.options import declared, recorded, set_flag, values_of
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.settings import Distillation, ExportOptions, FineTuningSettings, FitSettings
from keras_bert.training.settings import Devices, TrainingSettings

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

_INPUT_FLAGS = ("data_dir", "train_file", "eval_file", "predict_file")
# The flags about data and models that apply to lines of standard input too.
_LINE_FLAGS = ("vocab_file", "max_seq_length", "long_text", "pooling")


@dataclass(frozen=True)
class FineTuningOptions(runs.RunOptions):
    """The options that differ from those of pre-training."""

    output_dir: str = same_as(runs.RunOptions, "output_dir", unless="nodo_train")
    examples: bool | None = same_as(
        ExportOptions,
        "examples",
        help="Whether the export contains up to three short training texts, which the page of the "
        "server shows as examples. Default: true.",
        needs="export",
        may_change=True,
    )
    num_train_steps: int = option(
        0, "Number of training steps; 0: computed from --num_train_epochs.", min=0, group="training"
    )


# The options of all fine-tuning programs.
SETTINGS = (FineTuningOptions, FineTuningSettings, TrainingSettings, Devices)


def defaults(task: str) -> dict[str, Any]:
    """Returns {flag: default} of a task's program, which has the defaults of `fit`."""
    shared = fit_arguments(FineTuningSettings, TrainingSettings)
    values = asdict(FitSettings.of({}, task))
    of_fit = {
        declaration.name: declaration.kind(values[argument])
        for argument, declaration in shared.items()
        if values[argument] is not None
    }
    return {**of_fit, "mixed_precision": None, "keep_checkpoint_max": 1}


def use_flags_of_run(flags: FlagValues, *names: str) -> EarlierRun | None:
    """Sets --max_seq_length and the flags `names` to the settings of the model.

    They are saved with the model, or recorded by the run that trained it. This applies only with
    --nodo_train, and not to flags on the command line. Flags that are not recorded, as in an older
    run or in a model of another library, keep their default.

    Returns:
        The run, without settings if --init_checkpoint is not of a run; None with --do_train.
    """
    if flags.do_train:
        return None
    model = local_model(flags.init_checkpoint)
    run = EarlierRun(model)
    recorded = run.recorded(model)
    used = []
    for name in ("max_seq_length", *names):
        flag, declaration = flags[name], declared(flags)[name]
        files = [file for file, settings in recorded if settings.get(name) is not None]
        if flag.present or not files:
            continue
        value = dict(recorded)[files[0]][name]
        try:
            value = declaration.check(value)
        except ValueError as error:
            raise InputError(f"{files[0]}: {name} is {value!r}; {error}") from None
        if declaration.kind is list:
            value = [*map(str, value)]
        if value != (list(flag.value) if declaration.kind is list else flag.value):
            flag.value = value
            used.append(f"--{name}={','.join(value) if declaration.kind is list else value}")
    if used:
        logging.info("Using the settings of %s: %s", model, " ".join(used))
    return run


def use_data_dir(flags: FlagValues, names: Mapping[str, Sequence[str]]) -> None:
    """Sets the file flags that the command line does not set to the files in --data_dir, if given.

    --data_dir is then cleared, so that the same run can be resumed with file flags instead. `names`
    are the possible file names for each file flag.
    """
    if not flags.data_dir:
        return
    folder = Path(flags.data_dir)
    files = {
        flag: next((str(folder / name) for name in candidates if (folder / name).is_file()), "")
        for flag, candidates in names.items()
    }
    if not any(files.values()):
        expected = ", ".join(name for candidates in names.values() for name in candidates)
        raise InputError(
            f"--data_dir={folder}: contains none of the expected files {expected}. Pass --tfds if "
            "it is the data_dir of TFDS"
        )
    for flag, path in files.items():
        if not flags[flag].value:
            set_flag(flags, flag, path)
    flags.data_dir = ""


def check_train_file(flags: FlagValues, example: str) -> None:
    """Rejects training without a file; `example` is the shortest command."""
    is_from_tfds = "tfds" in flags and flags.tfds
    if flags.do_train and not flags.train_file and not is_from_tfds:
        raise InputError(
            f"--train_file is required, or --nodo_train; the shortest command is: {example}"
        )


def run(flags: FlagValues, task: str, settings: Any) -> None:
    """Fine-tunes a model on files; on the first worker, prints the results and exports the model.

    Invalid flags are rejected before TensorFlow is imported.
    """
    if not flags.output_dir:
        raise InputError("--output_dir is required; expected a folder for the predictions")
    runs.check_export(flags)
    if not (flags.do_train or flags.do_eval or flags.do_predict):
        raise InputError("nothing to do: expected --do_train, --do_eval or --do_predict")
    runs.check_output_dir(flags.output_dir, flags.init_checkpoint)
    check_not_input_folder(
        flags.output_dir, [flags[name].value for name in _INPUT_FLAGS if name in flags]
    )
    runs.use_compilation_cache()
    start_tensorflow()  # Imported after the checks, which do not need it.
    from keras_bert.tasks.fine_tuning import FineTuningRun
    from keras_bert.tasks.load import task_class
    from keras_bert.training.backend import BACKEND, fastest_precision
    from keras_bert.training.cluster import worker_index

    flags.mixed_precision = flags.mixed_precision or fastest_precision()
    length = flags["max_seq_length"]
    if not length.present and length.value == length.default:  # Not that of an earlier run.
        set_flag(flags, "max_seq_length", _saved_length(local_model(flags.init_checkpoint), task))
    values = values_of(flags)
    fine_tuning_run = FineTuningRun(
        settings=from_values(
            FineTuningSettings, {**values, "length_pool": FitSettings.of({}, task).length_pool}
        ),
        training=from_values(TrainingSettings, values),
        strategy=runs.make_strategy(flags),
        output_dir=Path(flags.output_dir),
        record={**recorded(flags, values), "backend": BACKEND},
        distillation=from_values(Distillation, values) if values.get("teacher") else None,
    )
    results = task_class(task).fine_tune(settings, fine_tuning_run)
    if worker_index(fine_tuning_run.strategy) == 0:
        runs.finish(results, fine_tuning_run.output_dir, flags.export, flags.examples)


def _saved_length(path: Path, task: str) -> int | None:
    """Returns the length in the files of sentence-transformers; None if there are none."""
    from keras_bert.checkpoints import sentence_transformers as files

    for folder in (path, path / "model"):
        if task == "embedding" and (folder / files.MODULES).is_file():
            return files.saved_max_seq_length(folder)
        is_classifier = task == "classification" and (folder / CONFIG).is_file()
        if is_classifier and files.read_cross_encoder(folder, read_json(folder / CONFIG)):
            return files.saved_max_seq_length(folder, True)
    return None


def reads_lines(flags: FlagValues) -> bool:
    """Returns whether a program answers lines of standard input: without training and files."""
    names = ("do_train", "output_dir", "tfds", *_INPUT_FLAGS)
    return not any(flags[name].value for name in names if name in flags)


def open_model(flags: FlagValues, task: str, **settings: Any) -> "Task":
    """Opens the model of --init_checkpoint to answer lines of standard input."""
    for name, declaration in declared(flags).items():
        is_about_text = declaration.group in ("data", "model") and name not in _LINE_FLAGS
        if flags[name].present and is_about_text:
            raise InputError(
                f"--{name}: has no effect on lines of standard input, for which the settings of "
                "the model are used; expected a file, or no such flag"
            )
    runs.use_compilation_cache()
    start_tensorflow()
    from keras_bert.checkpoints.open import open_checkpoint
    from keras_bert.tasks.load import task_class
    from keras_bert.training.backend import fastest_precision
    from keras_bert.training.strategy import dtype_policy

    checkpoint = open_checkpoint(
        flags.init_checkpoint,
        vocab_file=flags.vocab_file,
        do_lower_case=flags.do_lower_case,
        label_names=flags.label_names if "label_names" in flags else None,
    )
    checkpoint.require_vocab("pass a vocabulary for BERT's tokenizer as --vocab_file")
    cls = task_class(task)
    checkpoint.check_task(task, cls.__name__)
    settings["dtype"] = dtype_policy(flags.mixed_precision or fastest_precision())
    if flags["max_seq_length"].present:
        settings["max_seq_length"] = flags.max_seq_length
    model = cls.from_checkpoint(checkpoint, **settings)
    if model.needs_labels or model.untrained:
        missing = f"weights {', '.join(model.untrained)}" if model.untrained else "head"
        raise InputError(
            f"--init_checkpoint={flags.init_checkpoint}: has no {missing}; expected a model that "
            "was fine-tuned on this task, or --train_file with --output_dir to train it"
        )
    if flags["long_text"].present and flags.long_text != model.settings.long_text.strategy:
        model.set_long_text(flags.long_text)
    return model
