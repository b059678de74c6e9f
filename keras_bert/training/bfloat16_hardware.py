"""Defines which hardware has instructions for products of bfloat16 values."""

from typing import Any

# The first compute capability of such NVIDIA GPUs (Ampere).
COMPUTE_CAPABILITY = (8, 0)
# The names of the instructions of CPUs in /proc/cpuinfo; one of them is enough.
CPU_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})


def jax_compute_capability(device: Any) -> tuple[int, ...] | None:
    """Returns the compute capability of an NVIDIA GPU of JAX, such as (8, 0); None for others."""
    try:
        return tuple(map(int, device.compute_capability.split(".")))
    except (AttributeError, ValueError):  # AMD's GPUs have a name, such as "gfx90a".
        return None
