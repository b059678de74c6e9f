"""Compares vectors by their cosines, and searches them in blocks."""

import itertools
from collections.abc import Sequence

import numpy as np

from keras_bert.errors import InputError
from keras_bert.training.log import progress

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
    """Truncates vectors [n, H] to [n, size], and scales them to length 1 if `normalize`.

    Raises:
        InputError: `size` is not a whole number from 1 to H.
    """
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
    cosines. `excluded` has the indices that are not results of each query; () for none.

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
                in_block = pairs - [[first], [start]]
                is_inside = ((in_block >= 0) & (in_block < np.c_[shape])).all(axis=0)
                cosines[tuple(in_block[:, is_inside])] = -np.inf
                np.greater(cosines, scores[rows, -1:], out=flags)
                _merge(scores[rows], indices[rows], cosines, flags, start)
            advance(len(block))
    return indices, scores


def _merge(
    scores: np.ndarray, indices: np.ndarray, cosines: np.ndarray, flags: np.ndarray, start: int
) -> None:
    """Replaces the k highest scores, and their indices, by those among them and further cosines.

    Args:
        scores: float32 [q, k], highest first; changed.
        indices: int64 [q, k]; changed.
        cosines: float32 [q, n].
        flags: which cosines are higher than the lowest score of their row, bool [q, n]; changed.
        start: the index of the first of the n vectors, higher than the earlier indices.
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
