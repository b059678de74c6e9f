"""Mines hard negatives: texts that are near to a query but not its positives.

    pairs -> vectors of queries and texts -> nearest -> hard_negatives -> mine_examples

Q different queries, N different texts, H the size of vectors.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_bytes, write_json
from keras_bert.tasks.embedding.data import PAIR, TextRows, read_pairs_to_mine
from keras_bert.tasks.embedding.search import cosine_similarity, nearest
from keras_bert.tasks.fine_tuning import FineTuningRun, create_model, data_record
from keras_bert.tasks.settings import EmbeddingSettings, MiningSettings
from keras_bert.training.run_folder import RESULTS, is_finished, log_finished, running

if TYPE_CHECKING:
    from keras_bert.tasks.embedding.task import TextEmbedder

TRIPLETS = "triplets.jsonl"
# The search window has room for this number of positives; queries with more are searched without
# them, so that one query does not widen the windows of all.
_MOST = 100


def hard_negatives(
    queries: np.ndarray,
    corpus: np.ndarray,
    positives: Sequence[Sequence[int]],
    excluded: Sequence[Sequence[int]],
    settings: MiningSettings,
) -> np.ndarray:
    """Finds texts that are near to each query but not its positives.

    As `mine_hard_negatives` of sentence-transformers 6.2 (`skip_top` is `range_min`, `margin` is
    `absolute_margin`, and `range_max` has its default for up to _MOST positives): the candidates
    are the nearest texts. Of these, the positives are removed, and those nearer than the farthest
    positive less the margin. Of the rest, the nearest `skip_top` are skipped, and the next
    `num_negatives` are the result.

    Args:
        queries: the vectors of Q different queries, [Q, H].
        corpus: the vectors of N different texts, [N, H].
        positives: the indices of the positives of each query in the corpus, at least one.
        excluded: the indices of other texts that are not negatives of each query.
        settings: the number of negatives, the number that are skipped, and the margin.

    Returns:
        Indices in the corpus, int64 [Q, num_negatives], nearest first; -1 if there are not enough.
    """
    num_negatives, skip_top, margin = settings.num_negatives, settings.skip_top, settings.margin
    removed = [[*each, *more] for each, more in zip(positives, excluded, strict=True)]
    most = min(_MOST, max(map(len, removed)))
    # 10 candidates for each negative, because the margin removes some.
    window = skip_top + num_negatives * (1 if margin is None else 10) + 2 * most
    many = [each if len(each) > most else [] for each in removed]
    indices, scores = nearest(queries, corpus, window, many)
    negatives = np.full([len(queries), num_negatives], -1, np.int64)
    for row, candidates in enumerate(indices):
        is_negative = ~np.isin(candidates, removed[row])
        if margin is not None:
            cosines = cosine_similarity(queries[row], corpus[positives[row]])
            is_negative &= scores[row] + np.float32(margin) <= cosines.min()
        nearby = candidates[is_negative][skip_top : skip_top + num_negatives]
        negatives[row, : len(nearby)] = nearby
    return negatives


def mine_examples(
    rows: TextRows,
    texts: Sequence[str],
    vectors_of: Callable[..., Sequence[np.ndarray]],
    settings: MiningSettings,
) -> tuple[list[str], ...]:
    """Mines negatives for pairs, and returns the columns of `TextEmbedder.mine_negatives`.

    Args:
        rows: the pairs.
        texts: texts that may be negatives, besides the positives.
        vectors_of: returns the vectors of its arguments `queries` and `corpus`, lists of texts.
        settings: the settings.

    Raises:
        InputError: there are no examples.
    """
    corpus = [*dict.fromkeys([*texts, *rows.columns[1]])]
    index_of = {text: index for index, text in enumerate(corpus)}
    positives: dict[str, list[int]] = {}
    for query, positive in dict.fromkeys(zip(*rows.columns, strict=True)):
        positives.setdefault(query, []).append(index_of[positive])
    queries, corpus_vectors = vectors_of(queries=[*positives], corpus=corpus)
    negatives = hard_negatives(
        queries,
        corpus_vectors,
        [*positives.values()],
        # As in training, a text is not a negative of itself.
        [[index_of[query]] if query in index_of else [] for query in positives],
        settings,
    )
    num_short = np.count_nonzero(negatives[:, -1] < 0)
    if num_short:
        message = "%d of %d queries have fewer than %d negatives"
        logging.warning(message, num_short, len(positives), settings.num_negatives)
    size = 1 if settings.output_format == "triplet" else settings.num_negatives
    examples = [
        (query, corpus[positive], *(corpus[index] for index in row[start : start + size]))
        for (query, indices), row in zip(positives.items(), negatives.tolist(), strict=True)
        for positive in indices
        for start in range(0, settings.num_negatives, size)
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
    """Mines OUTPUT_DIR/triplets.jsonl for the pairs of --train_file, and returns the results.

    `embedder` has no model yet, as for `fine_tune`.
    """
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
