"""Metrics of rankings against pytrec_eval and ranx; BEIR directories.

The reference values are made by tests/golden/make_retrieval_golden.py.
"""

import json

import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.retrieval import RetrievalData, evaluate_rankings, is_beir, read_beir

CUTOFFS = (1, 3, 10)


@pytest.fixture(scope="module")
def golden(root):
    return json.loads((root / "tests" / "golden" / "retrieval.json").read_text())


def test_metrics_of_each_query_equal_those_of_pytrec_eval(golden):
    """With ties, graded relevance, unjudged documents, and a query without relevant documents."""
    assert len(golden["tied_metrics"]) == 29  # One query has no ranking.
    for query, expected in golden["tied_metrics"].items():
        relevance = {query: golden["relevance"][query]}
        metrics = evaluate_rankings(relevance, golden["tied"], CUTOFFS)
        assert metrics == pytest.approx(expected, abs=1e-12), query


def test_means_equal_those_of_ranx(golden):
    """A query without a ranking counts as 0; a ranking of an unjudged query does not count."""
    metrics = evaluate_rankings(golden["relevance"], golden["distinct"], CUTOFFS)
    assert metrics == pytest.approx(golden["distinct_means"], abs=1e-12)


@pytest.mark.parametrize(
    ("relevance", "scores", "cutoffs", "message"),
    [
        ({}, {"q": {}}, (1,), "relevance: has no relevance judgments; expected at least one"),
        ({"q": {"d": -1}}, {"q": {}}, (1,), "relevance of 'd' to the query 'q' is -1; expected a"),
        (
            {"q": {"d": 1}},
            {"q": {"d": float("nan")}},
            (1,),
            "score of 'd' for the query 'q' is nan; expected a number",
        ),
        ({"q": {"d": 1}}, {"q": {}}, (1, 0), r"cutoffs=\(1, 0\): expected whole numbers of at l"),
        ({"q": {"d": 1}}, {"r": {}}, (1,), "scores has none of the queries of relevance; expected"),
    ],
)
def test_invalid_rankings(relevance, scores, cutoffs, message):
    with pytest.raises(InputError, match=message):
        evaluate_rankings(relevance, scores, cutoffs)


# --- BEIR directories ---

CORPUS = [
    {"_id": "d1", "title": "Length", "text": "It is 2 m long.", "metadata": {"url": ""}},
    {"_id": "d2", "title": "", "text": "It is red."},
    {"_id": 3, "text": ""},
]
QUERIES = [{"_id": "q1", "text": "How long is it?"}, {"_id": "q2", "text": "Which color is it?"}]
JUDGMENTS = ["query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\td2\t0", "q1\t3\t1"]


def write_beir(folder, corpus=CORPUS, queries=QUERIES, **splits):
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, lines in (splits or {"test": JUDGMENTS}).items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_directory_is_read(tmp_path):
    folder = write_beir(tmp_path / "beir", train=[JUDGMENTS[0], "q2\td2\t1"], dev=JUDGMENTS)
    data = read_beir(folder, "dev")
    assert data.columns == (["How long is it?"], ["Length It is 2 m long.", "It is red.", ""])
    assert data.relevance == {"q1": {"d1": 2, "d2": 0, "3": 1}}
    assert data.pairs == (["How long is it?"], ["Length It is 2 m long."])
    file = folder / "qrels" / "train.tsv"
    assert is_beir(folder)
    assert is_beir(file)
    pairs = (["Which color is it?"], ["It is red."])
    assert read_beir(file).pairs == read_beir(folder, "train").pairs == pairs
    (tmp_path / "pairs.tsv").write_text("")
    assert not is_beir(tmp_path / "pairs.tsv")
    with pytest.raises(
        InputError, match=r"test.tsv: does not exist; expected one of .*dev.tsv, .*"
    ):
        read_beir(folder)
    with pytest.raises(InputError, match=r"no/qrels/test.tsv: does not exist; expected a BEIR dir"):
        read_beir(tmp_path / "no")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": [JUDGMENTS[0], "q1\td9\t1"]}, "test.tsv: the query 'q1' names the document 'd9'"),
        ({"test": [JUDGMENTS[0], "q1\td1\tyes"]}, "test.tsv, line 2: the score is 'yes'; expected"),
        ({"test": ["q1\td1\t1"]}, "has no column 'query-id', 'corpus-id', 'score'; its header is"),
        ({"test": [*JUDGMENTS, "q1\td1\t1"]}, "line 5: the query 'q1' has two different scores"),
        ({"queries": [{"_id": "q1", "text": " "}]}, "query 'q1' is empty; expected the id of a qu"),
        ({"corpus": [CORPUS[0], CORPUS[0]]}, "corpus.jsonl, line 2: repeats the _id 'd1'; expect"),
        ({"corpus": [{"_id": "d1", "text": 2}]}, "line 1: text is 2; expected a string"),
        ({"corpus": [{"_id": "d1"}]}, "corpus.jsonl, line 1: has no 'text'; it has '_id'"),
    ],
)
def test_invalid_directories(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read_beir(write_beir(tmp_path / "beir", **changes))


def test_invalid_data():
    with pytest.raises(InputError, match="relevance: the query 'q' is not among the queries"):
        RetrievalData({}, {"d": "a"}, {"q": {"d": 1}})
    with pytest.raises(InputError, match=r"corpus\['d'\] is {'text': 'a'}; expected a string"):
        RetrievalData({"q": "b"}, {"d": {"text": "a"}}, {"q": {"d": 1}})
