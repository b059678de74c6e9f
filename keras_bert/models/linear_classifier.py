"""The base of both classifiers: BERT, dropout and one linear layer; they differ in its input."""

import os
from collections.abc import Mapping
from typing import Any, Self

from keras_bert.config import BertConfig
from keras_bert.models.bert_network import BertNetwork
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers.dropout import Dropout
from keras_bert.models.layers.heads import linear_head


class LinearClassifier(BertNetwork):
    """BERT, dropout and one linear layer.

    Args:
        config: sizes and settings, or their dict.
        num_labels: logits of each example or token.
        dtype: dtype policy; by default the global one.
    """

    heads = ("classifier",)
    per_token: bool

    def __init__(self, config: BertConfig | Mapping[str, Any], num_labels: int, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.num_labels = num_labels
        self.dropout = Dropout(
            config.hidden_dropout_prob, self.encoder.next_dropout_site, dtype=dtype
        )
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
        """Makes a network with the weights of a checkpoint.

        A classifier that the checkpoint lacks is newly initialized, which is logged as a warning.

        Args:
            path: a checkpoint of any format; see `BertNetwork.from_pretrained`.
            num_labels: by default as many as the checkpoint's classifier has.
            dtype: dtype policy; by default the global one.
            **kwargs: further arguments of the constructor.

        Returns:
            The network.

        Raises:
            InputError: the checkpoint cannot be opened, does not fit, or is of another task; or it
                has no classifier and `num_labels` is missing.
        """
        return super().from_pretrained(path, dtype=dtype, num_labels=num_labels, **kwargs)

    def _classify(self, output: str, inputs: dict[str, Any], training: bool | None) -> Any:
        """Returns the logits of one of the encoder's outputs."""
        seed = self.encoder.dropout_seed(inputs, training)
        # The head's dropout uses the encoder's seeds.
        seeded = inputs if seed is None else {**inputs, "dropout_seed": seed}
        hidden = self.encoder(seeded, training=training)[output]
        return self.classifier(self.dropout(hidden, seed))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "num_labels": self.num_labels}
