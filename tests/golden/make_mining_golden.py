"""Mines hard negatives with sentence-transformers, for the tests of mining.

    .peers/bin/python tests/golden/make_mining_golden.py tests/golden/mining.npz

`queries` [Q, H] and `corpus` [N, H] are float32 vectors, `pairs` [P, 2] the indices of queries and
their positives in the corpus. For each case of CASES, `CASE` [T, 3] has the triplets as indices of
a query and of two texts of the corpus.
"""

import sys

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.util import cos_sim, mine_hard_negatives, pairwise_cos_sim

# Name -> (num_negatives, range_min, absolute_margin, whether to search the whole corpus).
CASES = {
    "top": (3, 0, None, True),
    "range": (2, 3, None, True),
    "margin": (3, 0, 0.1, True),
    "zero_margin": (5, 0, 0.0, True),
    "negative_margin": (3, 0, -0.2, True),
    "range_and_margin": (4, 2, 0.3, True),
    "positives": (3, 1, None, False),
}


class Lookup:
    """A model that returns the vectors of a table for the texts "q0", "d0" and so on."""

    device = "cpu"
    similarity = staticmethod(cos_sim)
    similarity_pairwise = staticmethod(pairwise_cos_sim)

    def __init__(self, queries: np.ndarray, corpus: np.ndarray):
        self.vectors = {"q": queries, "d": corpus}

    def encode_query(self, texts: list[str], **_: object) -> np.ndarray:
        """Returns normalized vectors."""
        vectors = np.stack([self.vectors[text[0]][int(text[1:])] for text in texts])
        return torch.nn.functional.normalize(torch.tensor(vectors)).numpy()

    encode_document = encode_query


def main(path: str) -> None:
    """Writes the vectors and the triplets of each case."""
    rng = np.random.default_rng(7)
    corpus = rng.normal(size=[60, 6]).astype(np.float32)
    first = rng.choice(len(corpus), 14, replace=False)
    queries = (corpus[first] + 0.6 * rng.normal(size=[14, 6])).astype(np.float32)
    pairs = [(query, int(text)) for query, text in enumerate(first)]
    # The first queries have more positives, in any order among the pairs.
    pairs += [(query % 5, int(rng.integers(len(corpus)))) for query in range(8)]
    pairs = [pairs[index] for index in rng.permutation(len(pairs))]
    arrays = {"queries": queries, "corpus": corpus, "pairs": np.array(pairs)}
    columns = {"anchor": [f"q{q}" for q, _ in pairs], "positive": [f"d{d}" for _, d in pairs]}
    for name, (num_negatives, range_min, margin, is_whole) in CASES.items():
        mined = mine_hard_negatives(
            Dataset.from_dict(columns),
            Lookup(queries, corpus),
            corpus=[f"d{index}" for index in range(len(corpus))] if is_whole else None,
            num_negatives=num_negatives,
            range_min=range_min,
            absolute_margin=margin,
        )
        rows = zip(mined["anchor"], mined["positive"], mined["negative"], strict=True)
        arrays[name] = np.array([[int(text[1:]) for text in row] for row in rows])
    np.savez(path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
