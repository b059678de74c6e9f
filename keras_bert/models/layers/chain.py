"""Chains: element-wise operations between two matrix products, marked for fusion by a compiler.

A training step consists of matrix products with short sequences of element-wise operations between
them. On some processors the two are best compiled separately: the products by a library for the
processor, the element-wise operations by a compiler that fuses them into one pass over memory. A
function decorated with `chain` contains one such sequence. By itself, the decorator has no effect;
within `compile_chains_with`, every call uses the function compiled by the given compiler
(keras_bert/training/fusion.py for TensorFlow).
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_compiler: contextvars.ContextVar[Compiler | None] = contextvars.ContextVar(
    "chain_compiler", default=None
)


def chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a pure function as a chain.

    Args:
        function: takes tensors, None or NamedTuples of tensors by position and plain settings by
            keyword, reads nothing else, and returns a tensor. A backward pass may run it again.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **settings: Any) -> Any:
        compiler = _compiler.get()
        return (compiler(function) if compiler else function)(*tensors, **settings)

    return call


@contextlib.contextmanager
def compile_chains_with(compiler: Compiler) -> Iterator[None]:
    """Compiles every chain that is called within the block.

    Args:
        compiler: returns a faster function with the same arguments and result, which the backend
            can differentiate.
    """
    token = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(token)
