"""Starts Python programs in processes that are forked from one that has imported TensorFlow.

    process = processes.start(["run_ner.py", "--output_dir=out"], cwd=folder, stderr=PIPE)

Importing TensorFlow and Keras takes a process many seconds, more than a tiny model trains. For each
Keras backend, a server imports them once. TensorFlow and JAX themselves start in the forked
process. Arguments are those of `python`: a file, -m and a module, or -c and code.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PRELOADED = (
    "keras_bert.programs.program",
    "keras_bert.pretraining.run",
    "keras_bert.tasks.model_export",
    "tensorboard.backend.event_processing.event_accumulator",
)


class Process:
    """A started program, with the methods of `subprocess.Popen`; its pipes are text."""

    def __init__(self, status: socket.socket, stderr: int | None):
        self._status, self.returncode = status.makefile("r"), None
        self.stderr = os.fdopen(stderr) if stderr is not None else None
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """Returns the exit code; raises TimeoutExpired if the process still runs."""
        select.select([self._status], [], [], timeout)
        if self.poll() is None:
            self.kill()
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def communicate(self, timeout: float = 600) -> tuple[None, str]:
        """Waits for the end of the process; returns None and the rest of its standard error."""
        error = self.stderr.read() if self.stderr else ""
        self.wait(timeout)
        return None, error

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the process."""
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[Any],
    *,
    cwd: str | Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: Any = DEVNULL,
    stdout: Any = DEVNULL,
    stderr: Any = DEVNULL,
) -> Process:
    """Starts `python ARGUMENTS`."""
    env = dict(os.environ if env is None else env)
    reader = None
    with contextlib.ExitStack() as opened:
        nothing = opened.enter_context(open(os.devnull, "r+"))
        if stderr == PIPE:
            reader, writer = os.pipe()
            stderr = opened.enter_context(os.fdopen(writer))
        streams = [nothing if each == DEVNULL else each for each in (stdin, stdout, stderr)]
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [*(each.fileno() for each in streams), theirs.fileno()]
            request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "env": env}
            server = _server(env.get("KERAS_BACKEND") or "tensorflow")
            socket.send_fds(server, [json.dumps(request).encode()], descriptors)
    return Process(ours, reader)


def run(
    arguments: Sequence[Any], *, input: str | None = None, **settings: Any
) -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` to its end; the result has its output as text."""
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        files[0].write(input or "")
        files[0].flush()
        files[0].seek(0)
        process = start(arguments, stdin=files[0], stdout=files[1], stderr=files[2], **settings)
        code = process.wait()
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, *(file.read() for file in files[1:]))


def run_on(backend: str, python: str, arguments: Sequence[Any]) -> subprocess.CompletedProcess:
    """Runs a Python on another backend to its end, which must be a success."""
    env = os.environ | {"KERAS_BACKEND": backend}
    if python == sys.executable:
        done = run(arguments, env=env)
    else:
        command = [python, *map(str, arguments)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def call_here(module: str, argv: Sequence[str]) -> subprocess.CompletedProcess:
    """Runs the program of a module in this process.

    Its stdout is like a terminal: text that has no encoding in UTF-8 cannot be printed.
    """
    from keras_bert.programs.program import call

    program = importlib.import_module(module).PROGRAM
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = call(program, argv)
        except Exception:
            traceback.print_exc()
            code = 1
    for stream in (out, err):
        stream.flush()
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(argv, code, *texts)


@functools.cache
def _server(backend: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes", str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"KERAS_BACKEND": backend},
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=DEVNULL,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# --- the server ---


def _serve(connection: socket.socket) -> None:
    """Forks a process for each request; returns in the forked process, after its program."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        content, files, *_ = socket.recv_fds(connection, 2**20, 4)
        if not content:
            return
        if not os.fork():
            connection.close()
            _keep(files)
            _run(**json.loads(content))
            return
        for file in files:
            os.close(file)


def _keep(files: Sequence[int]) -> None:
    """Forks the process of the program, and reports its id and its exit code; returns in it."""
    *streams, status = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        for file in streams:
            os.close(file)
        with contextlib.suppress(OSError):
            os.write(status, b"%d\n" % pid)
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for number, file in enumerate(streams):
        os.dup2(file, number)
    for file in files:
        os.close(file)


def _run(arguments: list[str], cwd: str, env: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    # The server has set the flags of the compilation cache.
    cache = {name: os.environ[name] for name in ("TF_XLA_FLAGS",) if name in os.environ}
    os.environ.clear()
    os.environ.update({**cache, **env})
    kind, *rest = arguments
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def _main() -> None:
    from keras_bert.programs.runs import use_compilation_cache
    from keras_bert.startup import start_tensorflow

    use_compilation_cache()
    start_tensorflow()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # The forked processes share the memory of all objects.
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    _main()
