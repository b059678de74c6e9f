"""Runs a program and returns its exit code.

The exit code is 0 for success. For other codes, one line is printed to stderr: 1 for an unknown
flag, an invalid flag value or an `InputError`; 75 for an `EndedEarly` (a run that was stopped or
lost a worker); 130 for Ctrl-C. Any other exception is a bug and keeps its traceback.
"""

import contextlib
import faulthandler
import logging as std_logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from absl import command_name, flags, logging
from absl.flags import FlagValues

from keras_bert.common.errors import EndedEarly, InputError
from keras_bert.programs.flags import Definitions, absl_flags

# The file, line and thread of absl's format do not help users.
_LOG_LINE = std_logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
_INTERRUPTED = 130  # The exit code that shells report for Ctrl-C.


class MissingInput(Exception):
    """Raised if required input is missing; the message explains in a few lines what to provide.

    Commands in the message are written with `keras-bert`, which is replaced by the command that the
    user ran.
    """


@dataclass(frozen=True)
class Program:
    """A command-line program.

    Attributes:
        name: its subcommand of `keras-bert`.
        description: the text that --help prints above the flags. Commands in it are written with
            `keras-bert`.
        define_flags: defines the program's flags.
        main: the main function; takes the parsed flags and the arguments that are not flags.
        resumable: whether the same command resumes interrupted work; Ctrl-C then prints a hint.
    """

    name: str
    description: str
    define_flags: Callable[[Definitions], None]
    main: Callable[[FlagValues, Sequence[str]], None]
    resumable: bool = False


def run(program: Program, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a program and exits the process with its exit code."""
    command_name.make_process_name_useful()
    with contextlib.suppress(Exception):  # Fails if stderr has no file descriptor.
        faulthandler.enable()
    module = getattr(sys.modules["__main__"], "__spec__", None)  # None without `python -m`.
    command = None
    if argv is None and module:
        command = f"python -m {module.name.removesuffix('.__main__')}"
    sys.exit(call(program, sys.argv if argv is None else argv, command))


def call(program: Program, argv: Sequence[str], command: str | None = None) -> int:
    """Runs a program in this process and restores the process state afterwards.

    It restores `sys.argv`, logging, absl's flags, `warnings.showwarning` and signal handlers, but
    not the global state of other libraries, such as the Keras backend.

    Args:
        program: the program.
        argv: the command line; its first entry is the program's name in messages.
        command: the command for starting the program, for help texts; derived from `argv` by
            default.

    Returns:
        The exit code.
    """
    name = os.path.basename(argv[0])
    command = command or (f"python {name}" if name.endswith(".py") else name)

    def with_users_command(text: str) -> str:
        return text.replace(f"keras-bert {program.name}", command)

    def fail(line: str, code: int) -> int:
        print(f"{name}: {line}", file=sys.stderr)
        return code

    values = FlagValues()
    with _process_state(argv), absl_flags(values, with_users_command(program.description)):
        try:
            program.define_flags(Definitions(values, argv[0]))
            arguments = _parse(values, argv)
            if values["verbosity"].using_default_value:
                logging.set_verbosity(logging.INFO)
            if not values.only_check_args:
                _run_main(program, values, arguments)
        except InputError as error:
            return fail("error: " + " ".join(str(error).split()), 1)
        except MissingInput as error:
            return fail(with_users_command(str(error)), 1)
        except EndedEarly as error:
            return fail(
                f"ended early: {error}: run the same command again to resume", EndedEarly.EXIT_CODE
            )
        except KeyboardInterrupt:
            hint = ": run the same command again to resume" if program.resumable else ""
            return fail(f"interrupted{hint}", _INTERRUPTED)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            return fail(str(end.code), 1)
    return 0


def reject_arguments(arguments: Sequence[str]) -> None:
    """Rejects command-line arguments that are not flags."""
    if arguments:
        raise InputError(f"expected flags only, got {' '.join(arguments)!r}")


def require_tensorflow() -> None:
    """Rejects Keras backends other than TensorFlow, for programs that require it."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND={keras.config.backend()}: expected tensorflow, the only backend that "
            f"{os.path.basename(sys.argv[0])} supports"
        )


def _parse(values: FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses the flags and returns the other arguments."""
    try:
        return values(list(argv))[1:]
    except (flags.Error, ValueError) as error:
        raise InputError(str(error)) from error


def _run_main(program: Program, values: FlagValues, arguments: Sequence[str]) -> None:
    """Runs the main function, under the debugger or profiler that absl's flags select."""
    if values.run_with_pdb:
        import pdb

        pdb.runcall(program.main, values, arguments)
    elif values.run_with_profiling or values.profile_file:
        import cProfile

        with cProfile.Profile() as profiler:
            program.main(values, arguments)
        if values.profile_file:
            profiler.dump_stats(values.profile_file)
        else:
            profiler.print_stats()
    else:
        try:
            program.main(values, arguments)
        except (InputError, EndedEarly, MissingInput):
            raise
        except Exception:
            if values.pdb_post_mortem and sys.stdout.isatty():
                import pdb

                traceback.print_exc()
                pdb.post_mortem()
            raise


@contextlib.contextmanager
def _process_state(argv: Sequence[str]) -> Iterator[None]:
    """Sets the process state that a program changes, and restores it at the end."""
    root, absl_logger = std_logging.getLogger(), logging.get_absl_logger()
    handler = logging.get_absl_handler().python_handler
    before = sys.argv, handler.stream, handler.formatter
    handlers, levels = root.handlers[:], (root.level, absl_logger.level)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        sys.argv = list(argv)
        logging.use_absl_handler()
        handler.setStream(sys.stderr)
        handler.setFormatter(_LOG_LINE)
        with warnings.catch_warnings():
            # Log only the message, in one line; the location in the code does not help users.
            warnings.showwarning = lambda message, *_: logging.warning("%s", message)
            yield
    finally:
        sys.argv, stream, formatter = before
        handler.setStream(stream)
        handler.setFormatter(formatter)
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        absl_logger.setLevel(levels[1])
        if threading.current_thread() is threading.main_thread():
            for number, handle in signals.items():
                if signal.getsignal(number) is not handle and handle is not None:
                    signal.signal(number, handle)
