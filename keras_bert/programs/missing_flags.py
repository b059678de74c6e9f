"""Sets flags of fine-tuning programs that the command line does not set.

Their values come from the run of --init_checkpoint if the program only predicts, from files in
default folders, or from the program's defaults.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from absl import logging
from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.files import value_of
from keras_bert.programs.program import MissingInput
from keras_bert.tasks.fine_tuning.earlier_run import EarlierRun

# Patterns of config.json in the model directories that --init_checkpoint may default to.
_CHECKPOINTS = ("data/*/config.json", "demo/run/model/config.json")

# absl's name for the type of flags with comma-separated values.
_LIST = "comma separated list of strings"


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
        The run, without settings if --init_checkpoint is not of a run; None with --do_train or
        without --init_checkpoint.

    Raises:
        InputError: the run's files cannot be read, or contain a value that the flag rejects.
    """
    if flags.do_train or not flags.init_checkpoint:
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


def use_files(
    flags: FlagValues, folders: Iterable[Path], names: Mapping[str, Sequence[str]]
) -> bool:
    """Sets file flags that the command line does not set; returns whether any file flag is set.

    With --data_dir, the flags are set to files in that folder. Otherwise, if the command line sets
    no file flag, they are set to files in the first of `folders` with a training file (with
    --nodo_train, with any other file). --data_dir is then cleared, so that the same run can be
    resumed with file flags instead.

    `names` has the possible file names for each file flag; one of the flags is train_file.

    Raises:
        InputError: --data_dir contains none of the files.
    """
    data_dir = flags.data_dir
    if not data_dir and any(flags[flag].value for flag in names):
        return True
    for folder in [Path(data_dir)] if data_dir else folders:
        found = {
            flag: next((str(folder / name) for name in known if (folder / name).is_file()), "")
            for flag, known in names.items()
        }
        # --data_dir may add files to those given by flags; a default folder needs the main file.
        needed = [path for flag, path in found.items() if flags.do_train == (flag == "train_file")]
        if any(found.values() if data_dir else needed):
            for flag, path in found.items():
                if not flags[flag].value:
                    use(flags, flag, path)
            flags.data_dir = ""
            return True
    if data_dir:
        known = ", ".join(name for some in names.values() for name in some)
        raise InputError(
            f"--data_dir={data_dir}: contains none of the expected files {known}. Pass --tfds if "
            "it is the data_dir of TFDS"
        )
    return False


def complete_flags(
    flags: FlagValues, no_data: str, default_output_dir: str, help_text: str
) -> None:
    """Sets --init_checkpoint and --output_dir if the command line does not set them.

    `no_data` describes missing data, such as "no column files", and is empty if there is data.
    `help_text` is the message if data or a checkpoint is missing; it contains {found}, which is
    replaced by a description of what is missing.

    Raises:
        MissingInput: there is no data or no checkpoint.
    """
    if not flags.init_checkpoint:
        use(flags, "init_checkpoint", _find_checkpoint())
    missing = [no_data, "" if flags.init_checkpoint else "no checkpoint"]
    if any(missing):
        raise MissingInput(help_text.format(found=" and ".join(filter(None, missing))))
    if not flags.output_dir:
        use(flags, "output_dir", default_output_dir)


def _find_checkpoint() -> str:
    found = [path.parent for pattern in _CHECKPOINTS for path in sorted(Path().glob(pattern))]
    return next((str(path) for path in found if (path / "model.safetensors").is_file()), "")
