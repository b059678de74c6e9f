"""Chains: the element-wise arithmetic between two matrix products, marked for compilers.

A training step is matrix products with short runs of element-wise arithmetic between them. Some
processors want the two compiled apart: the products by a library that knows the processor, the
arithmetic by a compiler that makes one pass over memory of it. A function marked with `chain`
holds one such run, whole. By itself the mark does nothing; inside `compile_chains_with` every
call goes through the compiler given (keras_bert/training/fusion.py has TensorFlow's).
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
        function: takes tensors (or None) by position and plain settings by keyword, reads nothing
            else, and returns a tensor. A backward pass may run it again.

    Returns:
        The same function, which the compiler in force compiles.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **settings: Any) -> Any:
        compiler = _compiler.get()
        return (compiler(function) if compiler else function)(*tensors, **settings)

    return call


@contextlib.contextmanager
def compile_chains_with(compiler: Compiler) -> Iterator[None]:
    """Sends every chain called in the block through a compiler.

    Args:
        compiler: turns a chain into a faster function with the same arguments and results, which
            the backend can differentiate.
    """
    token = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(token)
