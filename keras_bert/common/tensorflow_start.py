"""Imports TensorFlow without its log messages on stderr."""

import os
import sys
import tempfile


def start_tensorflow() -> None:
    """Imports TensorFlow without the messages that its C++ code prints, which no setting disables.

    Set TF_CPP_MIN_LOG_LEVEL=0 to see them. They are also printed if the import fails.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    # Errors are raised as exceptions; the level also hides the warnings about slow compilation.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # Looks for GPUs, which prints messages.
        except BaseException:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
