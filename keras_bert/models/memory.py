"""Checks that a model and a batch fit into the available memory."""

from collections.abc import Iterator
from pathlib import Path

import keras

from keras_bert.config import BertConfig
from keras_bert.errors import InputError

_WEIGHT_BYTES = 4  # float32; the int8 kernels of a quantized model need less.
_ACTIVATION_BYTES = 2  # The size in the smallest compute dtypes, bfloat16 and float16.


def check_weights_fit(config: BertConfig) -> None:
    """Rejects a config whose weights are larger than the available memory."""
    available = available_memory()
    needed = _WEIGHT_BYTES * config.num_encoder_weights
    if available is not None and needed > available:
        names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
        names = (*names, "max_position_embeddings", "type_vocab_size")
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in names)
        raise InputError(
            f"config: a model with {sizes} needs {gigabytes(needed)} for its weights, but "
            f"{gigabytes(available)} of memory are available; expected a smaller model"
        )


def check_batch_fits(config: BertConfig, rows: int, length: int, flag: str) -> None:
    """Rejects a batch whose activations in a single layer are larger than the available memory.

    The memory is that of the host for CPUs, and that of all accelerators for JAX. TensorFlow does
    not know the size of an accelerator's memory, and reports when it is exhausted. `rows` of
    `length` tokens are computed at once on this machine; `flag` sets their number, for the message.
    """
    available = _memory_for_batches()
    # In memory together: the attention's output [H], and the input [intermediate_size] and output
    # [H] of the second feed-forward layer.
    needed = _ACTIVATION_BYTES * rows * length * (2 * config.hidden_size + config.intermediate_size)
    if available is not None and needed > available:
        raise InputError(
            f"{flag}: {rows} rows of {length} tokens need at least {gigabytes(needed)} in each "
            f"layer, but {gigabytes(available)} of memory are available; expected fewer rows"
        )


def kept_activations(config: BertConfig, rows: int, length: int, recomputed: bool) -> int:
    """Returns a lower bound of the bytes that a training step keeps for its backward pass.

    These are the inputs of each layer's matrix products, or those of the layers if activations are
    `recomputed`, and the ones of a single layer's products.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    layer = 6 * hidden + config.intermediate_size
    numbers = layers * hidden + layer if recomputed else layers * layer
    return _ACTIVATION_BYTES * rows * length * numbers


def _memory_for_batches() -> int | None:
    """Returns the bytes of memory in which batches are computed; None if unknown."""
    backend = keras.config.backend()
    if backend == "torch":  # Its devices are not listed.
        return None
    if all("cpu" in name for name in keras.distribution.list_devices()):
        return available_memory()
    if backend != "jax":
        return None
    import jax

    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    return sum(limits) if all(limits) else None


def gigabytes(size: int) -> str:
    """Formats a number of bytes."""
    return f"{size / 1e9:,.1f} GB"


# --- memory of the host ---


_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Returns the bytes that this process can still allocate; None if unknown.

    They are limited by the free memory of the machine, and by the cgroups of the process.
    """
    machine = _number(proc / "meminfo", "MemAvailable:")
    return None if machine is None else min([machine * 1024, *_available_in_groups(proc, groups)])


def _available_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yields the bytes left below each memory limit: of this process's cgroup and its parents."""
    names = [line[4:] for line in _lines(proc / "self/cgroup") if line.startswith("0::/")]
    for name in names:
        for part in (Path(name), *Path(name).parents):
            limit = _number(groups / part / "memory.max")  # None for "max", that is, no limit.
            taken = _number(groups / part / "memory.current")
            if limit is not None and taken is not None:
                # The kernel frees cached files when memory is needed.
                files = _number(groups / part / "memory.stat", "inactive_file") or 0
                yield max(0, limit - taken + files)


def _number(file: Path, name: str = "") -> int | None:
    """Returns the number after `name` in the first line that starts with both; None without one."""
    for line in _lines(file):
        words = line.removeprefix(name).split()
        if line.startswith(name) and words and words[0].isdecimal():
            return int(words[0])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
