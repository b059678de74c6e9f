"""Imports TensorFlow, without messages of its C++ code and without GPUs of another backend."""

import contextlib
import os
import sys
import tempfile

from keras_bert.common.interrupts import keyboard_interrupts


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
    # Level 3 hides all later messages too, such as warnings about slow compilation. Errors are
    # raised as exceptions anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            with keyboard_interrupts(imports_only=True):
                import tensorflow as tf

                tf.config.list_physical_devices()  # Looks for GPUs, which prints messages.
        except Exception:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
