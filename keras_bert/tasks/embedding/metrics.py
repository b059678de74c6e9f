"""Defines the objective of training text embeddings, compares them, and scores them.

Vectors are compared by their cosines:

scored pairs   Spearman's and Pearson's correlation of cosines and scores
pairs          recall at k: how many anchors have their positive among the k nearest of all
               positives of the evaluation set
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_bert.errors import InputError
from keras_bert.models.encoder import pool, project, select_inputs
from keras_bert.tasks.classification.metrics import pearson, spearman
from keras_bert.tasks.embedding.data import TextRows
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.training.objective import Batch, RowObjective

# --- training objective ---


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


# --- comparison ---

_CHUNK = 512  # vectors that are compared with others at once
_CORPUS_CHUNK = 2**14  # vectors of a corpus among them


def _unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors [..., H] to length 1; zero vectors remain zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def cosine_similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosines of vectors [A, H] and [B, H], [A, B]."""
    return np.atleast_2d(_unit_vectors(first)) @ np.atleast_2d(_unit_vectors(second)).T


def nearest(queries: np.ndarray, corpus: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors of a corpus [N, H] with the highest cosines to each of Q queries [Q, H].

    Returns:
        Their indices, int64 [Q, k], and cosines, float32 [Q, k], highest first, where k is the
        smaller of `top_k` and N. Of equal cosines, the lower index is first.
    """
    count = min(top_k, len(corpus))
    indices = np.zeros([len(queries), count], np.int64)
    scores = np.full([len(queries), count], -np.inf, np.float32)
    for start in range(0, len(corpus), _CORPUS_CHUNK):
        chunk = _unit_vectors(corpus[start : start + _CORPUS_CHUNK])
        for first in range(0, len(queries), _CHUNK):
            rows = slice(first, first + _CHUNK)
            cosines = _unit_vectors(queries[rows]) @ chunk.T
            places = np.broadcast_to(np.arange(start, start + len(chunk)), cosines.shape)
            # The best ones of earlier chunks have lower indices.
            cosines = np.concatenate([scores[rows], cosines], axis=1)
            places = np.concatenate([indices[rows], places], axis=1)
            lowest = np.partition(cosines, -count, axis=1)[:, [-count]]
            # Mostly equal numbers are sorted quickly.
            order = np.argsort(np.where(cosines < lowest, np.inf, -cosines), axis=1, kind="stable")
            scores[rows] = np.take_along_axis(cosines, order[:, :count], axis=1)
            indices[rows] = np.take_along_axis(places, order[:, :count], axis=1)
    return indices, scores


# --- scores ---

RECALLS = (1, 5, 10)


def best_metric(has_scores: bool) -> str:
    """Returns the name of the metric that determines the best weights."""
    return "spearman" if has_scores else "recall_at_1"


def score_embeddings(
    rows: TextRows, vectors: np.ndarray, sizes: Sequence[int] = ()
) -> dict[str, float]:
    """Scores the vectors of the texts of n pairs.

    Args:
        rows: the pairs.
        vectors: float [2 · n, H]; the two texts of a pair are consecutive rows.
        sizes: the sizes of truncated vectors to score too, as `spearman_64`.

    Returns:
        "spearman" and "pearson" for scored pairs, otherwise "recall_at_1", "recall_at_5" and
        "recall_at_10"; for each size, the same names with the suffix `_SIZE`.
    """
    scores = _score(rows, vectors)
    for size in sizes:
        if size < vectors.shape[-1]:
            truncated = _score(rows, vectors[:, :size])
            scores |= {f"{name}_{size}": value for name, value in truncated.items()}
    return scores


def truncated_vectors(vectors: np.ndarray, size: int, normalize: bool) -> np.ndarray:
    """Truncates vectors [n, H] to [n, size], and scales them to length 1 if `normalize`.

    Raises:
        InputError: `size` is not a whole number from 1 to H.
    """
    width = vectors.shape[-1]
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= width:
        raise InputError(f"size={size!r}: expected a whole number from 1 to {width}")
    truncated = vectors[:, :size]
    return _unit_vectors(truncated) if normalize else truncated


def _score(rows: TextRows, vectors: np.ndarray) -> dict[str, float]:
    unit = _unit_vectors(vectors.astype(np.float32))
    first, second = unit[0::2], unit[1::2]
    if rows.scores is not None:
        cosines = np.sum(first * second, axis=1, dtype=np.float64)
        return {
            "spearman": spearman(cosines, rows.scores),
            "pearson": pearson(cosines, rows.scores),
        }
    ranks = np.concatenate(list(_ranks(rows.ids, first, second)))
    return {f"recall_at_{k}": float(np.mean(ranks < k)) for k in RECALLS}


def _ranks(ids: np.ndarray, anchors: np.ndarray, positives: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the ranks of the positives of each chunk of anchors, from 0.

    The rank is the number of other positives that are at least as near to the anchor. As in
    training (losses.py), equal texts count once, and neither the anchor's own text nor the other
    positives of an equal anchor count.
    """
    texts, first, column_of = np.unique(ids[:, 1], return_index=True, return_inverse=True)
    candidates = positives[first]
    excluded = {text: [column] for column, text in enumerate(texts.tolist())}
    for anchor, column in zip(ids[:, 0].tolist(), column_of.tolist(), strict=True):
        excluded.setdefault(anchor, []).append(column)
    for start in range(0, len(anchors), _CHUNK):
        cosines = anchors[start : start + _CHUNK] @ candidates.T
        for row, row_cosines in enumerate(cosines):
            cosine = row_cosines[column_of[start + row]]
            row_cosines[excluded[int(ids[start + row, 0])]] = -np.inf
            row_cosines[column_of[start + row]] = cosine
        cosine = cosines[np.arange(len(cosines)), column_of[start : start + len(cosines)]]
        yield np.sum(cosines >= cosine[:, np.newaxis], axis=1) - 1
