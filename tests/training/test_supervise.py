"""The supervisor: which exits it restarts, and how often."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from keras_bert.common.lock import locked

COUNT = "import sys, os; open(sys.argv[1], 'a').write('x'); "


def supervise(*command, **flags):
    own = [f"--{name}={value}" for name, value in {"backoff": 0.01, **flags}.items()]
    return [sys.executable, "-m", "keras_bert.training.supervise", *own, "--", *command]


def run(root, code, starts, **flags):
    """Supervises Python code; returns the supervisor's process and the number of starts."""
    arguments = supervise(sys.executable, "-c", COUNT + code, str(starts), **flags)
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)
    return done, len(starts.read_text())


@pytest.mark.parametrize("code", [0, 1, 2, 130, 141])
def test_exit_that_a_restart_cannot_fix_is_final(root, tmp_path, code):
    done, starts = run(root, f"sys.exit({code})", tmp_path / "starts")
    assert (done.returncode, starts) == (code, 1)


@pytest.mark.parametrize("end", ["sys.exit(75)", "os.kill(os.getpid(), 9)"])
def test_run_that_ended_early_is_restarted_up_to_a_limit(root, tmp_path, end):
    done, starts = run(root, end, tmp_path / "starts", max_restarts=2)
    assert (done.returncode, starts) == (75, 3)
    assert (
        "stopped after 2 consecutive restarts (--max_restarts); the last exit codes are"
        in done.stderr
    )


@pytest.mark.parametrize("to_group", [True, False])
def test_ctrl_c_waits_until_the_command_has_saved_its_state(root, tmp_path, to_group):
    """A terminal sends Ctrl-C to supervisor and command; `kill -INT` only to the supervisor."""
    code = (
        "import signal, time; "
        "handle = lambda *_: None; signal.signal(2, handle); signal.signal(15, handle); "
        "open(sys.argv[1], 'a').write('x'); signal.pause(); time.sleep(1); "
        "open(sys.argv[1], 'a').write(' saved'); sys.exit(130)"
    )
    state = tmp_path / "state"
    process = subprocess.Popen(
        supervise(sys.executable, "-c", "import sys; " + code, str(state)),
        cwd=root,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not state.exists():
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT) if to_group else process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert state.read_text() == "x saved"


def test_wait_doubles_up_to_a_limit(root):
    code = (
        "from keras_bert.training.supervise import restart_delay; "
        "print([restart_delay(restarts, 0.5, 300.0) for restarts in (0, 1, 9, 10, 5000)], "
        "restart_delay(5000, 0.0, 300.0))"
    )
    arguments = [sys.executable, "-c", code]
    printed = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=True).stdout
    assert printed == "[0.5, 1.0, 256.0, 300.0, 300.0] 0.0\n"


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("backoff", "nan", "expected a finite number"),
        ("max_backoff", "1e9", "expected seconds from 0 to 604800 (one week)"),
        ("grace", "-1", "expected seconds from 0 to 604800 (one week)"),
    ],
)
def test_invalid_wait_is_rejected(root, flag, value, expected):
    arguments = supervise("true", **{flag: value})
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"--{flag}=" in done.stderr
    assert expected in done.stderr


def test_run_that_finishes_after_restarts_exits_with_code_0(root, tmp_path):
    end = "sys.exit(0 if os.path.getsize(sys.argv[1]) == 3 else 75)"
    done, starts = run(root, end, tmp_path / "starts")
    assert (done.returncode, starts) == (0, 3)


LOCKED = """
from keras_bert.common.lock import locked
from keras_bert.programs.program import Program, call

def main(flags, arguments):
    with locked(arguments[0], "out: in use"):
        pass

sys.exit(call(Program("locked", "", lambda define: None, main), ["locked.py", sys.argv[2]]))
"""


def test_run_waits_until_a_lock_is_released(root, tmp_path):
    """An orphan of an earlier start holds the lock until the second restart."""
    starts, lock = tmp_path / "starts", tmp_path / "lock"
    arguments = supervise(sys.executable, "-c", COUNT + LOCKED, str(starts), str(lock))
    with locked(lock, "taken"):
        process = subprocess.Popen(arguments, cwd=root, stderr=subprocess.PIPE, text=True)
        while not starts.exists() or len(starts.read_text()) < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    holder = f"out: in use (process {os.getpid()} on {socket.gethostname()})"
    assert f"locked.py: error: {holder}; run the same command again once" in printed
    assert "exit codes [75]; restart 1 of 10" in printed


def test_all_workers_restart_if_a_killed_worker_makes_another_fail(root, tmp_path):
    """Worker 1 is killed and worker 0 fails as a result; the second time both finish."""
    end = (
        "import json; index = json.loads(os.environ['TF_CONFIG'])['task']['index']; "
        "first = os.path.getsize(sys.argv[1]) <= 2; "
        "os.kill(os.getpid(), 9) if first and index else sys.exit(1 if first else 0)"
    )
    done, starts = run(root, end, tmp_path / "starts", num_workers=2)
    assert (done.returncode, starts) == (0, 4), done.stderr


def test_worker_killed_after_the_grace_time_does_not_hide_invalid_input(root, tmp_path):
    end = (
        "import json, time; index = json.loads(os.environ['TF_CONFIG'])['task']['index']; "
        "time.sleep(60) if index else None\n"
        "while os.path.getsize(sys.argv[1]) < 2: time.sleep(0.01)\n"
        "sys.exit(1)"
    )
    done, starts = run(root, end, tmp_path / "starts", num_workers=2, grace=0.5)
    assert (done.returncode, starts) == (1, 2), done.stderr


def test_ports_are_reserved_for_the_workers(root, tmp_path):
    """Other processes get neither these ports nor one of them as a free port; the worker does."""
    end = (
        "import json, socket; config = json.loads(os.environ['TF_CONFIG']); "
        "ports = [int(each.split(':')[1]) for each in config['cluster']['worker']]; "
        "taken = [socket.socket().connect_ex(('127.0.0.1', port)) for port in ports]; "
        "assert all(taken), 'something listens'\n"
        "try: socket.socket().bind(('127.0.0.1', ports[0]))\n"
        "except OSError: socket.create_server(('', ports[config['task']['index']])); sys.exit(0)\n"
        "sys.exit(3)"
    )
    done, starts = run(root, end, tmp_path / "starts", num_workers=2, max_restarts=0)
    assert (done.returncode, starts) == (0, 2), done.stderr


def test_sigterm_is_forwarded_and_nothing_is_restarted(root, tmp_path):
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
        "open(sys.argv[1], 'w').close(); time.sleep(60)"
    )
    arguments = supervise(sys.executable, "-c", code, str(tmp_path / "ready"))
    process = subprocess.Popen(arguments, cwd=root, stderr=subprocess.DEVNULL)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75


def test_command_that_cannot_be_started_exits_with_code_1(root):
    arguments = supervise("/nowhere/program")
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: /nowhere/program: cannot be started: No such file" in done.stderr
