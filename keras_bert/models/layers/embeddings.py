"""Piece ids -> the first hidden states: word + position + segment, LayerNorm, dropout.

In: `input_ids` and `segment_ids` [B, S] int32, and `position_ids` [B, S] where they do not just
count from 0. Out: [B, S, H]. Order and sum are those of
Devlin et al. 2019, figure 2, and of Google's released code.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.common.errors import InputError
from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.dropout import Dropout, drop
from keras_bert.models.layers.layer_norm import LayerNorm, layer_norm


@chain
def sum_norm(
    words: Any,
    positions: Any,
    segment_table: Any,
    segment_ids: Any,
    gamma: Any,
    beta: Any,
    drop_key: Any,
    *,
    rate: float,
    epsilon: float,
    dtype: str,
) -> Any:
    """Returns dropout(LN(words + positions + segments)), computed in float32.

    Args:
        words: [B, S, H] float32, a row of the table each.
        positions: [S, H] or [B, S, H] float32.
        segment_table: [types, H] float32.
        segment_ids: [B, S] int32.
        gamma: [H].
        beta: [H].
        drop_key: [B] int32, or None for no dropout.
        rate: probability of dropping an element.
        epsilon: of the LayerNorm.
        dtype: type of the result.

    Returns:
        [B, S, H].
    """
    # A product with one-hot rows: its gradient is a product too, where that of taking rows would
    # add B·S of them to the two of the table, one after the other.
    one_hot = ops.one_hot(segment_ids, segment_table.shape[0], dtype="float32")
    x = layer_norm(words + positions + ops.matmul(one_hot, segment_table), gamma, beta, epsilon)
    return ops.cast(drop(x, drop_key, rate), dtype)


class BertEmbeddings(keras.layers.Layer):
    """Sums the three embeddings of each piece, normalises and drops out.

    Args:
        vocab_size: rows of the word table, V.
        hidden_size: width of every table, H.
        max_position_embeddings: rows of the position table, the longest S.
        type_vocab_size: rows of the segment table.
        initializer_range: standard deviation of the truncated normal the tables start from.
        layer_norm_eps: epsilon of the LayerNorm.
        dropout_rate: probability of dropping an element of the result.
        dropout_site: number of the dropout place.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        initializer_range: float,
        layer_norm_eps: float,
        dropout_rate: float,
        dropout_site: int,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm = LayerNorm(layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy.name)
        self.dropout = Dropout(dropout_rate, dropout_site, dtype=self.dtype_policy.name)

    def build(self, input_shape: tuple | None = None) -> None:
        """Makes the three tables and the LayerNorm."""
        self.word_embeddings = self._table("word_embeddings", self.vocab_size)
        self.position_embeddings = self._table("position_embeddings", self.max_position_embeddings)
        self.token_type_embeddings = self._table("token_type_embeddings", self.type_vocab_size)
        self.layer_norm.build((None, None, self.hidden_size))

    def _table(self, name: str, rows: int) -> Any:
        # One initializer a table: a shared instance would draw the same numbers each time.
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return self.add_weight(
            (rows, self.hidden_size), initializer=initializer, name=name, autocast=False
        )

    def call(
        self,
        input_ids: Any,
        segment_ids: Any,
        dropout_seed: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Returns the hidden states [B, S, H].

        Args:
            input_ids: [B, S] int32, below `vocab_size`.
            segment_ids: [B, S] int32, below `type_vocab_size`.
            dropout_seed: [B] int32, or None outside training.
            position_ids: [B, S] int32, below S; None for 0, 1, 2, ...

        Raises:
            InputError: S is over `max_position_embeddings`.
        """
        length = input_ids.shape[1]
        if length is not None and length > self.max_position_embeddings:
            raise InputError(
                f"sequences of {length} pieces; expected at most max_position_embeddings, "
                f"which is {self.max_position_embeddings}"
            )
        words = ops.take(self.word_embeddings, input_ids, axis=0)
        positions = self.position_embeddings[: ops.shape(input_ids)[1]]
        if position_ids is not None:
            # Taken exactly. The gradient adds up B·S rows, which measured no slower than a product
            # with one-hot rows (6 ms each at B·S = 4096, H = 768 on two cores).
            positions = ops.take(positions, position_ids, axis=0)
        return sum_norm(
            words,
            positions,
            self.token_type_embeddings,
            segment_ids,
            self.layer_norm.gamma,
            self.layer_norm.beta,
            self.dropout.key(dropout_seed),
            rate=self.dropout.rate,
            epsilon=self.layer_norm.epsilon,
            dtype=self.compute_dtype,
        )
