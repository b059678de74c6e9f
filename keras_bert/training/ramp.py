"""Increases the batch size in the first steps of a run, by adding micro-batches to a step.

Early in training, small batches suffice for a good gradient, and they allow more steps in a fixed
budget (Geiping & Goldstein 2023, section 4.3). Micro-batches keep their size, so nothing is
recompiled.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchRamp:
    """A schedule for the number of micro-batches in a step, which increases at the start of a run.

    Step n has 1 + floor(n · (G - 1) / N) micro-batches for n < N, and G from step N on.

    Attributes:
        micro_batches: G, the number of micro-batches of a full batch, at least 1.
        steps: N, the number of steps until the batch is full; 0 for full batches from the start.
    """

    micro_batches: int = 1
    steps: int = 0

    def counts(self) -> np.ndarray:
        """Returns the number of micro-batches of each step of the ramp, [N] int64."""
        return 1 + np.arange(self.steps, dtype=np.int64) * (self.micro_batches - 1) // (
            self.steps or 1
        )

    def before(self, step: int) -> int:
        """Returns the total number of micro-batches in steps 0 to `step` - 1."""
        full = max(0, step - self.steps)
        return int(self.counts()[:step].sum()) + full * self.micro_batches


NO_RAMP = BatchRamp()
