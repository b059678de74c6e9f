"""Defines the BERT encoder, which computes hidden states and the pooled output from token ids.

Shapes: B batch, S length, H hidden size, L layers, N heads.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.bert_network import BertNetwork, batch_and_length
from keras_bert.models.layers.embeddings import BertEmbeddings
from keras_bert.models.layers.heads import Pooler
from keras_bert.models.layers.recompute import recomputed
from keras_bert.models.layers.transformer import TransformerBlock
from keras_bert.models.memory import check_weights_fit


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

    def __init__(
        self, config: BertConfig | Mapping[str, Any], name: str = "encoder", **kwargs: Any
    ):
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
        """The first dropout site number that the encoder does not use (layers/dropout.py)."""
        return 1 + len(self.blocks) * TransformerBlock.DROPOUT_SITES

    def build(self, input_shape: Any = None) -> None:
        """Creates all variables; called by the constructor."""
        if self.embeddings.built:
            return
        input_shape = batch_and_length(input_shape)
        hidden_shape = (*input_shape, self.config.hidden_size)
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
            run = recomputed(block)
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
            given = (hidden[-1], inputs["input_mask"], None, inputs.get("example_ids"))
            if attention_probabilities:
                output, attended = block(*given, return_attention_probabilities=True)
                probabilities.append(attended)
            else:
                output = block(*given)
            hidden.append(output)
        outputs = {"hidden_states": hidden}
        if attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        return outputs

    def _embed(self, inputs: dict[str, Any], dropout_seed: Any) -> Any:
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
