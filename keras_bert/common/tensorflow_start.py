"""Imports TensorFlow without the messages of its C++ code on stderr."""

import os
import sys
import tempfile

from keras_bert.common.interrupts import keyboard_interrupts


def start_tensorflow() -> None:
    """Imports TensorFlow without the messages of its C++ code, which no setting disables.

    They are printed if the import fails, or with TF_CPP_MIN_LOG_LEVEL=0. Nothing is done if
    TensorFlow is already imported.
    """
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    # Errors are raised as exceptions; the level also hides the warnings about slow compilation.
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
