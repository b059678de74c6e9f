"""The objects that training updates: model, optimizer and loss scale, with their objective."""

from dataclasses import dataclass

import keras

from keras_bert.optimization.loss_scale import LossScale
from keras_bert.training.objective import Objective


@dataclass(frozen=True)
class TrainState:
    """A model and the objects that train it, all created in the strategy's scope.

    Attributes:
        model: the model that `objective.sums` takes.
        optimizer: an optimizer built on the model's trainable variables.
        objective: the losses to minimize and the metrics to report.
        loss_scale: the loss scale; only for float16.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    objective: Objective
    loss_scale: LossScale | None = None
