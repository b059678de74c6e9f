"""Programs: their own flags, one-line errors, exit codes, and no changes to the process."""

import importlib
import logging as std_logging
import re
import signal
import sys
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
from absl import flags, logging

from keras_bert.errors import EndedEarly, InputError
from keras_bert.options import advanced, option
from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.options import declared
from keras_bert.programs.program import Program, call, require_tensorflow
from keras_bert.training.settings import Devices, TrainingSettings


@dataclass(frozen=True)
class Settings:
    GROUP: ClassVar[str] = "data"
    count: int = option(1, "How many.", min=1)
    name: str = option("x", "A name.", required=True)
    rate: float = advanced(1.0, "A rate.", min=0, needs="scales")
    scales: bool = option(False, "Whether to scale.", group="output")
    place: str = option("x", "A place.", required=True, unless="noscales")
    kind: str = option("a", "A kind.", choices=("a", "b"))


SETTINGS = (Settings, TrainingSettings, Devices)


def main(values, arguments):
    endings = {
        "bad": InputError("notes.txt, line 3:\nexpected a number, got 'x'"),
        "early": EndedEarly("worker 1 is gone"),
        "interrupted": KeyboardInterrupt(),
        "stopped": KeyboardInterrupt("stopped after step 5; the checkpoint is saved"),
        "defect": KeyError("missing"),
        "exit": SystemExit(7),
    }
    if arguments and arguments[0] in endings:
        raise endings[arguments[0]]
    if arguments == ["log"]:
        logging.info("a note")
        logging.warning("a warning")
        warnings.warn("of a library", stacklevel=1)
    print(values.count, *arguments)


COUNT = Program("count", "Counts.\n\n    keras-bert count --count=3\n", SETTINGS, main)
RESUMABLE = Program("count", "Counts.", SETTINGS, main, resumable=True)


@pytest.fixture
def ends(capfd):
    """Returns a function: (*arguments) -> exit code, standard output, standard error."""

    def end(*arguments, program=COUNT, name="count.py"):
        code = call(program, [f"/somewhere/{name}", *arguments])
        return code, *capfd.readouterr()

    return end


def test_program_gets_its_flags_and_the_other_arguments(ends):
    assert ends("--count=3", "a", "b") == (0, "3 a b\n", "")


@dataclass(frozen=True)
class Other:
    count: str = option("none", "Text.", group="data")


def test_programs_of_one_process_have_their_own_flags(ends):
    assert ends("--count=3")[1] == "3\n"
    assert ends()[1] == "1\n"
    assert "count" not in flags.FLAGS

    def main(values, arguments):
        ends("--count=2")
        print(values.count)

    other = Program("other", "", (Other,), main)
    assert ends("--count=many", program=other)[1] == "many\n"


def test_invalid_input_exits_with_code_1_and_one_line(ends):
    code, out, err = ends("bad")
    assert (code, out) == (1, "")
    assert err == "count.py: error: notes.txt, line 3: expected a number, got 'x'\n"


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--cuont=3", "Unknown command line flag 'cuont'. Did you mean: count ?"),
        ("--count=many", "flag --count=many: expected a whole number of at least 1"),
        ("--count", "Missing value for flag --count"),
        ("--nojit_compile=3", "--nojit_compile=3 does not take an argument"),
        ("--count=2147483648", "expected a whole number of at least 1, and at most 32 bits"),
        ("--count=1" + "0" * 5000, "expected a whole number"),
        ("--rate=inf", "flag --rate=inf: expected a finite number of at least 0"),
        ("--rate=0", "--rate: has no effect without --scales; expected both of these flags"),
        ('--report_to="a', 'flag --report_to="a: expected a list of strings, separated by commas'),
        ("--kind=c", "flag --kind=c: expected one of a, b"),
        ("--scales=maybe", "flag --scales=maybe: expected true or false"),
        ("--flagfile=nowhere", "nowhere"),
    ],
)
def test_invalid_flag_exits_with_code_1_and_one_line(ends, flag, expected):
    code, out, err = ends(flag)
    assert (code, out) == (1, "")
    assert err.startswith("count.py: error: ")
    assert expected in err
    assert err.count("\n") == 1


def test_all_missing_flags_are_named_except_those_that_another_flag_makes_optional(ends):
    end = "required; the shortest command is: keras-bert count --count=3\n"
    _, _, err = ends("--name=", "--place=")
    assert err == f"count.py: error: --name is {end}"
    _, _, err = ends("--name=", "--place=", "--scales")
    assert err == f"count.py: error: --name and --place are {end}"


def test_flags_are_read_from_a_file(ends, tmp_path):
    (tmp_path / "flags").write_text("# my flags\n--count=4\n--nojit_compile\n")
    assert ends(f"--flagfile={tmp_path / 'flags'}", "--undefok=future", "--future=1")[1] == "4\n"


@pytest.mark.parametrize("flag", ["--help", "-?", "--helpshort", "--helpfull"])
def test_help_shows_the_groups_of_the_programs_own_flags(ends, flag):
    code, out, err = ends(flag)
    assert (code, err) == (0, "")
    text, *groups, end = re.split(r"\n\n(?=\w+ flags:|--helpfull)|absl.logging:", out)
    assert text == "Counts.\n\n    keras-bert count --count=3"
    titles = ["Required", "Data", "Training", "Output", "Advanced"]
    assert [group.split()[0] for group in groups] == titles[: 5 if flag == "--helpfull" else 4]
    place = "  --place: A place. (default: x; not needed with --noscales)"
    assert groups[0] == f"Required flags:\n  --name: A name. (default: x)\n{place}"
    kind = "  --kind: A kind. (one of a, b; default: a)"
    assert groups[1] == f"Data flags:\n  --count: How many. (default: 1)\n{kind}"
    first = "Output flags:\n  --[no]scales: Whether to scale. (default: false)\n  --report_to:"
    assert groups[3].startswith(first)
    if flag == "--helpfull":
        assert "  --[no]jit_compile: Compile with XLA. (default: true)" in groups[4]
        assert "-v,--verbosity" in end
    else:
        assert end == "--helpfull lists 10 advanced flags, and those of logging, too.\n"


def test_help_of_a_program_without_advanced_flags_has_no_count(capfd):
    program = Program("count", "Counts.", (Settings,), main, omit=("rate",))
    assert call(program, ["count.py", "--help"]) == 0
    assert capfd.readouterr().out.endswith("\n\n--helpfull lists the flags of logging, too.\n")


def test_ctrl_c_exits_with_code_130_and_one_line_with_a_hint_to_resume(ends):
    assert ends("interrupted") == (130, "", "count.py: interrupted\n")
    _, _, err = ends("interrupted", program=RESUMABLE)
    lost, again = "work that is not saved yet is lost", "run the same command again to resume"
    assert err == f"count.py: interrupted: {lost}: {again}\n"
    _, _, err = ends("stopped", program=RESUMABLE)
    saved = "stopped after step 5; the checkpoint is saved"
    assert err == f"count.py: interrupted: {saved}: {again}\n"


@pytest.mark.parametrize("backend", ["theano", "torch"])
def test_backend_that_does_not_exist_is_rejected(ends, monkeypatch, backend):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = ends("a")
    assert (code, out) == (1, "")
    assert err.startswith(f"count.py: error: KERAS_BACKEND={backend}: ")
    assert "expected" in err


def failing(error):
    """Returns a program whose main function raises an error."""

    def main(values, arguments):
        raise error

    return Program("count", "Counts.", SETTINGS, main, resumable=True)


LOST = "ended early: a GPU or a connection between GPUs failed ({}): run the same command again to "
LOST += "resume"
EXHAUSTED = "error: the memory is exhausted ({}); expected smaller batches, sequences or models"
NO_CUDNN = "error: cuDNN cannot be used ({}); expected the version of cuDNN for which TensorFlow "
NO_CUDNN += "or JAX was built, and free memory on the GPU"


@pytest.mark.parametrize(
    ("kind", "reason", "line"),
    [
        ("JaxRuntimeError", "INTERNAL: NCCL operation ncclAllReduce failed: unhandled error", LOST),
        ("UnavailableError", "ncclCommInitRank failed: remote process exited", LOST),
        ("InternalError", "cuDNN launch failure: CUDNN_STATUS_EXECUTION_FAILED", LOST),
        ("JaxRuntimeError", "INTERNAL: stream was already in an error state", LOST),
        ("JaxRuntimeError", "INTERNAL: device lost", LOST),
        ("JaxRuntimeError", "UNAVAILABLE: the accelerator does not answer", LOST),
        ("JaxRuntimeError", "INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory", EXHAUSTED),
        ("InternalError", "CUBLAS_STATUS_ALLOC_FAILED", EXHAUSTED),
        ("InternalError", "Dst tensor is not initialized.", EXHAUSTED),
        ("ResourceExhaustedError", "OOM", EXHAUSTED),
        ("RuntimeError", "RESOURCE_EXHAUSTED: Out of memory", EXHAUSTED),  # As JAX raises it.
        ("JaxRuntimeError", "FAILED_PRECONDITION: DNN library initialization failed.", NO_CUDNN),
        ("RuntimeError", "cuDNN is not detected.", NO_CUDNN),
    ],
)
def test_failure_of_a_gpu_or_of_memory_is_reported_in_one_line(ends, kind, reason, line):
    """Only a lost GPU is repaired by the same command again, which exit code 75 asks for."""
    error = type(kind, (Exception,), {})(f"{reason}\nat")  # As TensorFlow and JAX name them.
    code = 75 if line == LOST else 1
    assert ends(program=failing(error)) == (code, "", f"count.py: {line.format(reason)}\n")


def test_memory_error_of_python_is_reported_in_one_line(ends):
    line = EXHAUSTED.format("an allocation failed")
    assert ends(program=failing(MemoryError())) == (1, "", f"count.py: {line}\n")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("JaxRuntimeError", "UNIMPLEMENTED: cuDNN fused attention"), ("ValueError", "CUDA")],
)
def test_error_that_may_be_a_bug_keeps_its_traceback(ends, kind, reason):
    error = type(kind, (Exception,), {})(reason)
    with pytest.raises(type(error)):
        ends(program=failing(error))


def test_path_that_the_system_rejects_is_reported_in_one_line(ends):
    error = OSError(36, "File name too long", "a" * 300)
    line = f"count.py: error: {'a' * 200}: File name too long\n"
    assert ends(program=failing(error)) == (1, "", line)


def test_exit_code_of_system_exit_is_kept(ends):
    assert ends("exit") == (7, "", "")


def test_logs_and_warnings_go_to_stderr_by_verbosity(ends):
    _, out, err = ends("log")
    assert out == "1 log\n"
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    warning = f"{time}WARNING a warning\n{time}WARNING of a library\n"
    assert re.fullmatch(f"{time}INFO a note\n{warning}", err)
    _, _, err = ends("log", "--verbosity=-1")
    assert re.fullmatch(warning, err)


def state():
    root, absl_logger = std_logging.getLogger(), logging.get_absl_logger()
    return (
        sys.argv,
        warnings.showwarning,
        (root.handlers[:], root.level, absl_logger.level),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        {name: flags.FLAGS[name].value for name in ("verbosity", "logtostderr")},
    )


@pytest.mark.parametrize("ending", ["log", "bad", "early", "interrupted", "defect", "--help"])
def test_call_restores_the_state_of_the_process(ending, capfd):
    def changes(values, arguments):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        warnings.showwarning = print
        main(values, arguments)

    before = state()
    program = Program("count", "Counts.", SETTINGS, changes)
    try:
        call(program, ["count.py", ending, "-v=1", "--logtostderr"])
    except KeyError:
        assert ending == "defect"
    assert state() == before


def test_program_of_tensorflow_rejects_other_backends(monkeypatch):
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    monkeypatch.setattr(sys, "argv", ["extract_features.py"])
    message = "=jax: expected tensorflow, the only backend that extract_features.py supports"
    with pytest.raises(InputError, match=f"KERAS_BACKEND{message}"):
        require_tensorflow()


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_accepts_its_defaults_and_rejects_values_out_of_range(name):
    options = declared(importlib.import_module(PROGRAMS[name][0]).PROGRAM.flags())
    for declaration in options.values():
        declaration.check(declaration.default)
        wrong = {int: ["x", "1.5"], float: ["x", "nan", "1e999"], bool: ["2"]}.get(
            declaration.kind, []
        )
        wrong += ["no such choice"] if declaration.choices else []
        bounds = {"min": -1, "max": 1, "above": 0, "below": 0}  # and the distance of a wrong value
        given = {n: getattr(declaration, n) for n in bounds if getattr(declaration, n) is not None}
        wrong += [str(declaration.kind(value + bounds[n])) for n, value in given.items()]
        for text in wrong:
            with pytest.raises(ValueError, match=r"^expected "):
                declaration.parse(text)
    assert options
