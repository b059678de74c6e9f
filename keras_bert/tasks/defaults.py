"""Defines the default training settings of each task, which `fit` and the task's program share.

This module imports no Keras, so that programs can print their flags quickly.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingDefaults:
    """The default training settings of a task, documented in `FitSettings`."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    warmup_proportion: float = 0.1
    weight_decay: float = 0.01
    seed: int = 12345
    length_pool: int = 50


# {task: its defaults}. A large pool reduces the scores of NER and SQuAD by several points, because
# a batch of examples of similar length contains few kinds of them: see benchmarks/README.md.
DEFAULTS = {
    "classification": TrainingDefaults(),
    "embedding": TrainingDefaults(epochs=1, batch_size=64, learning_rate=2e-5),
    # Each epoch masks other tokens, so a small corpus can be read several times.
    "fill_mask": TrainingDefaults(epochs=10),
    "ner": TrainingDefaults(length_pool=4),
    # The hyperparameters of Devlin et al. (2019) for SQuAD v1.1.
    "question_answering": TrainingDefaults(
        epochs=2, batch_size=12, learning_rate=3e-5, length_pool=4
    ),
}
