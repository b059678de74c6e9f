"""The BERT encoder: piece ids in, hidden states and the pooled first piece out.

In: {"input_ids", "input_mask", "segment_ids"}, each [B, S] int32, and if wanted "dropout_seed"
[B] int32, one a row. Out: {"sequence_output" [B, S, H], "pooled_output" [B, H]}.

Rows that hold several examples side by side also bring "position_ids", which count from 0 in
each example, and "example_ids", 1 up and 0 at padding, both [B, S] int32. Attention then stays
within an example, so each comes out as it would in a row of its own.

With `is_decoder` in the config a piece attends to none after it (a left-to-right model; Devlin et
al. 2019, section 5.1). The first piece then sees itself alone, so the last real piece is pooled.

    encoder = BertEncoder(BertConfig.from_json("base"))
    hidden = encoder({"input_ids": ids, "input_mask": mask, "segment_ids": segments})

Variable paths start with the encoder's own name, whatever model it is part of, and then follow
Google's checkpoints: `encoder/layer_0/attention/self/query/kernel`.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.layers.embeddings import BertEmbeddings
from keras_bert.models.layers.heads import Pooler
from keras_bert.models.layers.recompute import recomputed
from keras_bert.models.layers.transformer import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEncoder(keras.Model):
    """BERT without heads (Devlin et al. 2019); its weights exist after construction.

    Args:
        config: sizes and settings, or their dict.
        name: first part of every variable's path.
        dtype: dtype policy, such as "mixed_bfloat16"; by default the global one.
    """

    def __init__(self, config: BertConfig | dict, name: str = "encoder", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        self.config = config
        shared = {
            "hidden_size": config.hidden_size,
            "initializer_range": config.initializer_range,
            "layer_norm_eps": config.layer_norm_eps,
            "dtype": self.dtype_policy.name,
        }
        self.embeddings = BertEmbeddings(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            dropout_rate=config.hidden_dropout_prob,
            dropout_site=0,
            name="embeddings",
            **shared,
        )
        self.blocks = [
            TransformerBlock(
                num_attention_heads=config.num_attention_heads,
                intermediate_size=config.intermediate_size,
                hidden_act=config.hidden_act,
                hidden_dropout_prob=config.hidden_dropout_prob,
                attention_probs_dropout_prob=config.attention_probs_dropout_prob,
                dropout_site=1 + index * TransformerBlock.DROPOUT_SITES,
                causal=config.is_decoder,
                name=f"layer_{index}",
                **shared,
            )
            for index in range(config.num_hidden_layers)
        ]
        self.pooler = Pooler(
            config.hidden_size,
            config.initializer_range,
            name="pooler",
            dtype=self.dtype_policy.name,
        )
        # Only for calls that bring no seeds of their own.
        self.seed_generator = keras.random.SeedGenerator(name="seed_generator")
        self.build((None, None))

    @property
    def next_dropout_site(self) -> int:
        """The first dropout site that a model may use for itself."""
        return 1 + len(self.blocks) * TransformerBlock.DROPOUT_SITES

    def build(self, input_shape: tuple) -> None:
        """Makes every variable; the constructor calls it."""
        hidden_shape = (*input_shape, self.config.hidden_size)
        self.embeddings.build(input_shape)
        for block in self.blocks:
            block.build(hidden_shape)
        self.pooler.build(hidden_shape)

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"sequence_output" [B, S, H], "pooled_output" [B, H]}.

        Args:
            inputs: {"input_ids", "input_mask", "segment_ids"}, each [B, S] int32; "dropout_seed"
                [B] int32 may be there, else one is drawn for each row when training;
                "position_ids" and "example_ids" [B, S] int32 are there for packed rows.
            training: whether dropout is on.

        Raises:
            InputError: S is over `max_position_embeddings`.
        """
        hidden = self.hidden_states(inputs, training)[-1]
        if self.config.is_decoder:
            pooled = self.pooler(hidden, _last_piece(inputs["input_mask"]))[:, 0]
        else:
            pooled = self.pooler(hidden)
        return {"sequence_output": hidden, "pooled_output": pooled}

    def hidden_states(self, inputs: dict[str, Any], training: bool | None = False) -> list[Any]:
        """Returns the output of the embeddings and of each block, [B, S, H] each, L + 1 in all.

        Args:
            inputs: as for the call.
            training: whether dropout is on.

        Raises:
            InputError: S is over `max_position_embeddings`.
        """
        dropout_seed = self.dropout_seed(inputs, training)
        hidden = [
            self.embeddings(
                inputs["input_ids"], inputs["segment_ids"], dropout_seed, inputs.get("position_ids")
            )
        ]
        for block in self.blocks:
            run = recomputed(block)
            hidden.append(
                run(hidden[-1], inputs["input_mask"], dropout_seed, inputs.get("example_ids"))
            )
        return hidden

    def dropout_seed(self, inputs: dict[str, Any], training: bool | None) -> Any:
        """Returns the seed of each row [B] int32, or None where dropout is off.

        Args:
            inputs: as for the call.
            training: whether dropout is on.
        """
        if not training:
            return None
        if "dropout_seed" in inputs:
            return ops.cast(inputs["dropout_seed"], "int32")
        batch = ops.shape(inputs["input_ids"])[:1]
        return keras.random.randint(batch, 0, 2**31 - 1, dtype="int32", seed=self.seed_generator)

    def get_config(self) -> dict[str, Any]:
        """Returns what the constructor takes."""
        return {**super().get_config(), "config": self.config.to_dict()}


def _last_piece(input_mask: Any) -> Any:
    """Returns where the last real piece of each row stands, [B, 1] int32; 0 where there is none."""
    mask = ops.cast(input_mask, "int32")
    return ops.max(mask * ops.arange(ops.shape(mask)[1], dtype="int32"), axis=1, keepdims=True)
