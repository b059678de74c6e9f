"""The heads, and the encoder with each of them: pre-training, classes, token classes, spans."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
from keras import ops

from keras_bert.models.encoder import BertEncoder, BertNetwork, batch_and_length
from keras_bert.models.layers import (
    ACTIVATIONS,
    BiasAndNorm,
    Config,
    ConfiguredLayer,
    Dropout,
    LayerNorm,
    SplitDense,
    chain,
    layer_norm,
    take_positions,
    with_bias,
)

# --- layers ---


@chain
def activation_norm(
    product: Any, weights: BiasAndNorm, *, activation: Callable[[Any], Any], epsilon: float
) -> Any:
    """Computes LN(act(product + bias)) in float32; returns [..., H] in the dtype of `product`."""
    x = activation(with_bias(product, weights.bias))
    return ops.cast(layer_norm(x, weights.gamma, weights.beta, epsilon), product.dtype)


@chain
def biased_logits(product: Any, bias: Any) -> Any:
    """Adds the bias [V] to the product [..., V or more]; returns float32 [..., V]."""
    size = bias.shape[0]
    if product.shape[-1] > size:  # The table has padding.
        product = product[..., :size]
    return ops.cast(product, "float32") + bias


@chain
def prediction_sums(logits: Any, labels: Any, weights: Any) -> Any:
    """Returns the weighted sums of negative log-likelihoods and of correct predictions, [2].

    `logits` are [..., V] float32, `labels` [...] int32, and `weights` [...] float32.
    """
    nll = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    # The first maximum, as with argmax; XLA's argmax takes nearly twice as long.
    largest = ops.max(logits, -1, keepdims=True)
    vocab_size = logits.shape[-1]
    first = ops.min(ops.where(logits == largest, ops.arange(vocab_size), vocab_size), -1)
    hits = ops.cast(first == labels, "float32")
    return ops.stack([ops.sum(weights * nll), ops.sum(weights * hits)])


@ops.custom_gradient
def tied_product(x: Any, table: Any) -> Any:
    """Computes x·tableᵀ, [B * P, H] and [V, H] -> [B * P, V], with a custom gradient.

    The default gradient copies the transposed table, which takes longer than the product.
    """

    def gradient(*given: Any, upstream: Any = None) -> tuple[Any, Any]:
        if upstream is None:
            (upstream,) = given
        return ops.matmul(upstream, table), ops.matmul(ops.transpose(upstream), x)

    return ops.matmul(x, ops.transpose(table)), gradient


@keras.saving.register_keras_serializable(package="keras_bert")
class MaskedLMHead(ConfiguredLayer):
    """Scores every token of the vocabulary at the masked positions.

    The product with the word embeddings [V, H] is the most expensive one of the model. Therefore,
    the hidden states at the masked positions, about 20 of 128, are gathered first. In a
    left-to-right model, the head scores the tokens at every position.
    """

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.dense = SplitDense.of(config.hidden_size, config.initializer_range, "dense", dtype)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.layer_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)

    def build(self, hidden_shape: tuple) -> None:
        """Creates the dense layer, the LayerNorm and the output bias [V], but no output kernel."""
        self.dense.build((None, hidden_shape[-1]))
        self.layer_norm.build((None, hidden_shape[-1]))
        self.output_bias = self.add_weight(
            (self.config.vocab_size,), initializer="zeros", name="output_bias", autocast=False
        )

    def call(self, hidden: Any, positions: Any, word_embeddings: Any) -> Any:
        """Returns the logits [B, P, V], float32, of the hidden states [B, S, H].

        `positions` [B, P] int32 are below S; None for all positions (P is S). `word_embeddings` is
        the encoder's table [V, H] (Press & Wolf 2017).
        """
        if positions is None:
            shape, hidden = ops.shape(hidden)[:2], ops.reshape(hidden, (-1, hidden.shape[-1]))
        else:
            shape, hidden = ops.shape(positions), take_positions(hidden, positions)
        product, bias = self.dense.product_and_bias(hidden)
        x = activation_norm(
            product,
            BiasAndNorm(bias, self.layer_norm.gamma, self.layer_norm.beta),
            activation=self.activation,
            epsilon=self.layer_norm.epsilon,
        )  # [B * P, H]
        table = ops.cast(word_embeddings, self.compute_dtype)
        if keras.config.backend() == "jax":
            # GPUs multiply matrices fastest whose sizes are multiples of 64.
            table = ops.pad(table, ((0, -self.config.vocab_size % 64), (0, 0)))
        logits = biased_logits(tied_product(x, table), self.output_bias)
        return ops.reshape(logits, (*shape, self.config.vocab_size))

    def compute_output_shape(
        self, hidden_shape: tuple, positions_shape: tuple | None = None
    ) -> tuple:
        """Returns the shape [B, P, V]; P is S without positions."""
        return (*(positions_shape or hidden_shape[:2]), self.config.vocab_size)

    def compute_output_spec(self, hidden: Any, positions: Any, word_embeddings: Any) -> Any:
        """Returns the symbolic logits."""
        positions_shape = None if positions is None else positions.shape
        shape = self.compute_output_shape(hidden.shape, positions_shape)
        return keras.KerasTensor(shape, dtype="float32")


def linear_head(
    units: int, initializer_range: float, name: str, dtype: Any = None
) -> keras.layers.Dense:
    """Creates an unbuilt Dense layer whose logits are float32 for every compute dtype.

    `dtype`, the model's dtype policy, is used only if it is a DTypePolicyMap, as in a quantized
    model. The kernel is initialized with a truncated normal of standard deviation
    `initializer_range`.
    """
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
        name=name,
        dtype=dtype if isinstance(dtype, keras.dtype_policies.DTypePolicyMap) else "float32",
    )


# --- one linear layer ---


class LinearClassifier(BertNetwork):
    """BERT with dropout and a linear layer on one of the encoder's outputs."""

    heads = ("classifier",)
    output_names = ("logits",)
    head_input: str  # The encoder's output that the head reads.

    def __init__(self, config: Config, num_labels: int, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.num_labels = num_labels
        rate = config.classifier_dropout
        rate = config.hidden_dropout_prob if rate is None else rate
        self.dropout = Dropout(rate, self.encoder.next_dropout_site, dtype=dtype)
        self.classifier = linear_head(num_labels, config.initializer_range, "classifier", dtype)
        shape = (None,) * (1 + self.per_token) + (config.hidden_size,)
        self.dropout.build(shape)
        self.classifier.build(shape)
        self.build((None, None))

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike,
        *,
        num_labels: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Creates a network with the weights of a checkpoint.

        `num_labels` defaults to the number of labels of the checkpoint's classifier. A classifier
        that is not in the checkpoint is newly initialized, which is logged as a warning. The other
        arguments are those of `BertNetwork.from_pretrained`.

        Raises:
            InputError: if the checkpoint cannot be opened, does not match the network, or was
                fine-tuned for another task; or if it has no classifier and `num_labels` is missing.
        """
        return super().from_pretrained(path, dtype=dtype, num_labels=num_labels, **kwargs)

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"logits": [B, C] or [B, S, C]}, float32; for inputs, see `BertEncoder.call`."""
        seed = self.encoder.dropout_seed(inputs, training)
        # The head and the encoder must use the same dropout seeds.
        seeded = inputs if seed is None else {**inputs, "dropout_seed": seed}
        hidden = self.encoder(seeded, training=training)[self.head_input]
        return {"logits": self.classifier(self.dropout(hidden, seed))}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the logits."""
        rows = batch_and_length(input_shape)[: 1 + self.per_token]
        return {"logits": (*rows, self.num_labels)}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "num_labels": self.num_labels}


@keras.saving.register_keras_serializable(package="keras_bert")
class BertClassifier(LinearClassifier):
    """BERT with dropout and a linear layer on the pooled output.

    Args:
        config: a `BertConfig` or its dict.
        num_labels: the number of classes, or 1 for regression.
        dtype: dtype policy; defaults to the global policy.
    """

    architecture = "BertForSequenceClassification"
    task, purpose = "classification", "predicts the label or score of a text"
    per_token = False
    head_input = "pooled_output"


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifier(LinearClassifier):
    """BERT with dropout and a linear layer on the hidden state of every token.

    Args:
        config: a `BertConfig` or its dict.
        num_labels: the number of tags.
        dtype: dtype policy; defaults to the global policy.
    """

    architecture = "BertForTokenClassification"
    task, purpose = "ner", "finds named entities in texts"
    per_token = True
    head_input = "sequence_output"


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSpanLabeler(BertNetwork):
    """BERT that scores every token as the start and as the end of an answer span.

    Args:
        config: a `BertConfig` or its dict.
        dtype: dtype policy; defaults to the global policy.
    """

    architecture = "BertForQuestionAnswering"
    task, purpose = "question_answering", "answers questions with a span of a given text"
    heads = ("span",)
    output_names = ("start_logits", "end_logits")  # The columns of the head.
    per_token = True

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.span = linear_head(2, config.initializer_range, "span", dtype)
        self.span.build((None, None, config.hidden_size))
        self.build((None, None))

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"start_logits", "end_logits"}, each [B, S] float32.

        For the inputs, see `BertEncoder.call`.
        """
        logits = self.span(self.encoder(inputs, training=training)["sequence_output"])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shapes of the outputs."""
        shape = batch_and_length(input_shape)
        return {"start_logits": shape, "end_logits": shape}


# --- pre-training ---


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(BertNetwork):
    """BERT with the heads for masked LM and next sentence prediction.

    With `is_decoder` in the config, this is a left-to-right model: the masked-LM head predicts the
    next token at every position (Devlin et al. 2019, sections 3.1 and 5.1).

    Args:
        config: a `BertConfig` or its dict.
        dtype: dtype policy, such as "mixed_bfloat16"; defaults to the global policy.
    """

    architecture = "BertForPreTraining"
    task, purpose = "fill_mask", "predicts the tokens at [MASK] in a text"
    heads = ("masked_lm", "next_sentence")

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.masked_lm = MaskedLMHead(config, name="masked_lm", dtype=dtype)
        self.next_sentence = linear_head(2, config.initializer_range, "next_sentence", dtype)
        self.masked_lm.build((None, None, config.hidden_size))
        self.next_sentence.build((None, config.hidden_size))
        self.build((None, None))

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The keys that every input dict must contain."""
        names = super().required_inputs
        return names if self.config.is_decoder else (*names, "masked_lm_positions")

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"masked_lm_logits": [B, P, V], "next_sentence_logits": [B, 2]}, float32.

        V is the vocabulary size, and P the number of predictions in a row. A left-to-right model
        needs no "masked_lm_positions", and returns {"next_token_logits": [B, S, V]}.

        Args:
            inputs: the inputs of `BertEncoder.call`, and "masked_lm_positions" [B, P] int32, below
                S. With "next_sentence_positions" [B, K] int32, the first position of each example
                in a row, the next-sentence logits are [B, K, 2].
            training: whether to apply dropout.
        """
        hidden = self.encoder(inputs, training=training)
        table = self.encoder.embeddings.word_embeddings
        if self.config.is_decoder:
            return {"next_token_logits": self.masked_lm(hidden["sequence_output"], None, table)}
        pooled = hidden["pooled_output"]
        if "next_sentence_positions" in inputs:
            pooled = self.encoder.pooler(
                hidden["sequence_output"], inputs["next_sentence_positions"]
            )
        return {
            "masked_lm_logits": self.masked_lm(
                hidden["sequence_output"], inputs["masked_lm_positions"], table
            ),
            "next_sentence_logits": self.next_sentence(pooled),
        }

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shapes of the outputs."""
        batch, length = batch_and_length(input_shape)
        words = self.config.vocab_size
        if self.config.is_decoder:
            return {"next_token_logits": (batch, length, words)}
        shapes = input_shape if isinstance(input_shape, Mapping) else {}
        _, predictions = shapes.get("masked_lm_positions", (batch, None))
        examples = shapes.get("next_sentence_positions", (batch,))
        return {
            "masked_lm_logits": (batch, predictions, words),
            "next_sentence_logits": (*examples, 2),
        }
