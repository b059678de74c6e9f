"""Compiles training and evaluation steps: entirely on accelerators, only their chains on CPUs.

A chain is a sequence of element-wise operations between matrix products (layers/chain.py).
TensorFlow makes one pass over memory for each operation; XLA fuses a chain into one pass. But XLA
computes a bfloat16 matrix product on a CPU at float32 speed; oneDNN, which TensorFlow uses outside
XLA, is four to five times as fast. On CPUs, only chains are therefore compiled. Each becomes two
XLA computations: one forward, and one backward that recomputes the forward, so that only the
tensors between chains are kept in memory. Measurements are in benchmarks/README.md.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_bert.models.layers.chain import compile_chains_with


def compiled(function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
    """Compiles a forward pass, or a forward and backward pass, for this machine.

    `function` takes and returns structures of tensors. With `jit_compile`, XLA compiles the whole
    function on an accelerator, and only its chains on a CPU. Without `jit_compile`, the result is a
    tf.function that does not use XLA.
    """
    if not jit_compile:
        return tf.function(function, autograph=False)
    if compiles_entire_step():
        return tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def with_compiled_chains(*args: Any) -> Any:
        with compile_chains_with(compile_chain):
            return function(*args)

    return tf.function(with_compiled_chains, autograph=False)


def compiles_entire_step() -> bool:
    """Returns whether XLA compiles whole steps, which it does on GPUs and TPUs."""
    devices = tf.config.list_logical_devices
    return bool(devices("GPU") or devices("TPU"))


def compile_chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function of a chain with XLA, for use with `compile_chains_with`.

    `function` takes tensors, None or NamedTuples of tensors by position and settings by keyword,
    and returns one tensor. The result takes the same arguments, and is differentiable with respect
    to the float tensors among them.
    """

    def call(*tensors: Any, **settings: Any) -> tf.Tensor:
        given = tf.nest.map_structure(lambda x: x is not None, tensors)
        run = _differentiable(function, given, tuple(sorted(settings.items())))
        return run(*[tf.convert_to_tensor(x) for x in tf.nest.flatten(tensors) if x is not None])

    return call


@functools.cache  # All layers share one compilation of each chain.
def _differentiable(
    function: Callable[..., Any], given: tuple[Any, ...], settings: tuple[tuple[str, Any], ...]
) -> Callable[..., tf.Tensor]:
    def plain(*tensors: tf.Tensor) -> tf.Tensor:
        rest = iter(tensors)
        arguments = tf.nest.map_structure(lambda g: next(rest) if g else None, given)
        return function(*arguments, **dict(settings))

    @tf.function(jit_compile=True, autograph=False)
    def backward(tensors: list[tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
        sources = [x for x in tensors if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = plain(*tensors)
        return tape.gradient(result, sources, upstream, unconnected_gradients="zero")

    forward = tf.function(plain, jit_compile=True, autograph=False)

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            gradients = iter(backward(list(tensors), upstream))
            return [next(gradients) if x.dtype.is_floating else None for x in tensors]

        return forward(*tensors), gradient

    return run
