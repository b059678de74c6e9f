"""Reads queries, documents and relevance judgments in the form of BEIR, and scores rankings.

    DIR/corpus.jsonl       a document per line: {"_id", "text"}, optionally "title"
    DIR/queries.jsonl      a query per line: {"_id", "text"}
    DIR/qrels/SPLIT.tsv    columns query-id, corpus-id and score, the relevance

The metrics are those of trec_eval (pytrec_eval) and, without ties, of ranx:

relevance    a whole number of at least 0, where 0, and no judgment, mean not relevant. It is the
             gain of nDCG; the other metrics only distinguish 0 from higher numbers.
ties         documents with equal scores (float32) are in descending order of their ids.
averages     are over all judged queries. A query without relevant documents has the value 0, and
             so has one without a ranking (`trec_eval -c`; `make_comparable` in ranx).
ndcg_at_k    the sum of gain / log2(rank + 1) over the first k documents, divided by the highest
             possible sum
mrr_at_k     1 / rank of the first relevant document; 0 if it is not among the first k
map          the mean over all relevant documents of the precision at their ranks; 0 for a
             document that is not in the ranking
recall_at_k, precision_at_k    the number of relevant documents among the first k, divided by the
             number of all relevant documents, or by k even if the ranking is shorter
"""

import itertools
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.tasks.checks import check_list, check_same_length
from keras_bert.tasks.tables import read_rows

Relevance = Mapping[str, Mapping[str, int]]  # {query id: {document id: relevance}}

# --- data ---


class RetrievalData:
    """Queries, documents, and how relevant documents are to queries.

    Example:
        data = RetrievalData(
            {"q1": "How long is it?"},
            {"d1": "Its length is 2 m.", "d2": "It is red."},
            {"q1": {"d1": 1}},
        )
        embedder.evaluate(data)["ndcg_at_10"]

    Args:
        queries: {id: text}; queries without judgments are ignored.
        corpus: {id: text} of all documents.
        relevance: {query id: {document id: relevance}}, with whole numbers of at least 0.
        source: the name of the data in error messages.

    Raises:
        InputError: there are no judgments, an id is unknown, a relevance is below 0, or a query is
            empty.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevance: Relevance,
        source: str = "relevance",
    ):
        self.queries, self.corpus = queries, corpus
        self.relevance, self.source = relevance, source
        _check_relevance(source, relevance)
        for argument, texts in (("queries", queries), ("corpus", corpus)):
            for name, text in texts.items():
                if not isinstance(text, str):
                    raise InputError(f"{argument}[{name!r}] is {text!r:.60}; expected a string")
        for query, judged in relevance.items():
            if not queries.get(query, "").strip():
                problem = "is empty" if query in queries else "is not among the queries"
                raise InputError(
                    f"{source}: the query {query!r} {problem}; expected the id of a query "
                    "with a text"
                )
            for document in judged:
                if document not in corpus:
                    raise InputError(
                        f"{source}: the query {query!r} names the document {document!r}, "
                        "which is not in the corpus; expected the id of a document"
                    )

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yields the queries, the documents and the judgments with their ids."""
        return itertools.chain(self.queries.items(), self.corpus.items(), self.relevance.items())

    @property
    def columns(self) -> tuple[list[str], list[str]]:
        """The texts of the judged queries, and those of all documents."""
        return [self.queries[query] for query in self.relevance], [*self.corpus.values()]

    @property
    def pairs(self) -> tuple[list[str], list[str]]:
        """Queries and their relevant documents with a text: pairs of an anchor and a positive."""
        pairs = [
            (self.queries[query], self.corpus[document])
            for query, judged in self.relevance.items()
            for document, value in judged.items()
            if value > 0 and self.corpus[document].strip()
        ]
        return [query for query, _ in pairs], [document for _, document in pairs]


def as_retrieval_data(value: object, split: str = "test") -> RetrievalData | None:
    """Returns an argument that is retrieval data or a path for `read_beir`; None for another."""
    if isinstance(value, str | os.PathLike):
        return read_beir(value, split)
    return value if isinstance(value, RetrievalData) else None


def is_beir(path: str | os.PathLike) -> bool:
    """Returns whether a path is a folder, or a file in the folder `qrels` beside a corpus."""
    path = Path(path)
    return path.is_dir() or (
        path.parent.name == "qrels" and (path.parent.parent / "corpus.jsonl").is_file()
    )


def read_beir(path: str | os.PathLike, split: str = "test") -> RetrievalData:
    """Reads a BEIR directory, of which only the queries that the split judges.

    The text of a document is its title, if it has one, a space, and its text.

    Args:
        path: the directory, whose file qrels/SPLIT.tsv is read; or another file in qrels.
        split: the name of the split.

    Raises:
        InputError: a file is missing or has an invalid format, an id is repeated, or the content
            is not valid for `RetrievalData`.
    """
    path = Path(path)
    is_file = path.parent.name == "qrels" and not path.is_dir()
    folder = path.parent.parent if is_file else path
    judgments = path if is_file else path / "qrels" / f"{split}.tsv"
    if not judgments.is_file():
        splits = ", ".join(
            str(file) for file in sorted(folder.glob("qrels/*.tsv")) if file.is_file()
        )
        raise InputError(
            f"{judgments}: does not exist; expected "
            + (f"one of {splits}" if splits else "a BEIR directory, with corpus.jsonl and qrels/")
        )
    relevance: dict[str, dict[str, int]] = {}
    for row in read_rows(judgments, ("query-id", "corpus-id", "score")):
        query, document, text = row.cells.values()
        try:
            value = int(text)
        except ValueError:
            raise InputError(
                f"{row.where}: the score is {text!r:.60}; expected a whole number of at least 0"
            ) from None
        if relevance.setdefault(query, {}).setdefault(document, value) != value:
            raise InputError(
                f"{row.where}: the query {query!r} has two different scores for the document "
                f"{document!r}; expected one"
            )
    queries = _read_texts(folder / "queries.jsonl")
    return RetrievalData(queries, _read_texts(folder / "corpus.jsonl"), relevance, str(judgments))


def _read_texts(path: Path) -> dict[str, str]:
    """Returns {id: text} of corpus.jsonl or queries.jsonl."""
    texts: dict[str, str] = {}
    for row in read_rows(path, ("_id", "text"), always_json=True):
        check_schema(f"{row.where}:", row.cells, {"_id": (str, int), "text": str, "title?": str})
        name = str(row.cells["_id"])
        if name in texts:
            raise InputError(f"{row.where}: repeats the _id {name!r}; expected different ids")
        texts[name] = f"{row.cells.get('title') or ''} {row.cells['text']}".strip()
    return texts


def candidate_rows(data: RetrievalData, candidates: object) -> Sequence[Sequence[int]]:
    """Returns the indices of the documents to rank for each query; those of all for None."""
    queries, corpus = data.columns
    if candidates is None:
        return [range(len(corpus))] * len(queries)
    rows = check_list("candidates", candidates, "lists of indices")
    check_schema("candidates", rows, [[int]])
    check_same_length(candidates=rows, queries=queries)
    for query, row in enumerate(rows):
        if not row or min(row) < 0 or max(row) >= len(corpus):
            raise InputError(
                f"candidates[{query}] is {row!r:.60}; expected indices of documents, from 0 to "
                f"{len(corpus) - 1}"
            )
    return rows


# --- metrics ---

CUTOFFS = (1, 10, 100)


def evaluate_rankings(
    relevance: Relevance,
    scores: Mapping[str, Mapping[str, float]],
    cutoffs: Sequence[int] = CUTOFFS,
) -> dict[str, float]:
    """Scores the rankings of documents by an embedder, a reranker or another search.

    Example:
        evaluate_rankings({"q1": {"d1": 1}}, {"q1": {"d1": 0.9, "d2": 0.4}})["ndcg_at_10"]  # 1.0

    Args:
        relevance: {query id: {document id: relevance}}.
        scores: {query id: {document id: score}}, where higher scores are better; queries without
            relevance judgments are ignored.
        cutoffs: the numbers k of highest documents that count.

    Returns:
        "ndcg_at_k", "mrr_at_k", "recall_at_k" and "precision_at_k" for each k, and "map": the
        means over the queries of `relevance`, with the conventions of trec_eval (see the module).

    Raises:
        InputError: a relevance is below 0, a score is NaN, a cutoff is below 1, or no query of
            `relevance` has a ranking.
    """
    _check_relevance("relevance", relevance)
    for k in cutoffs:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"cutoffs={cutoffs!r:.60}: expected whole numbers of at least 1")
    if not relevance.keys() & scores.keys():
        raise InputError("scores has none of the queries of relevance; expected rankings of them")
    rankings = []
    for query, judged in relevance.items():
        ranking = scores.get(query, {})
        for document, score in ranking.items():
            if not isinstance(score, numbers.Real) or math.isnan(score):
                raise InputError(
                    f"scores: the score of {document!r} for the query {query!r} is {score!r:.60}; "
                    "expected a number"
                )
        rankings.append(score_ranking(judged, ranking, cutoffs))
    return mean_scores(rankings)


def score_ranking(
    relevance: Mapping[str, int], scores: Mapping[str, float], cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Returns the metrics of one query, as `evaluate_rankings`, whose checks are not repeated."""
    values = np.fromiter(scores.values(), np.float32, len(scores)).tolist()
    ranked = [document for _, document in sorted(zip(values, scores, strict=True), reverse=True)]
    gains = np.array([relevance.get(document, 0) for document in ranked], np.float64)
    ideal = np.array(sorted(relevance.values(), reverse=True), np.float64)
    discounts = 1 / np.log2(np.arange(2, 2 + max(len(gains), len(ideal))))
    hits = gains > 0
    num_relevant = max(1, int(np.count_nonzero(ideal)))  # Without any, the numerators are 0.
    ranks = np.flatnonzero(hits) + 1
    metrics = {}
    for k in cutoffs:
        best = float(np.dot(ideal[:k], discounts[: len(ideal[:k])]))
        gain = float(np.dot(gains[:k], discounts[: len(gains[:k])]))
        count = int(np.count_nonzero(hits[:k]))
        metrics[f"ndcg_at_{k}"] = gain / best if best else 0.0
        metrics[f"mrr_at_{k}"] = 1 / int(ranks[0]) if count else 0.0
        metrics[f"recall_at_{k}"] = count / num_relevant
        metrics[f"precision_at_{k}"] = count / k
    precisions = np.arange(1, len(ranks) + 1) / ranks
    return metrics | {"map": float(np.sum(precisions)) / num_relevant}


def mean_scores(scores: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means of the metrics of several queries."""
    rows = list(scores)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _check_relevance(source: str, relevance: Relevance) -> None:
    if not relevance:
        raise InputError(f"{source}: has no relevance judgments; expected at least one")
    for query, judged in relevance.items():
        for document, value in judged.items():
            is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not is_number or value < 0:
                raise InputError(
                    f"{source}: the relevance of {document!r} to the query {query!r} is "
                    f"{value!r:.60}; expected a whole number of at least 0"
                )
