"""Compares vectors by their cosines: search in blocks, scores of evaluations, hard negatives.

pairs -> vectors of queries and texts -> nearest -> negatives -> triplets
"""

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_bytes, write_json
from keras_bert.tasks.classification.metrics import pearson, spearman
from keras_bert.tasks.embedding.data import PAIR, TextRows, read_pairs_to_mine
from keras_bert.tasks.fine_tuning import FineTuningRun, create_model, data_record
from keras_bert.tasks.retrieval import RetrievalData, mean_scores, score_ranking
from keras_bert.tasks.settings import EmbeddingSettings, MiningSettings
from keras_bert.training.log import progress
from keras_bert.training.run_folder import RESULTS, is_finished, log_finished, running

if TYPE_CHECKING:
    from keras_bert.tasks.embedding.task import TextEmbedder

_QUERIES = 512  # queries that are compared at once
_CORPUS = 2**14  # with this many vectors of a corpus


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors [..., H] to length 1; zero vectors remain zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def cosine_similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosines of vectors [A, H] and [B, H], [A, B]."""
    return np.atleast_2d(unit_vectors(first)) @ np.atleast_2d(unit_vectors(second)).T


def truncated_vectors(vectors: np.ndarray, size: int, normalize: bool) -> np.ndarray:
    """Truncates vectors [n, H] to [n, size], and scales them to length 1 if `normalize`."""
    width = vectors.shape[-1]
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= width:
        raise InputError(f"size={size!r}: expected a whole number from 1 to {width}")
    truncated = vectors[:, :size]
    return unit_vectors(truncated) if normalize else truncated


def nearest(
    queries: np.ndarray,
    corpus: np.ndarray,
    top_k: int,
    excluded: Sequence[Sequence[int]] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors of a corpus [N, H] with the highest cosines to each of Q queries [Q, H].

    The search is exact. Besides its arguments and results, it needs memory only for a block of
    cosines. `excluded` has for each query the indices that are not returned; () for none.

    Returns:
        Their indices, int64 [Q, k], and cosines, float32 [Q, k], highest first, where k is the
        smaller of `top_k` and N. Of equal cosines, the lower index is first. If too many vectors
        are excluded, the last indices are -1.
    """
    count = min(top_k, len(corpus))
    indices = np.full([len(queries), count], -1, np.int64)
    scores = np.full([len(queries), count], -np.inf, np.float32)
    queries = unit_vectors(queries)
    excluded_rows = [row for row, columns in enumerate(excluded) for _ in columns]
    pairs = np.array([excluded_rows, [*itertools.chain(*excluded)]], np.int64)
    # Arrays of this size that are allocated again for each block take twice the time.
    size = min(_QUERIES, len(queries)) * min(_CORPUS, len(corpus))
    all_cosines, all_flags = np.empty(size, np.float32), np.empty(size, bool)
    with progress("searching", len(corpus), "vectors") as advance:
        for start in range(0, len(corpus), _CORPUS):
            block = unit_vectors(corpus[start : start + _CORPUS])
            for first in range(0, len(queries), _QUERIES):
                rows = slice(first, first + _QUERIES)
                shape = [len(queries[rows]), len(block)]
                cosines, flags = (
                    array[: shape[0] * shape[1]].reshape(shape)
                    for array in (all_cosines, all_flags)
                )
                np.matmul(queries[rows], block.T, out=cosines)
                pairs_of_rows = slice(*np.searchsorted(pairs[0], [first, first + shape[0]]))
                in_block = pairs[:, pairs_of_rows] - [[first], [start]]
                is_inside = (in_block[1] >= 0) & (in_block[1] < shape[1])
                cosines[tuple(in_block[:, is_inside])] = -np.inf
                np.greater(cosines, scores[rows, -1:], out=flags)
                _merge(scores[rows], indices[rows], cosines, flags, start)
            advance(len(block))
    return indices, scores


def _merge(
    scores: np.ndarray, indices: np.ndarray, cosines: np.ndarray, flags: np.ndarray, start: int
) -> None:
    """Replaces the k highest scores, and their indices, by those among them and further cosines.

    Changes `scores`, float32 [q, k], highest first, and `indices`, int64 [q, k]. `cosines` are
    float32 [q, n]; `flags`, bool [q, n], which are higher than the lowest score of their row, also
    changes. `start` is the index of the first of the n vectors, higher than the earlier indices.
    """
    num_rows, count = scores.shape
    if np.count_nonzero(flags) > 4 * scores.size:  # As in the first block.
        flags &= cosines >= np.partition(cosines, -count, axis=1)[:, [-count]]
    rows, columns = np.divmod(np.flatnonzero(flags), flags.shape[1])
    counts = np.bincount(rows, minlength=num_rows)
    # The new scores of each row, at the beginning of the row: after earlier, lower indices.
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    new_scores = np.full([num_rows, counts.max()], -np.inf, np.float32)
    new_indices = np.zeros(new_scores.shape, np.int64)
    new_scores[rows, positions] = cosines[rows, columns]
    new_indices[rows, positions] = start + columns
    all_scores = np.concatenate([scores, new_scores], axis=1)
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :count]
    scores[:] = np.take_along_axis(all_scores, order, axis=1)
    indices[:] = np.take_along_axis(np.concatenate([indices, new_indices], axis=1), order, axis=1)


# --- scores ---
# scored pairs   Spearman's and Pearson's correlation of cosines and scores
# pairs          recall at k: how many anchors have their positive among the k nearest of all
#                positives of the evaluation set
# retrieval      nDCG, MRR, MAP, recall and precision of the documents nearest to each query

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


# --- hard negatives ---

TRIPLETS = "triplets.jsonl"
# The search window has room for this number of positives; queries with more are searched without
# them, so that one query does not widen the windows of all.
_MOST = 100


def mine_examples(
    rows: TextRows,
    texts: Sequence[str],
    vectors_of: Callable[..., Sequence[np.ndarray]],
    settings: MiningSettings,
) -> tuple[list[str], ...]:
    """Mines negatives for pairs, and returns the columns of `TextEmbedder.mine_negatives`.

    As in `mine_hard_negatives` of sentence-transformers 6.2, `skip_top` is `range_min`, `margin` is
    `absolute_margin`, and `range_max` has its default for up to _MOST positives. `texts` may be
    negatives besides the positives. `vectors_of` returns the vectors of its arguments `queries` and
    `corpus`, lists of texts.
    """
    num_negatives, skip_top, margin = settings.num_negatives, settings.skip_top, settings.margin
    corpus = [*dict.fromkeys([*texts, *rows.columns[1]])]
    index_of = {text: index for index, text in enumerate(corpus)}
    positives: dict[str, list[int]] = {}
    for query, positive in dict.fromkeys(zip(*rows.columns, strict=True)):
        positives.setdefault(query, []).append(index_of[positive])
    # As in training, a text is not a negative of itself.
    removed = [
        [*positives_of_query, index_of[query]] if query in index_of else positives_of_query
        for query, positives_of_query in positives.items()
    ]
    most = min(_MOST, max(map(len, removed)))
    # 10 candidates for each negative, because the margin removes some.
    window = skip_top + num_negatives * (1 if margin is None else 10) + 2 * most
    excluded = [indices if len(indices) > most else [] for indices in removed]
    queries, vectors = vectors_of(queries=[*positives], corpus=corpus)
    indices, scores = nearest(queries, vectors, window, excluded)
    negatives = np.full([len(queries), num_negatives], -1, np.int64)  # nearest first
    for row, positives_of_query in enumerate(positives.values()):
        candidates = indices[row]
        is_negative = ~np.isin(candidates, removed[row])
        if margin is not None:
            cosines = cosine_similarity(queries[row], vectors[positives_of_query])
            is_negative &= scores[row] + np.float32(margin) <= cosines.min()
        nearby = candidates[is_negative][skip_top : skip_top + num_negatives]
        negatives[row, : len(nearby)] = nearby
    num_short = np.count_nonzero(negatives[:, -1] < 0)
    if num_short:
        message = "%d of %d queries have fewer than %d negatives"
        logging.warning(message, num_short, len(positives), num_negatives)
    size = 1 if settings.output_format == "triplet" else num_negatives
    examples = [
        (query, corpus[positive], *(corpus[index] for index in row[start : start + size]))
        for (query, positives_of_query), row in zip(
            positives.items(), negatives.tolist(), strict=True
        )
        for positive in positives_of_query
        for start in range(0, num_negatives, size)
        if row[start + size - 1] >= 0
    ]
    if not examples:
        raise InputError(
            f"{rows.source}: no query has {size} or more negatives; expected more texts, or a "
            "lower skip_top or margin"
        )
    return tuple(map(list, zip(*examples, strict=True)))


def write_triplets(
    embedding: EmbeddingSettings, run: FineTuningRun, start: Checkpoint, embedder: "TextEmbedder"
) -> dict[str, object]:
    """Mines OUTPUT_DIR/triplets.jsonl for the pairs of --train_file, and returns the results."""
    rows, texts = read_pairs_to_mine(embedding)
    pairs = list(zip(*rows.columns, strict=True))
    record = {**run.record, **start.record(), **data_record({"train": [*pairs, texts]})}
    if is_finished(run.output_dir, record, run.strategy):
        log_finished(run.output_dir)
        return read_json(run.output_dir / RESULTS)
    embedder.checkpoint = start
    create_model(run, embedder)
    settings = MiningSettings(embedding.mine_negatives, embedding.skip_top, embedding.margin)
    vectors_of = partial(embedder.vectors_of, run.settings.eval_batch_size)
    with running(run.output_dir, record, run.strategy) as folder:
        triplets = mine_examples(rows, texts, vectors_of, settings)
        names = (*PAIR, "negative")
        lines = [
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n"
            for row in zip(*triplets, strict=True)
        ]
        write_bytes(folder / TRIPLETS, "".join(lines).encode("utf-8", "replace"))
        results = {"pairs": len(pairs), "triplets": len(triplets[0])}
        write_json(folder / RESULTS, results)
    return results
