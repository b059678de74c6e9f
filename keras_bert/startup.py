"""Starts a process: imports Keras and TensorFlow, handles Ctrl-C and a closed stdout.

It imports only fast modules, because a program handles Ctrl-C before all other work.
"""

import contextlib
import importlib
import importlib.machinery
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType

# --- classes of keras_bert in Keras ---


_MODULES = (
    "keras_bert.models",
    "keras_bert.training.optimizers",
)


def register_with_keras() -> None:
    """Imports the modules that register classes: now if Keras is imported, else right after it."""
    if "keras" in sys.modules:
        _import_modules()
    elif not any(isinstance(finder, _KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KerasFinder())


def _import_modules() -> None:
    for name in _MODULES:
        importlib.import_module(name)


class _KerasFinder:
    """An import hook that imports the modules in `_MODULES` right after Keras.

    If a module of keras_bert imports Keras, they are imported after that module: they may need it.
    """

    def __init__(self):
        self._unfinished: set[str] = set()  # The names of modules that are being imported.

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras" and not name.startswith("keras_bert."):
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                self._unfinished.add(name)
                try:
                    load(module)
                finally:
                    self._unfinished.discard(name)
                if "keras" in sys.modules and not self._unfinished and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _import_modules()

            spec.loader.exec_module = exec_module
        return spec


# --- TensorFlow ---


def start_tensorflow() -> None:
    """Imports TensorFlow, and hides GPUs from it if Keras computes with another backend.

    TensorFlow, which preprocesses texts, would take the memory of the GPUs.
    """
    _import_quietly()
    import keras
    import tensorflow as tf

    if keras.config.backend() != "tensorflow":
        with contextlib.suppress(RuntimeError):  # The user's code has used TensorFlow before.
            tf.config.set_visible_devices([], "GPU")


def _import_quietly() -> None:
    """Imports TensorFlow without the messages of its C++ code on stderr.

    No setting disables all of these messages. If the import fails, they are printed. The function
    does nothing if TensorFlow is already imported, or if TF_CPP_MIN_LOG_LEVEL is 0.
    """
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    import tempfile  # It imports slow modules.

    # Level 3 hides all later messages too, such as warnings about slow compilation. Errors are
    # raised as exceptions anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            with keyboard_interrupts():
                import tensorflow as tf

                tf.config.list_physical_devices()  # Looks for GPUs, which prints messages.
        except Exception:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


# --- Ctrl-C ---


INTERRUPTED = 130  # The exit code that shells report for Ctrl-C.


class _Handler:
    """Raises KeyboardInterrupt like Python's handler, and sets `interrupted`."""

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        raise KeyboardInterrupt


class _Exit:
    """Prints one line and ends the process, without an exception that other code could replace."""

    def __init__(self, name: str):
        self._line = f"{name}: interrupted\n"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(self._line))
        os._exit(INTERRUPTED)


def is_python_handler(handler: object) -> bool:
    """Returns whether a handler of SIGINT is Python's default one, or from this module."""
    return isinstance(handler, _Handler | _Exit) or handler is signal.default_int_handler


@contextlib.contextmanager
def exit_at_interrupt(name: str) -> Iterator[None]:
    """Makes Ctrl-C print a line that starts with `name` and end the process at once.

    This is for the import of a program and for its exit, where nothing has to be cleaned up. The
    program's work in between runs within `keyboard_interrupts`. After the block, Ctrl-C has the
    default action of the system, which prints no traceback while Python exits. Nothing changes if
    SIGINT has a handler that is not Python's default one.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _Exit(name))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Makes Ctrl-C end the block with KeyboardInterrupt, even if other code converts the exception.

    For example, C extensions convert a KeyboardInterrupt that is raised while they are imported.
    Nothing changes outside the main thread, or if SIGINT has a handler that is neither Python's
    default one nor from this module.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not is_python_handler(before):
        yield
        return
    handler = _Handler()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    except Exception as error:
        if handler.interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


# --- standard output ---


OUTPUT_CLOSED = 141  # The exit code that shells report for SIGPIPE.


@contextlib.contextmanager
def quiet_end_without_reader() -> Iterator[None]:
    """Ends the process without a message if the block writes to stdout after its reader closed it.

    The exit code is then `OUTPUT_CLOSED`. Other tools leave this to the signal SIGPIPE, but the
    default action of SIGPIPE would also end a server or a worker that writes to a closed network
    connection. A BrokenPipeError from such a connection is raised unchanged.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        # Python flushes stdout once more at exit, and would report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OUTPUT_CLOSED)


def _has_no_reader() -> bool:
    """Returns whether stdout is a pipe or a connection that the other side has closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # stdout is not a file.
        return False
