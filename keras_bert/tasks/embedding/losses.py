"""Defines the losses of text embeddings, which compare the vectors of the texts of a batch.

mnrl     multiple-negatives ranking (Henderson et al. 2017): softmax cross-entropy of each
         positive among the positives and negatives of the whole batch
cosine   squared difference between the cosine of a pair and its score
cosent   log(1 + the sum of exp(scale · (cosine of pair i - cosine of pair j))) over all pairs of
         examples (i, j) of which j has the higher score (Su 2022)

`keras.Model.fit` trains a `CachedGradientEncoder`, which computes batches in micro-batches. The
gradients are those of the whole batch (training/cached_gradients.py). TensorFlow only; it is
imported in `train_step`, because files of `model.save` are opened without it.

Shapes: B examples of k texts each, R = B · k rows, r rows of a micro-batch, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
from keras import ops

from keras_bert.errors import InputError
from keras_bert.models.encoder import BertEncoder, PooledEncoder, vector_size

if TYPE_CHECKING:
    import tensorflow as tf


LOSSES = ("mnrl", "cosent", "cosine")
# The losses in which each example depends on the others of its batch.
IN_BATCH_LOSSES = ("mnrl", "cosent")
DEFAULT_SCALE = 20.0
_EXCLUDED = -1e9  # the logit of a text that is not a negative


@dataclass(frozen=True)
class EmbeddingLoss:
    """A loss on the vectors of a batch.

    Attributes:
        name: one of `LOSSES`.
        scale: the factor of cosines in mnrl and cosent, the inverse of the temperature.
        columns: k, the number of texts in an example.
        sizes: the loss is the mean over vectors truncated to these sizes; empty for whole vectors.
    """

    name: str
    scale: float = DEFAULT_SCALE
    columns: int = 2
    sizes: Sequence[int] = ()

    def __post_init__(self):
        if self.name not in LOSSES:
            raise InputError(f"loss={self.name!r}: expected one of {', '.join(LOSSES)}")
        is_number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not is_number or not 0 < self.scale < float("inf"):
            raise InputError(f"scale={self.scale!r}: expected a finite number above 0")

    @property
    def takes_scores(self) -> bool:
        """Whether the loss is for scored pairs; otherwise it is for pairs and triplets."""
        return self.name != "mnrl"

    def total(self, vectors: Any, labels: "RowLabels") -> Any:
        """Computes the numerator of the loss; the denominator is `weight`.

        `vectors` are float [R, H]; the k texts of an example are consecutive rows.
        """
        losses = []
        for size in self.sizes or [vectors.shape[-1]]:
            unit = normalized(vectors[:, :size])
            by_example = ops.reshape(unit, [-1, self.columns, size])
            losses.append(_TOTALS[self.name](by_example, labels.by_example(self.columns), self))
        return sum(losses) / len(losses)

    def weight(self, weights: Any) -> Any:
        """Computes the denominator: the number of examples, or 1 for cosent.

        `weights`, float [R], is 1 for the texts of examples and 0 for rows that fill the batch.
        """
        if self.name == "cosent":
            return ops.ones([], "float32")
        return ops.sum(weights) / self.columns


class RowLabels(NamedTuple):
    """The labels of the R rows of a batch, or of its B examples.

    Attributes:
        scores: the score of the row's example, float; 0 without scores.
        ids: a number for each text, int; the same for equal texts.
        weights: 1 for texts of examples and 0 for rows that fill the batch, float.
    """

    scores: Any
    ids: Any
    weights: Any

    def by_example(self, columns: int) -> "RowLabels":
        """Returns the scores [B], the ids [B, k] and the weights [B] of examples of k texts."""
        scores, ids, weights = (ops.reshape(value, [-1, columns]) for value in self)
        return RowLabels(scores[:, 0], ids, weights[:, 0])


def normalized(vectors: Any) -> Any:
    """Scales vectors [R, H] to length 1; zero vectors remain zero."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, 1e-24))


def _ranking(vectors: Any, labels: RowLabels, loss: EmbeddingLoss) -> Any:
    anchors = vectors[:, 0]
    candidates = ops.reshape(ops.swapaxes(vectors[:, 1:], 0, 1), [-1, vectors.shape[-1]])
    logits = loss.scale * ops.matmul(anchors, ops.transpose(candidates))
    excluded = ops.logical_and(_not_negative(labels, loss), ~_own_positive(labels, loss))
    logits = ops.where(excluded, _EXCLUDED, logits)
    positive = ops.sum(anchors * vectors[:, 1], axis=-1) * loss.scale
    return ops.sum(labels.weights * (ops.logsumexp(logits, axis=1) - positive))


def _not_negative(labels: RowLabels, loss: EmbeddingLoss) -> Any:
    """Returns whether each of the B · (k - 1) candidates is not a negative of each anchor.

    That is the case for rows that fill the batch, for texts equal to the anchor, and for texts
    equal to a positive of an equal anchor, such as its own.
    """
    ids, real = labels.ids, labels.weights > 0
    candidates = ops.reshape(ops.transpose(ids[:, 1:]), [1, -1])
    filler = ops.tile(~real, [loss.columns - 1])[None, :]
    same_anchor = ops.logical_and(ids[:, 0:1] == ids[None, :, 0], real[None, :])  # [B, B]
    same_text = ids[:, 1:2] == candidates  # [B, B · (k - 1)]
    counts = ops.matmul(ops.cast(same_anchor, "float32"), ops.cast(same_text, "float32"))
    excluded = ops.logical_or(counts > 0, candidates == ids[:, 0:1])
    return ops.logical_or(excluded, filler)


def _own_positive(labels: RowLabels, loss: EmbeddingLoss) -> Any:
    places = ops.arange(ops.shape(labels.ids)[0])
    return _pad_columns(places[:, None] == places[None, :], loss.columns)


def _pad_columns(of_positives: Any, columns: int) -> Any:
    """Adds False for the negatives to bools of the positives: [B, B] -> [B, B · (k - 1)]."""
    rest = [ops.zeros_like(of_positives)] * (columns - 2)
    return ops.concatenate([of_positives, *rest], axis=1)


def _squared_error(vectors: Any, labels: RowLabels, loss: EmbeddingLoss) -> Any:
    return ops.sum(labels.weights * ops.square(_cosines(vectors) - labels.scores))


def _cosent(vectors: Any, labels: RowLabels, loss: EmbeddingLoss) -> Any:
    scaled = loss.scale * _cosines(vectors)
    differences = scaled[:, None] - scaled[None, :]
    real = labels.weights > 0
    counted = ops.logical_and(
        labels.scores[:, None] < labels.scores[None, :], real[:, None] & real[None, :]
    )
    differences = ops.reshape(ops.where(counted, differences, _EXCLUDED), [-1])
    return ops.logsumexp(ops.concatenate([ops.zeros([1]), differences]))


def _cosines(vectors: Any) -> Any:
    return ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)


_TOTALS = {"mnrl": _ranking, "cosine": _squared_error, "cosent": _cosent}


@keras.saving.register_keras_serializable("keras_bert")
class BatchLoss(keras.losses.Loss):
    """The loss for `keras.Model.fit`: an `EmbeddingLoss` divided by its weight.

    Targets are float32 [R, 2], the score of the row's example and the number of the row's text.
    """

    def __init__(self, name: str, scale: float, columns: int, sizes: Sequence[int] = ()):
        super().__init__(name=name)
        self.loss = EmbeddingLoss(name, scale, columns, tuple(sizes))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Computes the loss of a batch, a scalar."""
        weights = ops.ones_like(y_true[:, 0])
        labels = RowLabels(y_true[:, 0], y_true[:, 1], weights)
        return self.loss.total(y_pred, labels) / self.loss.weight(weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        loss = self.loss
        return {
            "name": loss.name,
            "scale": loss.scale,
            "columns": loss.columns,
            "sizes": [*loss.sizes],
        }


# --- training with keras.Model.fit ---


def network_for_training(encoder: BertEncoder, pooling: str, steps: Any) -> PooledEncoder:
    """Returns the network that `fit` trains with batches of `steps` micro-batches.

    Raises:
        InputError: `steps` is not a whole number of at least 1, or it is above 1 and the backend is
            not TensorFlow.
    """
    where = f"gradient_accumulation_steps={steps!r}"
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"{where}: expected a whole number of at least 1")
    if steps == 1:
        return PooledEncoder(encoder, pooling)
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise InputError(f"{where}: found the Keras backend {backend}; expected tensorflow, or 1")
    return CachedGradientEncoder(encoder, pooling, steps)


@keras.saving.register_keras_serializable(package="keras_bert")
class CachedGradientEncoder(PooledEncoder):
    """A `PooledEncoder` whose training steps keep only one micro-batch in memory.

    Args:
        encoder: the encoder.
        pooling: `mean` or `cls`.
        steps: the number of micro-batches of a batch.
    """

    def __init__(self, encoder: BertEncoder, pooling: str, steps: int, **kwargs: Any):
        super().__init__(encoder, pooling, **kwargs)
        self._steps = steps
        self._compiles_micro_batches = False

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "steps": self._steps}

    @property
    def jit_compile(self) -> bool:
        """False: `train_step` compiles only the micro-batches; XLA needs loops of fixed shapes."""
        return False

    @jit_compile.setter
    def jit_compile(self, value: bool) -> None:
        self._compiles_micro_batches = value

    def train_step(self, data: "tuple[dict[str, tf.Tensor], Any]") -> dict[str, Any]:
        """Takes a training step on a batch (inputs, targets); returns the logs."""
        import tensorflow as tf

        from keras_bert.training.step import MicroBatches, compiled, in_micro_batches

        inputs, targets = data
        variables = self.trainable_variables
        rows = tf.shape(inputs["input_ids"])[0]
        size = -(-rows // self._steps)

        def part(i: tf.Tensor) -> dict[str, tf.Tensor]:
            return {name: value[i * size : (i + 1) * size] for name, value in inputs.items()}

        def forward(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            return self(batch, training=True)["vectors"]

        def loss_of(vectors: tf.Tensor) -> tuple[tuple[tf.Tensor, Any], tf.Tensor]:
            predicted = {"vectors": vectors}
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                loss = self.compute_loss(inputs, targets, predicted, training=True)
                scaled = self.optimizer.scale_loss(loss)
            return (loss, predicted), tape.gradient(scaled, vectors)

        def backward(batch: dict[str, tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
            weights = [variable.value for variable in variables]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                vectors = forward(batch)
            found = tape.gradient(vectors, weights, upstream, unconnected_gradients="zero")
            return [tf.convert_to_tensor(gradient) for gradient in found]

        run_forward, run_backward = (
            compiled(function, self._compiles_micro_batches) for function in (forward, backward)
        )
        (loss, predicted), gradients = in_micro_batches(
            -(-rows // size),
            MicroBatches(
                lambda i: run_forward(part(i)),
                loss_of,
                lambda i, upstream: run_backward(part(i), upstream),
            ),
            [size, vector_size(self.encoder)],
            variables,
        )
        self.optimizer.apply(gradients, variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=rows)
        return self.compute_metrics(inputs, targets, predicted)
