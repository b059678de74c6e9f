"""Selects the training step and the devices of the Keras backend.

Keras reads the environment variable KERAS_BACKEND when it is imported. The functions of all
backends are used in the same way.
"""

from typing import NoReturn

import keras

from keras_bert.errors import InputError

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    from keras_bert.training.step import make_train_steps
    from keras_bert.training.strategy import fastest_precision, free, make_strategy
elif BACKEND == "jax":
    from keras_bert.training.jax_step import (
        fastest_precision,
        free,
        make_strategy,
        make_train_steps,
    )
else:  # Programs do not run with the torch backend, but task objects do.

    def _unsupported(*_: object, **__: object) -> NoReturn:
        raise InputError(
            f"KERAS_BACKEND={BACKEND}: training is not supported; expected tensorflow or jax"
        )

    make_train_steps = fastest_precision = free = make_strategy = _unsupported
    if BACKEND == "torch":
        from keras_bert.training.torch_step import make_train_steps

__all__ = ["BACKEND", "fastest_precision", "free", "make_strategy", "make_train_steps"]
