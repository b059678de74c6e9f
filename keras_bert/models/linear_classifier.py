"""Defines the base class of the text and token classifiers."""

import os
from collections.abc import Mapping
from typing import Any, Self

from keras_bert.config import BertConfig
from keras_bert.models.bert_network import BertNetwork
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers.dropout import Dropout
from keras_bert.models.layers.heads import linear_head


class LinearClassifier(BertNetwork):
    """BERT with dropout and a linear layer on one of the encoder's outputs."""

    heads = ("classifier",)
    per_token: bool
    head_input: str  # The encoder's output that the head reads.

    def __init__(self, config: BertConfig | Mapping[str, Any], num_labels: int, **kwargs: Any):
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

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "num_labels": self.num_labels}
