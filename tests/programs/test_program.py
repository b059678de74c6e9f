"""How programs end: bad input in one line with exit code 1, a defect with its traceback."""

import os
import subprocess
import sys

import pytest

from keras_bert.common.errors import InputError
from keras_bert.programs.program import check_output_dir

PROGRAM = """
import sys
from absl import flags
from keras_bert.common.errors import InputError
from keras_bert.programs.program import define_computing, run

flags.DEFINE_integer("count", 1, "How many.", lower_bound=1)
flags.DEFINE_bool("resumable", False, "Whether it goes on.")
define_computing()


def main(argv):
    assert "tensorflow" not in sys.modules
    if argv[1:] == ["bad"]:
        raise InputError("notes.txt, line 3:\\nexpected a number, got 'x'")
    if argv[1:] == ["interrupted"]:
        raise KeyboardInterrupt
    if argv[1:] == ["defect"]:
        raise KeyError("missing")
    print(flags.FLAGS.count, *argv[1:])


run(main, goes_on="--resumable" in sys.argv)
"""


@pytest.fixture
def program(tmp_path, root):
    """A function: arguments -> the finished process of a small program."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(*arguments):
        return subprocess.run(
            [sys.executable, tmp_path / "program.py", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": str(root)},
        )

    return start


def test_a_program_gets_its_flags_and_what_is_left(program):
    done = program("--count=3", "a", "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 a b\n", "")


def test_bad_input_is_one_line_and_exit_code_1(program):
    done = program("bad")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "program.py: error: notes.txt, line 3: expected a number, got 'x'\n"


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--cuont=3", "Unknown command line flag 'cuont'"),
        ("--count=many", "flag --count=many: invalid literal"),
        ("--count=0", "flag --count=0: 0 is not a positive integer"),
        ("--worker_timeout=nan", "flag --worker_timeout=nan: expected seconds from 0 to 604800"),
        ("--worker_timeout=1e12", "flag --worker_timeout=1000000000000.0: expected seconds"),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_code_1(program, flag, expected):
    done = program(flag)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("program.py: error: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_is_one_line_and_exit_code_130_and_says_whether_the_work_goes_on(program):
    done = program("interrupted")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "program.py: interrupted\n"
    done = program("--resumable", "interrupted")
    assert done.stderr == "program.py: interrupted: the same command again goes on\n"


def test_a_defect_keeps_its_traceback(program):
    done = program("defect")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.endswith("KeyError: 'missing'\n")


def test_a_run_does_not_write_where_its_checkpoint_lies(tmp_path):
    for folder in ("bert", "out/model", "bert/model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("bert")
    bert, out = f"{tmp_path}/bert", f"{tmp_path}/out"
    for start, place in (
        (bert, f"{tmp_path}/link"),
        (bert, f"{out}/../bert/"),
        (out, f"{out}/model"),
        (f"{out}/model", out),
    ):
        with pytest.raises(
            InputError, match=rf"--output_dir={place}: --init_checkpoint={start} li"
        ):
            check_output_dir(place, start)
    check_output_dir(out, bert)
    check_output_dir(f"{bert}/run", bert)
    check_output_dir(".", "")


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("run_classifier.py", {"task_name": "MRPC", "data_dir": "glue"}),
        ("run_squad.py", {"train_file": "train.json"}),
        ("run_ner.py", {"train_file": "train.conll"}),
        ("run_pretraining.py", {"input_file": "records"}),
    ],
)
def test_no_program_runs_in_the_folder_of_its_checkpoint(run_program, tmp_path, program, flags):
    (tmp_path / "bert").mkdir()
    done = run_program(program, cwd=tmp_path, init_checkpoint="bert", output_dir="bert/.", **flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        f"{program}: error: --output_dir=bert/.: --init_checkpoint=bert lies there; expected"
    )
    assert [*(tmp_path / "bert").iterdir()] == []
