"""Hard negatives against sentence-transformers; search and evaluation of retrieval data.

The reference values are made by tests/golden/make_mining_golden.py.
"""

import functools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.embedding.data import check_pairs_to_mine
from keras_bert.tasks.embedding.search import mine_examples
from keras_bert.tasks.embedding.task import TextEmbedder
from keras_bert.tasks.retrieval import RetrievalData, evaluate_rankings
from keras_bert.tasks.settings import MiningSettings
from tests.tasks.test_retrieval import write_beir

# As in make_mining_golden.py.
CASES = {
    "top": (3, 0, None, True),
    "range": (2, 3, None, True),
    "margin": (3, 0, 0.1, True),
    "zero_margin": (5, 0, 0.0, True),
    "negative_margin": (3, 0, -0.2, True),
    "range_and_margin": (4, 2, 0.3, True),
    "positives": (3, 1, None, False),
}


@pytest.fixture(scope="module")
def golden(root):
    return np.load(root / "tests" / "golden" / "mining.npz")


@pytest.mark.parametrize("name", CASES)
def test_negatives_are_those_of_sentence_transformers(golden, name):
    num_negatives, skip_top, margin, is_whole = CASES[name]
    vectors = {"q": golden["queries"], "d": golden["corpus"]}
    pairs = [(f"q{query}", f"d{text}") for query, text in golden["pairs"].tolist()]
    corpus = [f"d{index}" for index in range(len(golden["corpus"]))] if is_whole else None

    def vectors_of(**arguments):
        return [
            np.stack([vectors[text[0]][int(text[1:])] for text in texts])
            for texts in arguments.values()
        ]

    rows = check_pairs_to_mine(*map(list, zip(*pairs, strict=True)), corpus)
    settings = MiningSettings(num_negatives, skip_top, margin)
    triplets = mine_examples(*rows, vectors_of, settings)
    expected = [(f"q{q}", f"d{p}", f"d{n}") for q, p, n in golden[name].tolist()]
    assert list(zip(*triplets, strict=True)) == expected


def test_one_query_with_many_positives_needs_little_memory():
    rng = np.random.default_rng(0)
    queries, corpus = (rng.normal(size=[count, 8]).astype(np.float32) for count in (3000, 5000))
    pairs = [(query, query) for query in range(3000)] + [(0, text) for text in range(1, 4000)]
    columns = [f"q{query}" for query, _ in pairs], [f"d{text}" for _, text in pairs]
    rows = check_pairs_to_mine(*columns, [f"d{index}" for index in range(5000)])
    tracemalloc.start()
    triplets = mine_examples(*rows, lambda **_: [queries, corpus], MiningSettings(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # 5000 candidates of each query would need 1.8e8 bytes.
    cosines = corpus @ queries[0] / np.linalg.norm(corpus, axis=1)
    best = 4000 + np.argsort(-cosines[4000:])[:2]
    assert triplets[2][:2] == [f"d{index}" for index in best]


# --- with a model ---


@pytest.fixture(scope="module")
def embedder(pretrained):
    return TextEmbedder.from_pretrained(pretrained, max_seq_length=16)


CORPUS = {
    "d1": "a good film",
    "d2": "a bad film",
    "d3": "it is a very good book",
    "d4": "is it very bad .",
    "d5": "",
    "d6": "film",
    "d7": "a good film",
}
QUERIES = {"q1": "good film", "q2": "very very bad book", "q3": "not judged"}
RELEVANCE = {"q1": {"d1": 2, "d2": 0}, "q2": {"d4": 1, "d3": 1}}
DATA = RetrievalData(QUERIES, CORPUS, RELEVANCE)


def test_mined_triplets_have_no_positives_and_no_query(embedder):
    triplets = embedder.mine_negatives(DATA, num_negatives=10)
    found = {}
    for anchor, positive, negative in zip(*triplets, strict=True):
        found.setdefault((anchor, positive), []).append(negative)
    texts = {*CORPUS.values()} - {""}
    expected = {
        ("good film", "a good film"): texts - {"a good film"},
        (QUERIES["q2"], CORPUS["d4"]): texts - {CORPUS["d4"], CORPUS["d3"]},
        (QUERIES["q2"], CORPUS["d3"]): texts - {CORPUS["d4"], CORPUS["d3"]},
    }
    assert {pair: {*negatives} for pair, negatives in found.items()} == expected
    for (anchor, _), negatives in found.items():
        cosines = embedder.similarity(anchor, negatives)[0]
        assert cosines.tolist() == sorted(cosines.tolist(), reverse=True)
    positives = ["good film", "bad film", "a book", "a film"]
    mined = embedder.mine_negatives(["a", "a book", "is", "it"], positives, num_negatives=9)
    assert all(anchor != negative for anchor, _, negative in zip(*mined, strict=True))
    embedder.mine_negatives(["a"], ["film"], ["book"], num_negatives=1)


def test_n_tuples_have_all_negatives_of_a_pair(embedder):
    """The first query has 4 texts besides its positive, the other one 3."""
    triplets = embedder.mine_negatives(DATA, num_negatives=3)
    groups = embedder.mine_negatives(DATA, num_negatives=3, output_format="n-tuple")
    rows = [*zip(*triplets, strict=True)]
    expected = [(*rows[i][:2], *(row[2] for row in rows[i : i + 3])) for i in (0, 3, 6)]
    assert [*zip(*groups, strict=True)] == expected
    groups = embedder.mine_negatives(DATA, num_negatives=4, output_format="n-tuple")
    assert groups[0] == ["good film"]


def test_evaluation_ranks_all_documents(embedder, tmp_path):
    metrics = embedder.evaluate(DATA)
    cosines = embedder.similarity([QUERIES["q1"], QUERIES["q2"]], [*CORPUS.values()])
    scores = {
        q: dict(zip(CORPUS, row, strict=True)) for q, row in zip(RELEVANCE, cosines, strict=True)
    }
    assert metrics == pytest.approx(evaluate_rankings(RELEVANCE, scores))
    assert 0 < metrics["ndcg_at_10"] <= 1
    corpus = [{"_id": name, "text": text} for name, text in CORPUS.items()]
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    judgments = [f"{q}\t{d}\t{v}" for q, judged in RELEVANCE.items() for d, v in judged.items()]
    lines = ["query-id\tcorpus-id\tscore", *judgments]
    folder = write_beir(tmp_path / "beir", corpus, queries, test=lines, train=lines)
    assert embedder.evaluate(folder) == metrics
    assert embedder.evaluate(str(folder / "qrels" / "train.tsv")) == metrics
    mined = embedder.mine_negatives(folder, num_negatives=2)
    assert mined == embedder.mine_negatives(DATA, num_negatives=2)


def test_evaluation_uses_the_prompts_of_the_model(embedder):
    prompts = {"query": "very very ", "document": "it is a "}
    settings = replace(embedder.settings, prompts=prompts, default_prompt_name="document")
    prompted = TextEmbedder(embedder.model, embedder.tokenizer, settings)
    with_prompts = RetrievalData(
        {name: f"very very {text}" for name, text in QUERIES.items()},
        {name: f"it is a {text}" for name, text in CORPUS.items()},
        RELEVANCE,
    )
    metrics = embedder.evaluate(with_prompts)
    assert prompted.evaluate(DATA) == pytest.approx(metrics)
    prepared, expected = (
        model.prepared_set(data).prepared.examples
        for model, data in ((prompted, DATA), (embedder, with_prompts))
    )
    np.testing.assert_array_equal(prepared.input_ids, expected.input_ids)


@pytest.mark.slow
def test_fit_is_evaluated_on_retrieval_data(pretrained, caplog):
    embedder = TextEmbedder.from_pretrained(pretrained, max_seq_length=6)
    triplets = embedder.mine_negatives(DATA, num_negatives=2)
    options = {"epochs": 2, "batch_size": 3, "verbose": 0, "jit_compile": False}
    history = embedder.fit(triplets, validation_data=DATA, restore_best=True, **options).history
    assert len(history["val_ndcg_at_10"]) == 2
    assert caplog.text.count("validation texts are truncated") == 1  # They are tokenized once.
    best = max(history["val_ndcg_at_10"])
    assert embedder.evaluate(DATA)["ndcg_at_10"] == pytest.approx(best)


mine = functools.partial(TextEmbedder.mine_negatives, queries=["a", "b"], positives=["c", "d"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda it: mine(it, num_negatives=0),
            "num_negatives=0: expected a whole number from 1 to",
        ),
        (lambda it: mine(it, skip_top=-1), "skip_top=-1: expected a whole number from 0 to"),
        (
            lambda it: mine(it, output_format="pairs"),
            "output_format='pairs': expected one of triplet, n-tuple",
        ),
        (lambda it: mine(it, margin=float("nan")), "margin=nan: expected a finite number from -2"),
        (lambda it: mine(it, skip_top=5), "queries: no query has 1 or more negatives; expected"),
        (lambda it: mine(it, queries=["a"]), "queries has 1 items, positives has 2 items"),
        (lambda it: mine(it, corpus=[""]), r"corpus\[0\] is ''; expected a text"),
        (lambda it: mine(it, queries=DATA), "positives and corpus: have no effect with retrieval"),
        (lambda it: it.mine_negatives(["a"]), "positives is None, a NoneType; expected a list of"),
        (lambda it: it.mine_negatives([], []), "queries is empty; expected at least one item"),
        (lambda it: it.mine_negatives("no"), "no/qrels/train.tsv: does not exist; expected a BEI"),
        (lambda it: it.evaluate(DATA, [1.0]), "scores: have no effect with retrieval data; expect"),
        (lambda it: it.search("", ["a"]), r"queries\[0\] is ''; expected a text"),
        (
            lambda it: it.search("a", np.array([[0.0] * 16, [np.nan] * 16])),
            "corpus: vector 1 has values that are not finite, so its cosines are NaN; expected fin",
        ),
    ],
)
def test_invalid_arguments(embedder, call, message):
    with pytest.raises(InputError, match=message):
        call(embedder)
