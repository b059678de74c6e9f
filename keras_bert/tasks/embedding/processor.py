"""Converts texts to token ids, and hidden states to vectors, with TensorFlow operations.

    prompt + text [B] -> tokens -> [CLS] a [SEP]                       preprocess
    hidden states [T, H] -> [CLS] vector, mean, pooled [B, H] each     vectors, decode

As in sentence-transformers, the mean is over all tokens, including [CLS] and [SEP]. The vector of
the model's pooling passes the Dense layers of the model, if there are any, and is truncated to
`truncate_dim`. With windows, a vector of a text is the mean of the vectors of its windows, before
it is normalized.

B texts, n rows (windows, or texts), T tokens of all rows, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tasks.text_processor import TRUNCATED, LongText, TextProcessor
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import Segments
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import TextWindows


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings of a `TextEmbedder`.

    Attributes:
        max_seq_length: maximum number of tokens, including [CLS] and [SEP]; for longer texts, see
            `long_text`.
        normalize: whether vectors are scaled to length 1, so that dot products are cosines.
        pooling: the pooling of the sentence-transformers model, `cls` or `mean`; None if unknown.
        pooled: whether the model has a pooler; without one there is no `pooled` output.
        matryoshka_sizes: the sizes of truncated vectors that the model was trained for.
        long_text: the settings for texts with more tokens.
        dense: the arguments of the Dense layers that the vector of the pooling passes.
        prompts: texts by name, of which one is put before a text.
        default_prompt_name: the name of the prompt that is used by default; None for none.
        truncate_dim: the size to which the vector of the pooling is truncated; None for none.

    Raises:
        InputError: the windows are not pooled by their mean, or their stride is invalid.
    """

    max_seq_length: int = 128
    normalize: bool = False
    pooling: str | None = None
    pooled: bool = True
    matryoshka_sizes: tuple[int, ...] = ()
    long_text: LongText = TRUNCATED
    dense: tuple[Mapping[str, Any], ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    truncate_dim: int | None = None

    def __post_init__(self):
        self.long_text.check_stride(self.max_seq_length)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vectors of a text, in order."""
        return ("cls", "mean", "pooled")[: 2 + self.pooled]

    def width(self, hidden_size: int) -> int:
        """Returns the size of the vectors of the pooling, before they are truncated."""
        return self.dense[-1]["units"] if self.dense else hidden_size

    def prompt(self, name: str | None) -> str:
        """Returns the prompt of a name, or of the default name for None; "" for no prompt."""
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            names = ", ".join(self.prompts) or "None, because the model has no prompts"
            raise InputError(f"prompt_name={name!r:.60}: expected one of {names}")
        return "" if name is None else self.prompts[name]


class EmbeddingProcessor(TextProcessor):
    """Converts texts to inputs of the network, and its hidden states to vectors."""

    def __init__(
        self,
        tokenizer: BertTokenizer,
        settings: EmbedderSettings,
        dense: Sequence[keras.layers.Dense] = (),
    ):
        super().__init__(tokenizer, settings)
        self._dense = dense

    def preprocess(self, text: tf.Tensor, prompt_name: str | None = None) -> Any:
        """Converts texts [B], after a prompt, into model inputs, as `TextProcessor`."""
        prompt = self.settings.prompt(prompt_name)
        return super().preprocess(tf.strings.join([prompt, text]) if prompt else text)

    def vectors(self, hidden: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the hidden state of [CLS] and the mean over all tokens of each row, [n, 2, H].

        `hidden`, [T, H], has the hidden states of all rows. `splits`, int [n + 1], has the start of
        each row, followed by T.
        """
        first = tf.gather(hidden, splits[:-1])
        return tf.stack([first, tf.math.segment_mean(hidden, row_ids(splits))], axis=1)

    def decode(
        self, outputs: Mapping[str, tf.Tensor], inputs: Segments | TextWindows
    ) -> dict[str, tf.Tensor]:
        """Splits the output `vectors`, [n, 2 or 3, H], by name; normalizes if `normalize` is set.

        Returns:
            `cls`, `mean` and, if the model has a pooler, `pooled`, float32 [B, H] each, where the
            vector of the pooling may have another size;
            `truncated`, bool [B]; and `num_tokens`, int32 [B], with [CLS] and [SEP], over all
            windows.
        """
        settings = self.settings
        names, vectors = settings.names, tf.unstack(outputs["vectors"], axis=1)
        if self._dense:
            index = names.index(settings.pooling)
            vectors[index] = self._projected(vectors[index])
        vectors = [self.pooled(values, inputs) for values in vectors]
        if settings.normalize:
            vectors = [tf.math.l2_normalize(values, axis=-1) for values in vectors]
        named = dict(zip(names, vectors, strict=True))
        if settings.truncate_dim is not None:
            name = settings.pooling or "mean"
            named[name] = named[name][:, : settings.truncate_dim]
        num_tokens = tf.cast(inputs.input_ids.row_lengths(), tf.int32)
        if isinstance(inputs, TextWindows):
            num_tokens = tf.math.segment_sum(num_tokens, inputs.text)
        return {**named, "truncated": inputs.truncated, "num_tokens": num_tokens}

    def _projected(self, vectors: tf.Tensor) -> tf.Tensor:
        """Applies the Dense layers: [n, H] -> [n, D]. Their weights are constants in a graph."""
        for layer in self._dense:
            with tf.init_scope():
                kernel, *bias = map(keras.ops.convert_to_numpy, layer.weights)
            vectors = tf.matmul(vectors, kernel)
            for values in bias:
                vectors = tf.nn.bias_add(vectors, values)
            vectors = _ACTIVATIONS[layer.activation.__name__](vectors)
        return vectors


# Keras' name of an activation -> the same in TensorFlow.
_ACTIVATIONS = {
    "linear": tf.identity,
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "gelu": tf.nn.gelu,
}
