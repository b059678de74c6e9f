"""The encoder, the base class of all networks, and the encoder that pools."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
from keras import ops

from keras_bert.errors import InputError
from keras_bert.models.attention import TransformerBlock
from keras_bert.models.layers import (
    BertEmbeddings,
    Config,
    Pooler,
    bert_config,
    encoder_weights,
    replaced,
)
from keras_bert.models.memory import check_weights_fit

# --- base class ---


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

    heads: ClassVar[tuple[str, ...]] = ()  # The names of the layers that are heads.
    architecture: ClassVar[str]  # The class in transformers with the same heads.
    task: ClassVar[str]  # The task of the heads; a key of `keras_bert.tasks.CLASSES`.
    purpose: ClassVar[str]  # What the network does, in a model card.
    per_token: ClassVar[bool] = False  # Whether the logits are those of each token.

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = bert_config(config)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike, *, dtype: Any = None, **kwargs: Any) -> Self:
        """Creates a network with the weights of a checkpoint.

        A head that is not in the checkpoint is newly initialized, which is logged as a warning.

        Args:
            path: a model directory of keras_bert or Hugging Face, the directory of an earlier run,
                a TF1 checkpoint of Google (prefix or directory), a KerasHub preset, or the name of
                a model on the Hugging Face Hub, such as "bert-base-uncased".
            dtype: dtype policy; defaults to the global policy.
            **kwargs: further arguments of the constructor.

        Raises:
            InputError: if the checkpoint cannot be opened, does not match the network, or was
                fine-tuned for another task.
        """
        # Imported here, because keras_bert.checkpoints imports this package.
        from keras_bert.checkpoints.open import open_checkpoint

        checkpoint = open_checkpoint(path, hub_names=True)
        return checkpoint.make_network(cls, dtype=dtype, **kwargs)

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

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the network for inference, like `keras.Model.export`.

        `input_signature` defaults to the required inputs, int32 matrices of any size.
        """
        if input_signature is None:
            shape = {"shape": (None, None), "dtype": "int32"}
            names = self.required_inputs
            input_signature = [{name: keras.InputSpec(**shape, name=name) for name in names}]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    @property
    def _default_save_signature(self) -> None:
        # TensorFlow reads this to save a model. Keras's default would trace a call with float ids.
        return None

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


# --- encoder ---


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEncoder(BertNetwork):
    """BERT without heads (Devlin et al. 2019); weights are created by the constructor.

    With `is_decoder` in the config, tokens do not attend to later tokens (a left-to-right model;
    Devlin et al. 2019, section 5.1). The pooled output is then computed from the last token,
    because the first token attends only to itself. Variable paths are the encoder's name, followed
    by names as in Google's checkpoints: `encoder/layer_0/attention/self/query/kernel`.

    Args:
        config: a `BertConfig` or its dict.
        name: the first part of every variable's path.
        dtype: dtype policy, such as "mixed_bfloat16"; defaults to the global policy.

    Example:
        encoder = BertEncoder(BertConfig.from_json("base"))
        hidden = encoder({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
    """

    architecture = "BertModel"
    task, purpose = "embedding", "converts texts to embedding vectors"

    def __init__(self, config: Config, name: str = "encoder", **kwargs: Any):
        super().__init__(config, name=name, **kwargs)
        check_weights_fit(self.config)
        config, dtype = self.config, self.dtype_policy
        self.embeddings = BertEmbeddings(config, dropout_site=0, name="embeddings", dtype=dtype)
        self.blocks = [
            TransformerBlock(
                config,
                dropout_site=1 + index * TransformerBlock.DROPOUT_SITES,
                name=f"layer_{index}",
                dtype=dtype,
            )
            for index in range(config.num_hidden_layers)
        ]
        self.pooler = Pooler(config, name="pooler", dtype=dtype)
        # Used only for calls without "dropout_seed".
        self.seed_generator = keras.random.SeedGenerator(name="seed_generator")
        self.build((None, None))

    @property
    def next_dropout_site(self) -> int:
        """The first dropout site number that the encoder does not use."""
        return 1 + len(self.blocks) * TransformerBlock.DROPOUT_SITES

    def build(self, input_shape: Any = None) -> None:
        """Creates all variables; called by the constructor."""
        if self.embeddings.built:
            return
        input_shape = batch_and_length(input_shape)
        hidden_shape = (*input_shape, self.config.hidden_size)
        with encoder_weights():
            self.embeddings.build(input_shape)
            for block in self.blocks:
                block.build(hidden_shape)
        self.pooler.build(hidden_shape)

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"sequence_output": [B, S, H], "pooled_output": [B, H]} in the compute dtype.

        Rows that contain several examples need "position_ids", which count from 0 in each example,
        and "example_ids", which are 1, 2, ... for the examples and 0 for padding. Tokens then
        attend only within their example, so an example has the same hidden states as in a row of
        its own.

        Args:
            inputs: {"input_ids", "input_mask", "segment_ids"}, each [B, S] int32, with a mask of 1
                for tokens and 0 for padding; optionally "dropout_seed" [B] int32 (by default drawn
                at random in training), and "position_ids" and "example_ids" [B, S] int32.
            training: whether to apply dropout.

        Raises:
            InputError: if S is over `max_position_embeddings`.
        """
        dropout_seed = self.dropout_seed(inputs, training)
        hidden = self._embed(inputs, dropout_seed)
        for block in self.blocks:
            run = replaced(block)
            hidden = run(hidden, inputs["input_mask"], dropout_seed, inputs.get("example_ids"))
        if self.config.is_decoder:
            pooled = self.pooler(hidden, _last_position(inputs["input_mask"]))[:, 0]
        else:
            pooled = self.pooler(hidden)
        return {"sequence_output": hidden, "pooled_output": pooled}

    def layer_outputs(
        self, inputs: dict[str, Any], *, attention_probabilities: bool = True
    ) -> dict[str, list[Any]]:
        """Computes the hidden states of all layers, without dropout.

        Args:
            inputs: the same as for `call`.
            attention_probabilities: whether to return the attention probabilities too.

        Returns:
            {"hidden_states": L + 1 tensors [B, S, H], of the embeddings and of each layer;
            "attention_probabilities": L tensors [B, N, S, S], queries by keys, if requested}.

        Raises:
            InputError: if a key is missing or unknown, or S is over `max_position_embeddings`.
        """
        self.check_inputs(inputs)
        hidden, probabilities = [self._embed(inputs, None)], []
        for block in self.blocks:
            arguments = (hidden[-1], inputs["input_mask"], None, inputs.get("example_ids"))
            if attention_probabilities:
                probabilities.append(block(*arguments, only_probabilities=True))
            hidden.append(block(*arguments))
        outputs = {"hidden_states": hidden}
        if attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        return outputs

    def _embed(self, inputs: dict[str, Any], dropout_seed: Any) -> Any:
        length, most = inputs["input_ids"].shape[1], self.config.max_position_embeddings
        if isinstance(length, int) and length > most:
            raise InputError(
                f"sequences of {length} tokens; expected at most max_position_embeddings, "
                f"which is {most}"
            )
        return self.embeddings(
            inputs["input_ids"], inputs["segment_ids"], dropout_seed, inputs.get("position_ids")
        )

    def dropout_seed(self, inputs: dict[str, Any], training: bool | None) -> Any:
        """Returns the dropout seed of each row, [B] int32; None outside training."""
        if not training:
            return None
        if "dropout_seed" in inputs:
            return ops.cast(inputs["dropout_seed"], "int32")
        batch = ops.shape(inputs["input_ids"])[:1]
        return keras.random.randint(batch, 0, 2**31 - 1, dtype="int32", seed=self.seed_generator)

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shapes of the outputs."""
        batch, length = batch_and_length(input_shape)
        width = self.config.hidden_size
        return {"sequence_output": (batch, length, width), "pooled_output": (batch, width)}

    @property
    def _output_dtype(self) -> str:
        return self.embeddings.compute_dtype

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """Adds LoRA matrices to all kernels of the transformer blocks (Hu et al. 2021).

        The rest of the encoder is frozen. The arguments are those of `BertNetwork.enable_lora`.
        """
        for block in self.blocks:
            for dense in block.dense_layers:
                dense.enable_lora(rank, lora_alpha)
        for variable in self.trainable_variables:
            variable.trainable = variable.name.startswith("lora_")


def _last_position(input_mask: Any) -> Any:
    """Returns the position of the last token of each row, [B, 1] int32; 0 for empty rows."""
    mask = ops.cast(input_mask, "int32")
    return ops.max(mask * ops.arange(ops.shape(mask)[1], dtype="int32"), axis=1, keepdims=True)


# --- pooled encoder ---


POOLINGS = ("mean", "cls")


@keras.saving.register_keras_serializable(package="keras_bert")
class SentenceEncoder(BertEncoder):
    """An encoder with the layers that a model of sentence-transformers applies to a pooled vector.

    Args:
        config: a `BertConfig` or its dict.
        dense: the arguments of each layer: "units", "activation" and "use_bias".
    """

    def __init__(self, config: Any, dense: Sequence[Mapping[str, Any]] = (), **kwargs: Any):
        self._dense_options = [dict(options) for options in dense]
        super().__init__(config, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates all variables; called by the constructor."""
        if self.embeddings.built:
            return
        super().build(input_shape)
        self.dense = [
            keras.layers.Dense(**options, name=f"dense_{index}", dtype="float32")
            for index, options in enumerate(self._dense_options)
        ]
        self.width = self.config.hidden_size
        for layer in self.dense:
            layer.build((None, self.width))
            self.width = layer.units

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "dense": self._dense_options}


def project(encoder: BertEncoder, vectors: Any) -> Any:
    """Applies the Dense layers of a `SentenceEncoder` to pooled vectors, if `encoder` is one."""
    for layer in getattr(encoder, "dense", ()):
        vectors = layer(vectors)
    return vectors


def vector_size(encoder: BertEncoder) -> int:
    """Returns the size of the vectors of texts."""
    return getattr(encoder, "width", encoder.config.hidden_size)


def pool(hidden: Any, input_mask: Any, pooling: str) -> Any:
    """Reduces hidden states [B, S, H] to vectors [B, H], float32.

    `pooling` is `cls`, the hidden state of [CLS], or `mean`, the mean over all tokens, including
    [CLS] and [SEP]. `input_mask` [B, S] is 1 for tokens and 0 for padding.
    """
    hidden = ops.cast(hidden, "float32")
    if pooling == "cls":
        return hidden[:, 0]
    mask = ops.cast(input_mask, "float32")[..., None]
    return ops.sum(hidden * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


@keras.saving.register_keras_serializable(package="keras_bert")
class PooledEncoder(keras.Model):
    """An encoder followed by a pooling of its hidden states; it shares the encoder's weights.

    Args:
        encoder: the encoder.
        pooling: `mean` or `cls`; or several names, of these and `pooled` for the pooled output.
    """

    per_token = False

    def __init__(self, encoder: BertEncoder, pooling: str | Sequence[str] = "mean", **kwargs: Any):
        # Keras scales the loss of a model, and JAX selects its kernels, by the model's own policy.
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        self.encoder = encoder
        self.pooling = pooling
        self.config = encoder.config

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the encoder has created all variables."""

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"vectors": float32 [B, H or width], or [B, k, H] for k names of poolings}.

        The vectors of several poolings are those before the Dense layers of a `SentenceEncoder`.
        For the inputs, see `BertEncoder.call`.
        """
        outputs = self.encoder(inputs, training=training)

        def vectors(pooling: str) -> Any:
            if pooling == "pooled":
                return ops.cast(outputs["pooled_output"], "float32")
            return pool(outputs["sequence_output"], inputs["input_mask"], pooling)

        if isinstance(self.pooling, str):
            return {"vectors": project(self.encoder, vectors(self.pooling))}
        return {"vectors": ops.stack([vectors(name) for name in self.pooling], axis=1)}

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The keys that every input dict must contain."""
        return self.encoder.required_inputs

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the vectors."""
        batch, _ = batch_and_length(input_shape)
        if isinstance(self.pooling, str):
            return {"vectors": (batch, vector_size(self.encoder))}
        return {"vectors": (batch, len(self.pooling), self.config.hidden_size)}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder, "pooling": self.pooling}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Creates the network from the result of `get_config`."""
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
        return cls(**{**config, "encoder": encoder})
