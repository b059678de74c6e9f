"""Defines the losses of text embeddings, which compare the vectors of a batch, and the objective.

mnrl     multiple-negatives ranking (Henderson et al. 2017): softmax cross-entropy of each
         positive among the positives and negatives of the whole batch
cosine   squared difference between the cosine of a pair and its score
cosent   log(1 + the sum of exp(scale · (cosine of pair i - cosine of pair j))) over all pairs of
         examples (i, j) of which j has the higher score (Su 2022)

Shapes: B examples of k texts each, R = B · k rows, H hidden size.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.errors import InputError
from keras_bert.models.encoder import pool, project, select_inputs
from keras_bert.training.objective import Batch, RowObjective

LOSSES = ("mnrl", "cosent", "cosine")
# The losses in which each example depends on the others of its batch.
IN_BATCH_LOSSES = ("mnrl", "cosent")
DEFAULT_SCALE = 20.0
_EXCLUDED = -1e9  # the logit of a text that is not a negative


class EmbeddingLoss:
    """A loss on the vectors of a batch. Losses with equal attributes are equal, as objectives are.

    Args:
        name: one of `LOSSES`.
        scale: the factor of cosines in mnrl and cosent, the inverse of the temperature.
        columns: k, the number of texts in an example.
        sizes: the loss is the mean over vectors truncated to these sizes; empty for whole vectors.
    """

    def __init__(
        self, name: str, scale: float = DEFAULT_SCALE, columns: int = 2, sizes: Sequence[int] = ()
    ):
        if name not in LOSSES:
            raise InputError(f"loss={name!r}: expected one of {', '.join(LOSSES)}")
        is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not is_number or not 0 < scale < float("inf"):
            raise InputError(f"scale={scale!r}: expected a finite number above 0")
        self.name, self.scale, self.columns, self.sizes = name, scale, columns, tuple(sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmbeddingLoss) and vars(self) == vars(other)

    @property
    def takes_scores(self) -> bool:
        """Whether the loss is for scored pairs; otherwise it is for pairs and triplets."""
        return self.name != "mnrl"

    def total(self, vectors: Any, scores: Any, ids: Any, weights: Any) -> Any:
        """Computes the numerator of the loss; the denominator is `weight`.

        The k texts of an example are consecutive rows of `vectors`, float [R, H]. `scores`, float
        [R], are those of the row's example, or 0. `ids`, int [R], are equal for equal texts.
        `weights`, float [R], are 1 for texts of examples and 0 for rows that fill the batch.
        """
        scores, ids, weights = (
            ops.reshape(values, [-1, self.columns]) for values in (scores, ids, weights)
        )
        losses = []
        for size in self.sizes or [vectors.shape[-1]]:
            unit = ops.reshape(normalized(vectors[:, :size]), [-1, self.columns, size])
            if self.name == "mnrl":
                losses.append(_ranking(unit, ids, weights[:, 0], self.scale))
                continue
            cosines = ops.sum(unit[:, 0] * unit[:, 1], axis=-1)
            if self.name == "cosine":
                losses.append(ops.sum(weights[:, 0] * ops.square(cosines - scores[:, 0])))
            else:
                losses.append(_cosent(self.scale * cosines, scores[:, 0], weights[:, 0] > 0))
        return sum(losses) / len(losses)

    def weight(self, weights: Any) -> Any:
        """Computes the denominator: the number of examples, or 1 for cosent."""
        if self.name == "cosent":
            return ops.ones([], "float32")
        return ops.sum(weights) / self.columns


def normalized(vectors: Any) -> Any:
    """Scales vectors [R, H] to length 1; zero vectors remain zero."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, 1e-24))


def _ranking(vectors: Any, ids: Any, weights: Any, scale: float) -> Any:
    """Sums the cross-entropy of each positive among the B · (k - 1) candidates of its anchor.

    The candidates are the positives of all examples, then their negatives. Those are not negatives
    of an anchor: rows that fill the batch, texts equal to the anchor, and texts equal to a positive
    of an equal anchor, such as its own.
    """
    anchors = vectors[:, 0]
    candidates = ops.reshape(ops.swapaxes(vectors[:, 1:], 0, 1), [-1, vectors.shape[-1]])
    logits = scale * ops.matmul(anchors, ops.transpose(candidates))

    real = weights > 0
    texts = ops.reshape(ops.transpose(ids[:, 1:]), [1, -1])
    same_anchor = ops.logical_and(ids[:, 0:1] == ids[None, :, 0], real[None, :])  # [B, B]
    same_text = ids[:, 1:2] == texts  # [B, B · (k - 1)]
    counts = ops.matmul(ops.cast(same_anchor, "float32"), ops.cast(same_text, "float32"))
    excluded = ops.logical_or(counts > 0, texts == ids[:, 0:1])
    excluded = ops.logical_or(excluded, ops.tile(~real, [vectors.shape[1] - 1])[None, :])
    index = ops.arange(logits.shape[1])[None, :]  # The first B candidates are the positives.
    is_positive = index == ops.arange(logits.shape[0])[:, None]
    logits = ops.where(ops.logical_and(excluded, ~is_positive), _EXCLUDED, logits)
    positive = ops.sum(anchors * vectors[:, 1], axis=-1) * scale
    return ops.sum(weights * (ops.logsumexp(logits, axis=1) - positive))


def _cosent(cosines: Any, scores: Any, real: Any) -> Any:
    """Computes the loss of scaled cosines [B]; `real` are the rows of examples, bool [B]."""
    differences = cosines[:, None] - cosines[None, :]
    counted = ops.logical_and(scores[:, None] < scores[None, :], real[:, None] & real[None, :])
    differences = ops.reshape(ops.where(counted, differences, _EXCLUDED), [-1])
    return ops.logsumexp(ops.concatenate([ops.zeros([1]), differences]))


class EmbeddingObjective(RowObjective):
    """The objective for a `BertEncoder` and batches with "scores" and "text_ids" [R].

    `pooling` is `mean` or `cls`.
    """

    def __init__(self, loss: EmbeddingLoss, pooling: str):
        self.embedding_loss, self.pooling = loss, pooling
        self.rows_per_example = loss.columns

    def weights(self, batch: Batch) -> dict[str, Any]:
        """Returns the denominator of the loss."""
        return {"loss": self.embedding_loss.weight(batch["example_weights"])}

    def vectors(self, model: keras.Model, batch: Batch, training: bool) -> Any:
        """Returns the vectors of the texts, float32 [R, H]."""
        hidden = model(select_inputs(batch), training=training)["sequence_output"]
        return project(model, pool(hidden, batch["input_mask"], self.pooling))

    def sums_of_vectors(self, vectors: Any, batch: Batch) -> dict[str, Any]:
        """Returns the numerator of the loss."""
        labels = (batch[name] for name in ("scores", "text_ids", "example_weights"))
        return {"loss": self.embedding_loss.total(vectors, *labels)}
