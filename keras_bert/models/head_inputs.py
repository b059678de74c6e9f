"""Defines networks that also return the vectors that the head reads, for distillation."""

from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_bert.models.bert_network import BertNetwork

HEAD_INPUTS = "head_inputs"
SOFT = "soft_"  # Prefix of the outputs that are compared with those of a teacher.


@keras.saving.register_keras_serializable(package="keras_bert")
class TeacherNetwork(keras.Model):
    """A network with the additional output "head_inputs"; it shares the network's weights.

    Args:
        network: a network whose head reads one vector per row, [B, H], or per token, [B, S, H].
    """

    def __init__(self, network: BertNetwork, **kwargs: Any):
        # Keras scales the loss of a model, and JAX selects its kernels, by the model's own policy.
        super().__init__(**{"dtype": network.dtype_policy, **kwargs})
        self.network = network
        self.config = network.config
        self.per_token = network.per_token
        self.required_inputs = network.required_inputs
        self.build((None, None))

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the network has created all variables."""

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns the outputs of the network, and "head_inputs" in float16."""
        outputs, vectors = self.network.call_with_head_inputs(inputs, training)
        return {**outputs, HEAD_INPUTS: keras.ops.cast(vectors, "float16")}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        network = keras.saving.serialize_keras_object(self.network)
        return {**super().get_config(), "network": network}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Creates the network from the result of `get_config`."""
        network = keras.saving.deserialize_keras_object(config["network"], custom_objects)
        return cls(**{**config, "network": network})


@keras.saving.register_keras_serializable(package="keras_bert")
class StudentNetwork(TeacherNetwork):
    """A network with additional outputs, so that `keras.Model.fit` can have one more loss on each.

    They are "soft_NAME", the same as the output NAME, and "head_inputs" in the compute dtype.

    Args:
        network: the network, as for TeacherNetwork.
        additional: the names of the additional outputs to return.
    """

    def __init__(self, network: BertNetwork, additional: Sequence[str], **kwargs: Any):
        super().__init__(network, **kwargs)
        self.additional = [*additional]

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns all outputs; for the inputs, see `BertEncoder.call`."""
        outputs, vectors = self.network.call_with_head_inputs(inputs, training)
        more = {SOFT + name: value for name, value in outputs.items()} | {HEAD_INPUTS: vectors}
        return outputs | {name: more[name] for name in self.additional}

    # Callbacks save and load the student itself.

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves the network without the additional outputs, as `keras.Model.save` does."""
        self.network.save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves the weights of the network, as `keras.Model.save_weights` does."""
        self.network.save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Loads the weights of the network, as `keras.Model.load_weights` does."""
        self.network.load_weights(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "additional": self.additional}
