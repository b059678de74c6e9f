"""Computes metrics of rankings with pytrec_eval and ranx, for the tests of retrieval.

    pip install --target /tmp/trec pytrec-eval-terrier==0.5.11 ranx==0.3.21
    PYTHONPATH=/tmp/trec python tests/golden/make_retrieval_golden.py tests/golden/retrieval.json

`tied` has graded relevance, equal scores, unjudged documents, queries without relevant documents,
without a ranking and without judgments; its metrics are those of pytrec_eval, {query: {name:
value}}. `distinct` is the same without equal scores; its metrics are the means of ranx.
"""

import json
import random
import sys

import numpy as np
import pytrec_eval
import ranx

CUTOFFS = (1, 3, 10)
_RANX = ("ndcg", "mrr", "recall", "precision")


def main(path: str) -> None:
    """Writes relevance, scores and metrics."""
    rng = random.Random(7)
    documents = [f"d{index}" for index in range(25)] + ["é", "a b", "D2", "10"]
    relevance, tied = {}, {}
    for number in range(30):
        judged = rng.sample(documents, rng.randint(1, 9))
        relevance[f"q{number}"] = {name: rng.choice([0, 1, 1, 2, 3]) for name in judged}
        ranked = rng.sample(documents, rng.randint(1, 20))
        tied[f"q{number}"] = {name: rng.randint(-4, 4) / 3 for name in ranked}
    relevance["q3"] = dict.fromkeys(relevance["q3"], 0)
    # Equal in float32 only.
    tied["q4"] |= {"d0": 0.1, "d1": 0.1 + 1e-12, "d2": 0.1 - 1e-12}
    del tied["q5"]
    tied["unjudged"] = {"d0": 1.0}
    distinct = {
        query: {name: score + rng.random() for name, score in scores.items()}
        for query, scores in tied.items()
    }
    cuts = ",".join(map(str, CUTOFFS))
    names = {"map", "recip_rank", f"ndcg_cut.{cuts}", f"recall.{cuts}", f"P.{cuts}"}
    trec = pytrec_eval.RelevanceEvaluator(relevance, names).evaluate(tied)
    for k in CUTOFFS:
        cut = {
            query: dict(sorted(scores.items(), key=lambda item: (item[1], item[0]))[-k:])
            for query, scores in _as_float32(tied).items()
        }
        of_cut = pytrec_eval.RelevanceEvaluator(relevance, {"recip_rank"}).evaluate(cut)
        for query, metrics in of_cut.items():
            trec[query][f"recip_rank_{k}"] = metrics["recip_rank"]
    metrics = ["map", *(f"{name}@{k}" for name in _RANX for k in CUTOFFS)]
    means = ranx.evaluate(ranx.Qrels(relevance), ranx.Run(distinct), metrics, make_comparable=True)
    pytrec = {"ndcg": "ndcg_cut", "mrr": "recip_rank", "recall": "recall", "precision": "P"}
    content = {
        "relevance": relevance,
        "tied": tied,
        "tied_metrics": {
            query: {"map": values["map"]}
            | {f"{n}_at_{k}": values[f"{t}_{k}"] for n, t in pytrec.items() for k in CUTOFFS}
            for query, values in trec.items()
        },
        "distinct": distinct,
        "distinct_means": {
            name.replace("@", "_at_"): float(value) for name, value in means.items()
        },
    }
    with open(path, "w") as file:
        json.dump(content, file)


def _as_float32(run: dict) -> dict:
    return {q: {d: float(np.float32(s)) for d, s in scores.items()} for q, scores in run.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
