"""Chains: the element-wise arithmetic between two matrix products, marked for compilers.

A training step consists of matrix products with short runs of element-wise arithmetic between
them. On some processors the two are best compiled apart: the products by a library written for the
processor, the arithmetic by a compiler that fuses it into one pass over memory. A function marked
with `chain` holds one whole run. The mark alone does nothing; within `compile_chains_with` every
call goes through the given compiler (keras_bert/training/fusion.py has TensorFlow's).
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
        function: takes tensors, None or NamedTuples of them by position and plain settings by
            keyword, reads nothing else, and returns a tensor. A backward pass may run it again.

    Returns:
        The same function, compiled by the compiler in force.
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
        compiler: makes of a chain a faster function with the same arguments and results, which the
            backend can differentiate.
    """
    token = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(token)
