"""How every program starts and ends: flags in, results out, one line for bad input.

In: an absl `main(argv)`. Out: the process's exit code: 0, or 1 after one line on stderr for an
unknown flag, a bad flag value or an `InputError`, 75 after one for an `EndedEarly` (a run that was
told to stop, or lost a worker), or 130 after one for Ctrl-C. Anything else is a defect: its
traceback stays.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging

from keras_bert.common.errors import EndedEarly, InputError

# What is defined here belongs to the program that asks for it; its --help shows it.
flags.disclaim_key_flags()

_INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended
_WEEK = 7 * 24 * 3600


def run(main: Callable[[Sequence[str]], None], *, goes_on: bool = False) -> None:
    """Runs `main` as an absl program whose bad input ends in one line and exit code 1.

    Args:
        main: takes the program's name and the arguments that are left after the flags.
        goes_on: whether the same command continues what was interrupted; Ctrl-C then says so.
    """

    def guarded(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.INFO)
        # One line, without the place in the code that a notebook would want.
        warnings.showwarning = lambda message, *_: logging.warning("%s", message)
        try:
            main(argv)
        except InputError as error:
            _fail(str(error))
        except EndedEarly as error:
            _end(f"ended early: {error}: the same command again goes on", EndedEarly.EXIT_CODE)
        except KeyboardInterrupt:
            hint = ": the same command again goes on" if goes_on else ""
            _end(f"interrupted{hint}", _INTERRUPTED)

    app.run(guarded, flags_parser=_parse)


def require(*names: str, unless: str = "") -> None:
    """Makes flags required: given, and not empty.

    Args:
        names: the flags' names.
        unless: a bool flag with which they are not.
    """
    message = "is required and must not be empty"
    for name in names:
        if unless:
            flags.register_multi_flags_validator(
                [name, unless], lambda values: any(values.values()), message=f"--{name} {message}"
            )
        else:
            flags.register_validator(name, bool, message=message)


def define_computing() -> None:
    """Defines the flags that say on what, in what types and in what parts a run is computed."""
    flags.DEFINE_enum(
        "distribution_strategy",
        "default",
        ["default", "mirrored", "multi_worker_mirrored", "tpu"],
        "Devices: one, this machine's, several machines' (TF_CONFIG), a TPU (unverified).",
    )
    flags.DEFINE_integer("num_devices", 0, "Devices of `mirrored`; 0: all.", lower_bound=0)
    flags.DEFINE_integer(
        "model_parallel", 1, "JAX: devices that share the vocabulary.", lower_bound=1
    )
    flags.DEFINE_float("worker_timeout", 300.0, "Seconds to wait for other machines.")
    flags.register_validator(  # The bounds of a flag let `nan` pass.
        "worker_timeout",
        lambda seconds: 0 <= seconds <= _WEEK,
        message=f"expected seconds from 0 to {_WEEK}, which is a week",
    )
    flags.DEFINE_enum(
        "mixed_precision",
        None,
        ["float32", "bfloat16", "float16"],
        "Compute type; by default the fastest.",
    )
    flags.DEFINE_bool("jit_compile", True, "Compile with XLA.")
    flags.DEFINE_bool("gradient_checkpointing", False, "Run each block twice; keep less in memory.")
    flags.DEFINE_enum(
        "optimizer_state_dtype",
        "float32",
        ["float32", "bfloat16"],
        "Type that the optimizer keeps its moments in.",
    )
    flags.DEFINE_integer("gradient_accumulation_steps", 1, "Micro-batches a step.", lower_bound=1)


def define_export() -> None:
    """Defines --export, which needs the program's --do_train: it exports what a run learnt."""
    flags.DEFINE_bool("export", False, "Export the result for serving, to OUTPUT_DIR/export/1.")
    flags.register_multi_flags_validator(
        ["export", "do_train"],
        lambda values: values["do_train"] or not values["export"],
        message="--export needs --do_train",
    )
    flags.register_validator(
        "export",
        lambda export: not export or os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow",
        message="needs TensorFlow; export_model.py without KERAS_BACKEND exports a JAX run",
    )


def finish(results: Mapping[str, object], output_dir: Path, export: bool) -> None:
    """Prints a run's final figures, a line each, and exports it if that is asked for.

    Args:
        results: by name.
        output_dir: the run's folder.
        export: whether to export what it learnt.

    Raises:
        InputError: the model cannot be exported.
    """
    for name, value in results.items():
        print(f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}")
    if export:
        from keras_bert.tasks.export import export_run  # Late, as it imports TensorFlow.

        for folder in export_run(output_dir):
            print(f"export = {folder}")


def check_output_dir(output_dir: str, init_checkpoint: str) -> None:
    """Refuses to let a run write where the checkpoint lies that it starts from.

    Args:
        output_dir: the run's folder.
        init_checkpoint: the checkpoint, or empty for none.

    Raises:
        InputError: they are one folder, or the run's model/ or best/ would replace the checkpoint.
    """
    if not init_checkpoint:
        return
    start, place = Path(init_checkpoint), Path(output_dir)
    read = {path.resolve() for path in (start, start / "model")}
    if read & {path.resolve() for path in (place, place / "model", place / "best")}:
        raise InputError(
            f"--output_dir={output_dir}: --init_checkpoint={init_checkpoint} lies there; expected "
            "another folder, as the run's files would take its place"
        )


def no_arguments(argv: Sequence[str]) -> None:
    """Refuses words on the command line that belong to no flag.

    Args:
        argv: what `main` was given: the program's name and what is left after the flags.

    Raises:
        InputError: there are such words.
    """
    if argv[1:]:
        raise InputError(f"expected flags only, got {' '.join(argv[1:])!r}")


def start_tensorflow() -> None:
    """Imports TensorFlow without the notes that its C++ part prints, which no setting silences.

    Set TF_CPP_MIN_LOG_LEVEL=0 to see them. What is printed stays visible if the import fails.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # Looks for a GPU, and says so.
        except BaseException:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def need_tensorflow() -> None:
    """Refuses another backend of Keras, for a program that computes with TensorFlow alone.

    Raises:
        InputError: KERAS_BACKEND, or Keras' own configuration, names another one.
    """
    import keras

    if keras.config.backend() != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND={keras.config.backend()}: expected tensorflow, with which "
            f"{os.path.basename(sys.argv[0])} computes"
        )


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    _end("error: " + " ".join(message.split()), 1)


def _end(line: str, code: int) -> NoReturn:
    print(f"{os.path.basename(sys.argv[0])}: {line}", file=sys.stderr)
    sys.exit(code)
