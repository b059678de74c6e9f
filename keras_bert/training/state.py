"""Defines the objects that a training step uses and updates."""

from dataclasses import dataclass

import keras

from keras_bert.optimization.optimizers import AdamWeightDecay, LossScale
from keras_bert.training.objective import Objective


@dataclass(frozen=True)
class TrainState:
    """A model and the objects that train it, all created in the strategy's scope.

    The optimizer is built on the model's trainable variables, and `objective` has the losses and
    metrics. There is a loss scale only for float16.
    """

    model: keras.Model
    optimizer: AdamWeightDecay
    objective: Objective
    loss_scale: LossScale | None = None
