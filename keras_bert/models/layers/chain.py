"""Marks the element-wise operations between matrix products, so that a compiler can fuse them.

On some processors, a library computes the matrix products of a training step fastest, while each
sequence of element-wise operations between them needs a compiler that fuses it into one pass over
memory. A chain is a function that contains one such sequence. It has the decorator `chain`, which
has no effect by itself. During `compile_chains_with`, each chain is compiled when it is called (for
TensorFlow, by `compile_chain` in keras_bert/training/step.py).
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
    """Marks a pure function as a chain; the backward pass may run the function again.

    The function must take tensors, None or NamedTuples of tensors by position and plain settings by
    keyword, read nothing else, and return a tensor.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **settings: Any) -> Any:
        compiler = _compiler.get()
        return (compiler(function) if compiler else function)(*tensors, **settings)

    return call


@contextlib.contextmanager
def compile_chains_with(compiler: Compiler) -> Iterator[None]:
    """Compiles every chain that is called during the block.

    `compiler` takes the function of a chain and returns a faster function with the same arguments
    and result, which the backend can differentiate.
    """
    token = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(token)
