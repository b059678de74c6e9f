"""Defines which hardware has instructions for products of bfloat16 values."""

# The first compute capability of such NVIDIA GPUs (Ampere).
COMPUTE_CAPABILITY = (8, 0)
# The names of the instructions of CPUs in /proc/cpuinfo; one of them is enough.
CPU_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})
