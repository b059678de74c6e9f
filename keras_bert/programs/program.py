"""Runs a program and returns its exit code.

Exit code 0 means success. For other codes, one line is printed to stderr: 1 for an unknown flag, an
invalid flag value, an `InputError`, an unusable path or cuDNN, or too little memory; 75 for an
`EndedEarly` (a run that was stopped, or lost a worker or a GPU) or an `InUse` (another process uses
the run's folder or the worker's port); 130 for Ctrl-C. Code 141, without a line, means that the
reader of stdout has ended, as in `--help | head -1`. Any other exception is a bug and keeps its
traceback.
"""

import contextlib
import faulthandler
import importlib.util
import json
import logging as std_logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from absl import command_name, flags, logging
from absl.flags import FlagValues

from keras_bert.checkpoints.hub import is_hub_name
from keras_bert.errors import EndedEarly, InputError, InUse
from keras_bert.files import read_ready_lines
from keras_bert.programs.options import absl_flags, check_flags, declared, define_flags
from keras_bert.programs.runs import CACHE_VARIABLE
from keras_bert.startup import INTERRUPTED, keyboard_interrupts, quiet_end_without_reader

# The file, line and thread of absl's format do not help users.
_LOG_LINE = std_logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
# Errors of TensorFlow and JAX that a lost GPU or a lost connection between GPUs may raise.
_DEVICE_ERRORS = {"InternalError", "UnavailableError", "AbortedError", "UnknownError"}
_DEVICE_ERRORS |= {"JaxRuntimeError", "XlaRuntimeError"}
_ABOUT_GPUS = re.compile(
    r"nccl|rccl|cuda|cudnn|cublas|\bhip|rocblas|miopen|gpu sync|synchronize gpu|launch failed|"
    # The last two are about streams, and what JAX reports for an accelerator that is gone.
    "synchronize device|enqueue async|synchronous memcpy|in an error state|"
    r"device (is |was )?lost|\bUNAVAILABLE:",
    re.IGNORECASE,
)
_EXHAUSTED = re.compile("out.?of.?memory|ALLOC_FAILED|Dst tensor is not init", re.IGNORECASE)
_NO_CUDNN = re.compile(
    "DNN library initialization failed|No DNN in stream executor|cuDNN is not detected|"
    "cuDNN could not be found",
    re.IGNORECASE,
)
# JAX's errors that are permanent begin with one of these status codes.
_PERMANENT = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")
# The values of KERAS_BACKEND that programs accept; each program may support only some of them.
_BACKENDS = ("tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Program:
    """A command-line program, `keras-bert NAME`.

    Attributes:
        description: the text that --help prints above the flags, with commands that start with
            `keras-bert`.
        settings: the dataclasses that declare the options (`keras_bert.options`).
        main: takes the parsed flags, and the arguments that are not flags.
        resumable: whether the same command resumes interrupted work; then Ctrl-C prints a hint with
            the message of the KeyboardInterrupt, which states what is saved.
        defaults: {name: default} of options that have another default in this program.
        omit: the names of declared options that this program does not have.
    """

    name: str
    description: str
    settings: Sequence[type]
    main: Callable[[FlagValues, Sequence[str]], Any]
    resumable: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    omit: Sequence[str] = ()

    @property
    def example(self) -> str:
        """The first command in the description, as one line; empty without one."""
        command = re.search(r"^ *(keras-bert (?:.*\\\n)*.*)", self.description, re.MULTILINE)
        return " ".join(command[1].replace("\\\n", " ").split()) if command else ""

    def flags(self, command: str = "") -> FlagValues:
        """Returns the program's flags; `command` is the file or command that --help shows."""
        return define_flags(self.settings, command or self.name, self.defaults, self.omit)


def run(program: Program, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a program, and exits the process with the program's exit code."""
    command_name.make_process_name_useful()
    with contextlib.suppress(Exception):  # Fails if stderr has no file descriptor.
        faulthandler.enable()
    # The encoding of stdout may lack characters of paths and tokens.
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")
    with quiet_end_without_reader():
        code = call(program, sys.argv if argv is None else argv)
    sys.exit(code)


def call(program: Program, argv: Sequence[str]) -> int:
    """Runs a program in this process, and returns its exit code.

    At the end, `sys.argv`, logging, absl's flags, `warnings.showwarning` and signal handlers are
    restored, but not the global state of other libraries, such as the Keras backend.
    """
    name = os.path.basename(argv[0])

    def fail(line: str, code: int) -> int:
        with contextlib.suppress(BrokenPipeError):  # The exit code is more important.
            print(f"{name}: {line}", file=sys.stderr)
        return code

    values = program.flags(argv[0])
    with _process_state(argv), absl_flags(values, program.description):
        try:
            arguments = _parse(values, argv)
            check_flags(values, program.example)
            if values["verbosity"].using_default_value:
                logging.set_verbosity(logging.INFO)
            _check_backend()
            with keyboard_interrupts(), _system_errors():
                program.main(values, arguments)
        except InputError as error:
            code = EndedEarly.EXIT_CODE if isinstance(error, InUse) else 1
            return fail("error: " + " ".join(str(error).split()), code)
        except EndedEarly as error:
            return fail(
                f"ended early: {error}: run the same command again to resume", EndedEarly.EXIT_CODE
            )
        except KeyboardInterrupt as error:
            line = "interrupted"
            if program.resumable:
                state = str(error) or "work that is not saved yet is lost"
                line += f": {state}: run the same command again to resume"
            return fail(line, INTERRUPTED)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            return fail(str(end.code), 1)
    return 0


def call_with(program: Program, names: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Runs a program as a function of the Python API, and returns what its main function returns.

    The arguments are the flags; `names` is {flag: argument} of those with other names. A list of
    strings may be one string, as on the command line. Messages of InputErrors name arguments
    instead of flags, and show a call instead of a command.
    """
    values = program.flags()
    options = {names.get(flag, flag): option for flag, option in declared(values).items()}

    def argument(match: re.Match) -> str:
        name = names.get(match[1], match[1])
        negated = name.removeprefix("no")
        return name if name in options else f"{negated}=False" if negated in options else match[0]

    example = ", ".join(
        f"{names.get(flag, flag)}={value!r}"
        for flag, value in re.findall(r"--(\w+)=(\S+)", program.example)
    )
    if unknown := ", ".join(sorted(arguments.keys() - options.keys())):
        raise InputError(
            f"{program.name}() got unknown arguments {unknown}; expected any of "
            f"{', '.join(options)}"
        )
    with _process_state([program.name]), absl_flags(values, program.description):
        values.mark_as_parsed()
        logging.set_verbosity(logging.INFO)
        try:
            for name, value in arguments.items():
                option = options[name]
                if option.kind is str and isinstance(value, list | tuple):
                    value = ",".join(map(os.fspath, value))
                value = os.fspath(value) if isinstance(value, os.PathLike) else value
                if option.name == "init_checkpoint" and is_hub_name(value):
                    value = f"hf://{value}"
                try:
                    check = option.parse if option.kind is list else option.check
                    values[option.name].value = check(value)
                except ValueError as error:
                    raise InputError(f"{name}={value!r:.200}: {error}") from None
                values[option.name].present = 1
            check_flags(values, program.example)
            _check_backend()
            with _system_errors():
                return program.main(values, ())
        except InputError as error:
            message = str(error).replace(
                f"shortest command is: {program.example}",
                f"shortest call is: keras_bert.{program.name}({example})",
            )
            error.args = (re.sub(r"--([a-z]\w*)", argument, message),)
            raise


def reject_arguments(arguments: Sequence[str]) -> None:
    """Rejects command-line arguments that are not flags."""
    if arguments:
        raise InputError(f"expected flags only, got {' '.join(arguments)!r}")


def require_tensorflow() -> None:
    """Rejects Keras backends other than TensorFlow."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND={keras.config.backend()}: expected tensorflow, the only backend that "
            f"{os.path.basename(sys.argv[0])} supports"
        )


def _check_backend() -> None:
    """Rejects a KERAS_BACKEND that is not supported or not installed, before Keras is imported."""
    backend = os.environ.get("KERAS_BACKEND", "")
    if backend and backend not in _BACKENDS:
        raise InputError(f"KERAS_BACKEND={backend}: expected one of {', '.join(_BACKENDS)}")
    if backend and importlib.util.find_spec(backend) is None:
        raise InputError(
            f"KERAS_BACKEND={backend}: the package {backend} is not installed; expected tensorflow"
        )


def answer_lines(answer: Callable[[list[str]], Iterable[Mapping[str, Any]]]) -> None:
    """Writes the answer to each line of standard input as a line of JSON to standard output.

    `answer` takes all lines that can be read at once, and returns an answer for each of them.
    """
    logging.info("Reading from standard input, one text per line")
    for lines in read_ready_lines("-"):
        texts = [text for _, text in lines]
        try:
            answers: Iterable[Mapping[str, Any]] = [*answer(texts)]
        except InputError:  # The lines before the invalid one have answers, too.
            answers = (each for text in texts for each in answer([text]))
        for each in answers:
            print(json.dumps(each, ensure_ascii=False), flush=True)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Converts errors of the system that users can resolve to an InputError in one line.

    These are an unusable path, exhausted memory of the host or of a device, a damaged cache and an
    unusable cuDNN. Errors of GPUs become an EndedEarly. Code that expects such an error raises an
    InputError with a better message itself.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise InputError(f"{str(error.filename)[:200]}: {error.strerror}") from error
    except (InputError, EndedEarly):
        raise
    except Exception as error:
        if "xla_compile_cache__" in str(error):
            raise InputError(
                f"{os.environ.get('TF_XLA_FLAGS', '')}: a file of the compilation cache cannot be "
                f"used ({str(error).splitlines()[0][:200]}); expected an intact file and free disk "
                f"space; delete the folder, or set {CACHE_VARIABLE}= to compile without it"
            ) from error
        kinds = {kind.__name__ for kind in type(error).__mro__}
        reason = str(error).split("\n")[0][:200] or "an allocation failed"
        is_of_device = kinds & _DEVICE_ERRORS and not str(error).startswith(_PERMANENT)
        is_exhausted = kinds & {"MemoryError", "ResourceExhaustedError"} or (
            is_of_device and _EXHAUSTED.search(str(error))
        )
        if is_exhausted or "RESOURCE_EXHAUSTED" in str(error):  # The latter is JAX's.
            raise InputError(
                f"the memory is exhausted ({reason}); expected smaller batches, sequences or models"
            ) from error
        if _NO_CUDNN.search(str(error)):
            raise InputError(
                f"cuDNN cannot be used ({reason}); expected the version of cuDNN for which "
                "TensorFlow or JAX was built, and free memory on the GPU"
            ) from error
        if is_of_device and _ABOUT_GPUS.search(str(error)):
            raise EndedEarly(f"a GPU or a connection between GPUs failed ({reason})") from error
        raise


def _parse(values: FlagValues, argv: Sequence[str]) -> list[str]:
    try:
        return values(list(argv))[1:]
    except (flags.Error, ValueError) as error:
        raise InputError(str(error)) from error


@contextlib.contextmanager
def _process_state(argv: Sequence[str]) -> Iterator[None]:
    """Sets `sys.argv`, logging and warnings for a program, and restores them at the end.

    Signal handlers that the program sets are restored, too.
    """
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
