"""A batch that grows over the first steps, by micro-batches.

Early gradients agree even in small batches, late ones only in large ones, so a run of a fixed
budget takes more steps early on (Geiping & Goldstein 2023, section 4.3). The micro-batch keeps its
size, so nothing is compiled twice; what grows is how many of them make a step.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchRamp:
    """The number of micro-batches of each step of a run.

    Step n has 1 + floor(n · (G - 1) / N) of them below N, and G from N on.

    Attributes:
        micro_batches: those of a full batch, G, at least 1.
        steps: steps until the batch is full, N; 0 for full batches from the start.
    """

    micro_batches: int = 1
    steps: int = 0

    def counts(self) -> np.ndarray:
        """Returns the micro-batches of each step of the ramp, [N] int64."""
        return 1 + np.arange(self.steps, dtype=np.int64) * (self.micro_batches - 1) // (
            self.steps or 1
        )

    def before(self, step: int) -> int:
        """Counts the micro-batches of all steps before one.

        Args:
            step: the step's number, from 0; that of all steps for a whole run.
        """
        full = max(0, step - self.steps)
        return int(self.counts()[:step].sum()) + full * self.micro_batches


NO_RAMP = BatchRamp()
