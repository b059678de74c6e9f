"""The state that training changes: model, optimizer and loss scale, with their objective."""

from dataclasses import dataclass

import keras

from keras_bert.optimization.loss_scale import LossScale
from keras_bert.training.objective import Objective


@dataclass(frozen=True)
class TrainState:
    """A model and the objects that train it, all made under the strategy's scope.

    Attributes:
        model: the model that `objective.sums` takes.
        optimizer: an optimizer built on the model's trainable variables.
        objective: the sums to minimize and to report.
        loss_scale: the factor of the loss, for float16 only.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    objective: Objective
    loss_scale: LossScale | None = None
