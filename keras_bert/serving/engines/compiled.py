"""Defines what an engine has to provide: a network that is compiled for some number of threads."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np


class CompiledNetwork(ABC):
    """A network that an engine has compiled; `run` may be called by several threads at once.

    Attributes:
        parallel: the number of calls of `run` that are computed at the same time; they share the
            threads.
    """

    parallel: int

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of padded rows, int32 [b, s]; graph.py describes the inputs."""


# (number of threads, number of calls at the same time) -> the compiled network.
Compile = Callable[[int, int], CompiledNetwork]
