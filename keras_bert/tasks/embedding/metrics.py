"""Defines the objective of training text embeddings, and scores them.

Vectors are compared by their cosines:

scored pairs   Spearman's and Pearson's correlation of cosines and scores
pairs          recall at k: how many anchors have their positive among the k nearest of all
               positives of the evaluation set
retrieval      nDCG, MRR, MAP, recall and precision of the documents nearest to each query
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_bert.models.encoder import pool, project, select_inputs
from keras_bert.tasks.classification.metrics import pearson, spearman
from keras_bert.tasks.embedding.data import TextRows
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.search import nearest, unit_vectors
from keras_bert.tasks.retrieval import RetrievalData, mean_scores, score_ranking
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


# --- scores ---

RECALLS = (1, 5, 10)
_DEPTH = 1000  # documents in the ranking of a query, as usual for trec_eval


def best_metric(items: TextRows | RetrievalData | None) -> str:
    """Returns the name of the metric that determines the best weights."""
    if isinstance(items, RetrievalData):
        return "ndcg_at_10"
    return "recall_at_1" if items is not None and items.scores is None else "spearman"


def score_embeddings(
    items: TextRows | RetrievalData, vectors: np.ndarray, sizes: Sequence[int] = ()
) -> dict[str, float]:
    """Scores the vectors of the texts of n pairs, or of queries and documents.

    `vectors` are float [2 · n, H], where the two texts of a pair are consecutive rows; or those of
    `RetrievalData.columns`, first of the queries. `sizes` are sizes of truncated vectors to score
    too.

    Returns:
        "spearman" and "pearson" for scored pairs; "recall_at_1", "recall_at_5" and "recall_at_10"
        for pairs; the metrics of `evaluate_rankings` for retrieval data. For each size, the same
        names with the suffix `_SIZE`.
    """
    score = _score_retrieval if isinstance(items, RetrievalData) else _score_pairs
    scores = score(items, vectors)
    for size in sizes:
        if size < vectors.shape[-1]:
            truncated = score(items, vectors[:, :size])
            scores |= {f"{name}_{size}": value for name, value in truncated.items()}
    return scores


def _score_retrieval(data: RetrievalData, vectors: np.ndarray) -> dict[str, float]:
    queries, corpus = np.split(vectors.astype(np.float32, copy=False), [len(data.relevance)])
    ids = [*data.corpus]
    rankings = zip(data.relevance.values(), *nearest(queries, corpus, _DEPTH), strict=True)
    return mean_scores(
        score_ranking(judged, {ids[i]: score for i, score in zip(indices, scores, strict=True)})
        for judged, indices, scores in rankings
    )


def _score_pairs(rows: TextRows, vectors: np.ndarray) -> dict[str, float]:
    unit = unit_vectors(vectors.astype(np.float32))
    first, second = unit[0::2], unit[1::2]
    if rows.scores is not None:
        cosines = np.sum(first * second, axis=1, dtype=np.float64)
        return {
            "spearman": spearman(cosines, rows.scores),
            "pearson": pearson(cosines, rows.scores),
        }
    ranks = _ranks(rows.ids, first, second)
    return {f"recall_at_{k}": float(np.mean(ranks < k)) for k in RECALLS}


def _ranks(ids: np.ndarray, anchors: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Returns the ranks of the positives of all anchors, from 0; at least 10 for those above 9.

    The rank is the number of other positives that are at least as near to the anchor. As in
    training (losses.py), equal texts count once, and neither the anchor's own text nor the other
    positives of an equal anchor count.
    """
    queries, first, rows = np.unique(ids[:, 0], return_index=True, return_inverse=True)
    anchors = anchors[first]
    texts, first, columns = np.unique(ids[:, 1], return_index=True, return_inverse=True)
    positives = positives[first]
    column_of = {text: column for column, text in enumerate(texts.tolist())}
    excluded = [[column_of[text]] if text in column_of else [] for text in queries.tolist()]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        excluded[row].append(column)
    indices, _ = nearest(anchors, positives, max(RECALLS), excluded)
    # Computed row by row, so that equal vectors have exactly equal cosines.
    cosines = np.stack([np.sum(anchors * positives[index], axis=1) for index in indices.T], axis=1)
    cosines[indices < 0] = -np.inf
    pair_cosines = np.sum(anchors[rows] * positives[columns], axis=1)
    ranks = np.count_nonzero(cosines[rows] >= pair_cosines[:, np.newaxis], axis=1)
    return np.where(np.isnan(pair_cosines), max(RECALLS), ranks)
