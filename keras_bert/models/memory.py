"""Rejects networks and batches that cannot fit in memory, before they are allocated.

The estimates assume float32 weights in the memory of the machine, and 2-byte activations. A network
or batch that is accepted may still exhaust the memory.
"""

import keras

from keras_bert.common import host_memory
from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig

_WEIGHT_BYTES = 4  # float32; the int8 kernels of a quantized model need less.
_ACTIVATION_BYTES = 2  # The size in the smallest compute dtypes, bfloat16 and float16.


def check_weights_fit(config: BertConfig) -> None:
    """Rejects a config whose weights are larger than the available memory.

    Raises:
        InputError: the weights do not fit. The message has the sizes in the config, and the needed
            and the available memory.
    """
    available = host_memory.available()
    needed = _WEIGHT_BYTES * config.num_encoder_weights
    if available is not None and needed > available:
        names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
        names = (*names, "max_position_embeddings", "type_vocab_size")
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in names)
        raise InputError(
            f"config: a model with {sizes} needs {_gigabytes(needed)} for its weights, but "
            f"{_gigabytes(available)} of memory are available; expected a smaller model"
        )


def check_batch_fits(config: BertConfig, rows: int, length: int, flag: str) -> None:
    """Rejects a batch whose activations in a single layer are larger than the available memory.

    Only batches on CPUs are checked. Accelerators have their own memory, and report when it is
    exhausted.

    Args:
        config: the model's config.
        rows: the number of rows that are computed at once on this machine.
        length: the number of tokens in a row.
        flag: the flag or argument that sets the number of rows, for the message.

    Raises:
        InputError: the batch does not fit. The message has the flag, and the needed and the
            available memory.
    """
    if any("cpu" not in name for name in keras.distribution.list_devices()):
        return
    available = host_memory.available()
    # In memory together: the attention's output [H], and the input [intermediate_size] and output
    # [H] of the second feed-forward layer.
    needed = _ACTIVATION_BYTES * rows * length * (2 * config.hidden_size + config.intermediate_size)
    if available is not None and needed > available:
        raise InputError(
            f"{flag}: {rows} rows of {length} tokens need at least {_gigabytes(needed)} in each "
            f"layer, but {_gigabytes(available)} of memory are available; expected fewer rows"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
