"""Defines the signatures of a task as three steps, which an engine can run separately.

    request -> preprocess -> rows of token ids -> network -> outputs -> decode -> answers

A signature of the SavedModel runs all steps. An engine such as OpenVINO runs only the network; the
SavedModel then also contains `preprocess` and `decode` of each signature as functions, so that
there is one implementation of them.

B rows, S length of a row, T tokens of all rows.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from keras_bert.serving.engines.spec import NetworkSpec

Outputs = Mapping[str, tf.Tensor]


class Inputs(Protocol):
    """The result of `preprocess`: the inputs of the network, and anything that `decode` needs.

    It is a nested structure that `tf.nest` can flatten. `input_ids` and `segment_ids` are ragged
    int32 [B, (S)].
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class NetworkInputs(NamedTuple):
    """The inputs of the network alone."""

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


class Steps(NamedTuple):
    """The steps of a signature around the network.

    Attributes:
        specs: the inputs of the signature, with their names.
        preprocess: converts the inputs of the signature into the inputs of the network.
        decode: converts the outputs of the network and the result of `preprocess` into answers.
    """

    specs: Sequence[tf.TensorSpec]
    preprocess: Callable[..., Inputs]
    decode: Callable[[Outputs, Any], dict[str, tf.Tensor]]


class ServedTask(tf.Module):
    """The SavedModel signatures of a task."""

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        raise NotImplementedError

    def outputs(self, inputs: Inputs) -> dict[str, tf.Tensor]:
        """Runs the network, and returns the outputs that `spec` describes."""
        return self.network(inputs.input_ids, inputs.segment_ids)

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec({"logits": "row"})

    def run(self, signature: str, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Runs all steps of a signature."""
        steps = self.steps()[signature]
        prepared = steps.preprocess(
            *(tf.convert_to_tensor(x, s.dtype) for x, s in zip(inputs, steps.specs, strict=True))
        )
        return steps.decode(self.outputs(prepared), prepared)

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        return {name: self._function(name, steps.specs) for name, steps in self.steps().items()}

    def _function(self, name: str, specs: Sequence[tf.TensorSpec]) -> Callable:
        def signature(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.run(name, *inputs)

        # Named arguments, so that the function can be called as the loaded signature is.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [inspect.Parameter(spec.name, kind) for spec in specs]
        signature.__signature__ = inspect.Signature(names)
        return tf.function(signature, input_signature=list(specs), autograph=False)
