"""The command `keras-bert`: its list of programs, their flags, and how fast it starts."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

import keras_bert
from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.program import call

HELP_FLAGS = ("help", "helpshort", "helpfull", "help=true")
HEAVY = ("tensorflow", "keras", "jax", "torch", "numpy")


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "keras_bert", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_lists_the_programs(root):
    done = command("--help", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    for name in PROGRAMS:
        assert f"  {name} " in done.stdout
    assert command(cwd=root).stdout == done.stdout


def test_version_is_the_package_version(root):
    assert command("--version", cwd=root).stdout == f"keras_bert {keras_bert.__version__}\n"


def test_unknown_program_fails_with_one_line(root):
    done = command("clasify", cwd=root)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "keras-bert: error: 'clasify' is not a program; did you mean classify?\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_has_its_command_name_and_two_examples_with_known_flags(name):
    program = importlib.import_module(PROGRAMS[name][0]).PROGRAM
    assert program.name == name
    text = program.description.replace("\\\n", " ")
    commands = re.findall(rf"^    (?:echo .*)?(keras-bert {name}\b.*)", text, re.MULTILINE)
    assert len(commands) >= 2
    assert " ".join(commands[0].split()) == program.example
    parse_only = replace(program, main=lambda flags, arguments: None)
    for line in commands:
        assert call(parse_only, shlex.split(line)[1:]) == 0


def test_help_of_a_program_imports_no_tensorflow(root):
    code = (
        "import sys; from keras_bert.programs import command; sys.argv[1:] = {arguments}\n"
        "try: command.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(sys.modules.keys() & {heavy}))"
    )
    for arguments, heavy in (
        (["--help"], {*HEAVY, "absl"}),
        (["classify", "--help"], {*HEAVY} - {"numpy"}),
        (["pretrain", "--nonsense"], {*HEAVY} - {"numpy"}),
    ):
        program = [sys.executable, "-c", code.format(arguments=arguments, heavy=heavy)]
        done = subprocess.run(program, cwd=root, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments


def test_help_of_every_command_exits_with_0(root):
    """All commands run in one process, because each process takes seconds to import its modules."""
    commands = [
        *(["keras_bert", name, f"--{flag}"] for name in PROGRAMS for flag in HELP_FLAGS),
        *([str(path), "--help"] for path in sorted(root.glob("[er]*.py"))),
    ]
    code = f"""if True:
        import contextlib, io, runpy, sys
        for command in {commands}:
            sys.argv = command
            start = runpy.run_path if command[0].endswith(".py") else runpy.run_module
            output = io.StringIO()
            try:
                with contextlib.redirect_stdout(output):
                    start(command[0], run_name="__main__")
            except SystemExit as end:
                if end.code or "flags:\\n" not in output.getvalue():
                    print(*command, end.code)
        print(sorted(sys.modules.keys() & {HEAVY}))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['numpy']"], done.stderr
