"""Imports TensorFlow for a program: late, quietly, and as the backend of Keras."""

import os
import sys
import tempfile

from keras_bert.common.errors import InputError


def start_tensorflow() -> None:
    """Imports TensorFlow without the notes that its C++ part prints, which no setting silences.

    Set TF_CPP_MIN_LOG_LEVEL=0 to see them. What is printed stays visible if the import fails.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # Looks for a GPU, and prints what it finds.
        except BaseException:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def need_tensorflow() -> None:
    """Rejects another backend of Keras, for a program that computes with TensorFlow alone.

    Raises:
        InputError: KERAS_BACKEND, or Keras' own configuration, names another one.
    """
    import keras

    if keras.config.backend() != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND={keras.config.backend()}: expected tensorflow, with which "
            f"{os.path.basename(sys.argv[0])} computes"
        )
