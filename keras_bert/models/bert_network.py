"""Defines the base class of all models."""

import os
from collections.abc import Mapping
from typing import Any, Self

import keras

from keras_bert.common.errors import InputError
from keras_bert.config import BertConfig
from keras_bert.models.layers.configured import bert_config

# The inputs of all networks. A network ignores optional inputs that it does not use.
_REQUIRED = ("input_ids", "input_mask", "segment_ids")
_OPTIONAL = ("dropout_seed", "position_ids", "example_ids")
_PRETRAINING = ("masked_lm_positions", "next_sentence_positions")


def select_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a batch that are inputs of a network, not labels or loss weights."""
    return {name: batch[name] for name in (*_REQUIRED, *_OPTIONAL, *_PRETRAINING) if name in batch}


class BertNetwork(keras.Model):
    """The base class of BERT with or without a head; weights are created by the constructor.

    Inputs are a dict of int32 tensors: "input_ids", "input_mask" (1 for tokens, 0 for padding) and
    "segment_ids", each [batch B, length S]. Optional are "dropout_seed" [B] and, for rows that
    contain several examples, "position_ids" and "example_ids" [B, S] (see `BertEncoder.call`).

    Args:
        config: a `BertConfig` or its dict.
        name: the model's name.
        dtype: dtype policy, such as "mixed_bfloat16"; defaults to the global policy.
    """

    # The names of the layers that are heads.
    heads: tuple[str, ...] = ()

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.config = bert_config(config)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike, *, dtype: Any = None, **kwargs: Any) -> Self:
        """Creates a network with the weights of a checkpoint.

        A head that is not in the checkpoint is newly initialized, which is logged as a warning.

        Args:
            path: a model directory of keras_bert or Hugging Face, the directory of an earlier run,
                a TF1 checkpoint of Google (prefix or directory), or a KerasHub preset.
            dtype: dtype policy; defaults to the global policy.
            **kwargs: further arguments of the constructor.

        Raises:
            InputError: if the checkpoint cannot be opened, does not match the network, or was
                fine-tuned for another task.
        """
        from keras_bert.models.loading import load_network

        return load_network(cls, path, {"dtype": dtype, **kwargs})

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The keys that every input dict must contain."""
        return _REQUIRED

    def check_inputs(self, inputs: Any) -> None:
        """Raises an `InputError` if the inputs are not a dict, or have missing or unknown keys."""
        required = self.required_inputs
        optional = [name for name in (*_OPTIONAL, *_PRETRAINING) if name not in required]
        expected = f"expected {', '.join(required)} and optionally {', '.join(optional)}"
        if not isinstance(inputs, Mapping):
            kind = type(inputs).__name__
            raise InputError(f"{type(self).__name__}: inputs are a {kind}; {expected} in a dict")
        missing = [name for name in required if name not in inputs]
        unknown = [str(name) for name in inputs if name not in (*required, *optional)]
        if missing or unknown:
            problems = [f"the keys {', '.join(map(str, inputs)) or '(none)'}"]
            problems += [f"without {', '.join(missing)}"] * bool(missing)
            problems += [f"with the unknown {', '.join(unknown)}"] * bool(unknown)
            raise InputError(
                f"{type(self).__name__}: inputs have {', '.join(problems)}; {expected}"
            )

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks the keys of the inputs and runs the network."""
        self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the constructor creates all variables."""

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Returns the symbolic outputs of a call."""
        shapes = self.compute_output_shape({name: x.shape for name, x in inputs.items()})
        return {
            name: keras.KerasTensor(shape, dtype=self._output_dtype)
            for name, shape in shapes.items()
        }

    @property
    def _output_dtype(self) -> str:
        return "float32"

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """Adds LoRA matrices to all kernels of the transformer blocks (Hu et al. 2021).

        The rest of the encoder is frozen; heads stay trainable. Compile the model afterwards.

        Args:
            rank: the rank of the update of each kernel.
            lora_alpha: the update is scaled by lora_alpha / rank; by default, the scale is 1.
        """
        self.encoder.enable_lora(rank, lora_alpha)

    def input_signature(self) -> list[dict[str, keras.InputSpec]]:
        """Returns the signature for export: the required inputs, int32 matrices of any size."""
        return [
            {
                name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
                for name in self.required_inputs
            }
        ]

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the network for inference, like `keras.Model.export`.

        `input_signature` defaults to the result of the method `input_signature`.
        """
        if input_signature is None:
            input_signature = self.input_signature()
            if keras.backend.backend() == "jax" and format == "tf_saved_model":
                kwargs["jax2tf_kwargs"] = self._jax_shapes() | (kwargs.get("jax2tf_kwargs") or {})
        super().export(filepath, format, verbose, input_signature, **kwargs)

    @property
    def _default_save_signature(self) -> None:
        # TensorFlow reads this to save a model. Keras's default would trace a call with float ids.
        return None

    def _jax_shapes(self) -> dict[str, Any]:
        """Returns the options of jax2tf: symbolic shapes of the inputs, and no gradient."""
        shapes = dict.fromkeys(self.required_inputs, "(batch, length)")
        if "masked_lm_positions" in shapes:
            shapes["masked_lm_positions"] = "(batch, predictions)"
        return {
            "with_gradient": False,
            "polymorphic_shapes": [shapes],
            "polymorphic_constraints": [f"length <= {self.config.max_position_embeddings}"],
        }

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        config = {**super().get_config(), "config": self.config.to_dict()}
        if any(layer.quantization_mode for layer in self._flatten_layers()):
            config["dtype"] = self._policies()
        return config

    def _policies(self) -> keras.dtype_policies.DTypePolicyMap:
        """Returns a map from layer paths to dtype policies, to rebuild a quantized model."""
        policies = keras.dtype_policies.DTypePolicyMap(
            default_policy=self.encoder.embeddings.dtype_policy.name
        )
        for layer in self._flatten_layers(include_self=False):
            if layer.path and layer.dtype_policy.name != policies.default_policy.name:
                policies[layer.path] = layer.dtype_policy
        return policies


def batch_and_length(input_shape: Any) -> tuple:
    """Returns (B, S), given the shape of "input_ids" or a dict of the shapes of all inputs."""
    return tuple(input_shape["input_ids"] if isinstance(input_shape, Mapping) else input_shape)
