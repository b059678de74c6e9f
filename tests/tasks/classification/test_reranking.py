"""Tests rerankers: losses, training from pairs and from groups, ranking, exports, invalid input."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tasks.classification import task
from keras_bert.tasks.classification.data import ClassifierSettings
from keras_bert.tasks.classification.metrics import ClassificationObjective, score
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.load import load
from keras_bert.tasks.retrieval import RetrievalData, evaluate_rankings
from tests.tasks.classification.test_fine_tuning import classify

# The relevant passages have the word "good".
QUERIES = [("film", "book", "a very film", "it")[i % 4] for i in range(16)]
POSITIVES = [f"it is {'very ' * (i % 3)}good" for i in range(16)]
NEGATIVES = [[f"it is {word} {'very ' * (i % 3)}" for i in range(16)] for word in ("bad", "a")]
SETTINGS = ClassifierSettings((), "reranking", pair=True)
GROUPS = (QUERIES, POSITIVES, *NEGATIVES)
PAIRS = (QUERIES * 2, POSITIVES + NEGATIVES[0])
LABELS = [1.0] * 16 + [0.0] * 16
FAST = {"verbose": 0, "batch_size": 4, "seed": 0, "learning_rate": 1e-2, "jit_compile": False}


def open_new(pretrained, **arguments):
    return TextClassifier.from_pretrained(
        pretrained, problem_type="reranking", **{"max_seq_length": 16} | arguments
    )


# --- losses ---


@pytest.mark.parametrize(("name", "group_size"), [("binary", 1), ("list_net", 4), ("ranking", 4)])
def test_losses_and_gradients_are_those_of_sentence_transformers(root, name, group_size):
    golden = np.load(root / "tests" / "golden" / "reranking_losses.npz")
    objective = ClassificationObjective("reranking", group_size=group_size)
    logits = tf.constant(golden["logits"][:, np.newaxis])
    # Rows that fill the batch do not count.
    padding = tf.fill([4, 1], 5.0)
    batch = {name: tf.zeros([16, 3], tf.int32) for name in ("input_ids", "input_mask")}
    batch["labels"] = tf.concat([golden["labels"][:, np.newaxis], tf.ones([4, 1])], 0)
    batch["example_weights"] = tf.concat([tf.ones(12), tf.zeros(4)], 0)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        outputs = {"logits": tf.concat([logits, padding], 0)}
        sums = objective.sums(lambda inputs, training: outputs, batch, True)
        loss = objective.loss(sums, objective.weights(batch))
    np.testing.assert_allclose(loss, golden[f"{name}_loss"], atol=1e-5)
    gradient = tape.gradient(loss, logits)[:, 0]
    np.testing.assert_allclose(gradient, golden[f"{name}_gradient"], atol=1e-5)
    labels = golden["labels"][:, np.newaxis] if group_size == 1 else np.eye(1, 4).repeat(3, 0)
    scores = score(SETTINGS, {"logits": logits.numpy()}, labels)
    assert scores["loss"] == pytest.approx(golden[f"{name}_loss"], abs=1e-5)


def test_accuracy_counts_pairs_and_groups():
    logits = {"logits": np.array([[2.0], [-1], [1], [1]])}
    pairs = score(SETTINGS, logits, np.array([[1.0], [0.6], [0.2], [0.9]]))
    assert pairs["accuracy"] == 0.5
    # A positive must be above all negatives.
    assert score(SETTINGS, logits, np.array([[1.0, 0], [1, 0]]))["accuracy"] == 0.5


# --- training ---


@pytest.fixture(scope="module")
def trained(pretrained):
    """Returns a reranker that was trained on groups."""
    reranker = open_new(pretrained)
    options = {**FAST, "epochs": 15, "validation_data": (GROUPS, None)}
    history = reranker.fit(GROUPS, **options).history
    assert history["val_loss"][-1] < 0.1 < history["val_loss"][0]
    assert history["val_accuracy"][-1] == history["accuracy"][-1] == 1.0
    return reranker


def test_groups_are_learned_and_ranked(trained):
    assert trained.evaluate(GROUPS)["accuracy"] == 1.0
    texts = ["it is bad", "it is a", "it is good", "very bad"]
    indices, scores = trained.rank("film", texts)
    assert sorted(indices.tolist()) == [0, 1, 2, 3]
    assert indices[0] == 2
    answers = trained.predict((["film"] * 4, texts))
    np.testing.assert_array_equal(scores, answers["score"][indices])
    np.testing.assert_allclose(answers["score"], tf.sigmoid(answers["logits"][:, 0]), atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    for top_k, count in ((2, 2), (9, 4)):
        np.testing.assert_array_equal(trained.rank("film", texts, top_k)[0], indices[:count])
    assert trained.rank("film", ["a", "a", "a"])[0].tolist() == [0, 1, 2]
    one = trained.predict(("film", texts[0]))
    assert one["score"] == pytest.approx(answers["score"][0], abs=1e-5)


CORPUS = {"d1": "it is good", "d2": "it is bad", "d3": "", "d4": "it is very good"}
DATA = RetrievalData(
    {"q1": "film", "q2": "it"}, CORPUS, {"q1": {"d4": 2, "d1": 1}, "q2": {"d2": 1}}
)


@pytest.mark.parametrize("pairs_of_block", [100, 4, 1])
def test_retrieval_data_are_ranked(trained, monkeypatch, pairs_of_block):
    """All documents, or candidates, which may lack a relevant one."""
    monkeypatch.setattr(task, "_PAIRS", pairs_of_block)
    texts = [*CORPUS.values()]
    logits = {
        query: dict(zip(CORPUS, trained.predict(([text] * 4, texts))["logits"][:, 0], strict=True))
        for query, text in DATA.queries.items()
    }
    metrics = trained.evaluate(DATA)
    assert metrics == pytest.approx(evaluate_rankings(DATA.relevance, logits))
    assert 0 < metrics["ndcg_at_10"] < 1
    assert metrics["mrr_at_1"] == 0.5
    for candidates in (np.array([[1, 0], [2, 0]]), [[1, 0], (2, 0)]):
        metrics = trained.evaluate(DATA, candidates=candidates)
        some = {"q1": ("d2", "d1"), "q2": ("d3", "d1")}
        some = {query: {name: logits[query][name] for name in some[query]} for query in some}
        assert metrics == pytest.approx(evaluate_rankings(DATA.relevance, some))
        assert metrics["recall_at_10"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": [[0]]}, "candidates has 1 items, queries has 2 items"),
        (
            {"candidates": [[0], [4]]},
            r"candidates\[1\] is \[4\]; expected indices of .* from 0 to 3",
        ),
        ({"candidates": [[0], []]}, r"candidates\[1\] is \[\]; expected indices of documents"),
        ({"candidates": [["d1"], []]}, r"candidates\[0\]\[0\] is 'd1'; expected an? "),
        ({"labels": [1]}, "labels: have no effect with retrieval data; expected none"),
        (
            {"texts": GROUPS, "candidates": [[0]]},
            "candidates: have no effect without retrieval data for a reranker; expected none",
        ),
        ({"texts": "no"}, "no/qrels/test.tsv: does not exist; expected a BEIR directory"),
    ],
)
def test_invalid_retrieval_data_are_rejected(trained, arguments, message):
    with pytest.raises(InputError, match=message):
        trained.evaluate(**{"texts": DATA} | arguments)


@pytest.mark.slow
def test_fit_is_evaluated_on_retrieval_data(pretrained):
    reranker = open_new(pretrained)
    for data, options in ((DATA, {}), ((DATA, [[1, 0], [2, 1]]), {"candidates": [[1, 0], [2, 1]]})):
        arguments = {"validation_data": data, "restore_best": True, "epochs": 2, **FAST}
        history = reranker.fit(GROUPS, **arguments).history
        best = max(history["val_ndcg_at_10"])
        assert reranker.evaluate(DATA, **options)["ndcg_at_10"] == pytest.approx(best)
    with pytest.raises(InputError, match="candidates has 1 items, queries has 2 items"):
        reranker.fit(GROUPS, validation_data=(DATA, [[0]]))


@pytest.mark.slow
def test_pairs_with_labels_are_learned(pretrained):
    reranker = open_new(pretrained)
    table = {"query": PAIRS[0], "passage": PAIRS[1], "label": LABELS}
    names = {"text": ("query", "passage")}
    reranker.fit(table, **names, **FAST, epochs=15)
    metrics = reranker.evaluate(table, **names)
    assert metrics.keys() == {"loss", "accuracy", "spearman"}
    assert metrics["loss"] < 0.1
    assert metrics["accuracy"] == 1.0
    shares = [0.75 if label else 0.25 for label in LABELS]
    reranker.fit(PAIRS, shares, **FAST, epochs=15)
    scores = reranker.predict(PAIRS)["score"]
    np.testing.assert_allclose(scores, shares, atol=0.1)


@pytest.mark.slow
def test_groups_stay_whole_in_micro_batches(pretrained):
    weights = []
    for count in (1, 2):
        reranker = open_new(pretrained)
        rows = [*zip(*GROUPS, strict=True)]
        reranker.fit(rows, **FAST, epochs=1, gradient_accumulation_steps=count)
        # Without the last one, the bias of the logit, on which the loss of a group does not depend.
        weights.append(reranker.model.get_weights()[:-1])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_student_learns_the_order_of_its_teacher(pretrained, trained):
    student = open_new(pretrained)
    student.fit(GROUPS, **FAST, epochs=15, teacher=trained, distillation_weight=1.0)
    assert student.evaluate(GROUPS)["accuracy"] == 1.0


# --- saved and exported models ---


def test_saved_and_exported_rerankers_give_the_same_scores(trained, tmp_path):
    expected = trained.predict(PAIRS)
    trained.save_pretrained(tmp_path / "saved")
    saved = load(tmp_path / "saved")
    assert saved.settings == trained.settings
    np.testing.assert_array_equal(saved.predict(PAIRS)["score"], expected["score"])
    saved.export(tmp_path / "export" / "1")
    served = load(tmp_path / "export" / "1")
    assert served.settings == trained.settings
    info = json.loads((tmp_path / "export" / "1" / "export.json").read_text())
    expected_entries = {"problem_type": "reranking", "activation": "sigmoid", "pair": True}
    assert expected_entries.items() <= info.items()
    answers = served.predict(PAIRS)
    assert answers.keys() == expected.keys() == {"score", "logits", "truncated"}
    for name in ("score", "logits"):
        np.testing.assert_allclose(answers[name], expected[name], atol=1e-5)
    np.testing.assert_array_equal(
        served.rank("film", POSITIVES[:4])[0], trained.rank("film", POSITIVES[:4])[0]
    )
    assert served.evaluate(GROUPS) == pytest.approx(trained.evaluate(GROUPS), abs=1e-4)


# --- programs ---

HEADER = ("query", "positive", "first", "second")
OF_PAIRS = {"columns": ("text=query", "text_pair=passage")}
OF_GROUPS = {"columns": ("text=query", *(f"text_pair={name}" for name in HEADER[1:]))}


def write_rows(path, header, *columns):
    rows = [header, *zip(*columns, strict=True)]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["groups", "pairs"])
def test_run_trains_a_reranker(tiny_model, tmp_path, form):
    is_groups = form == "groups"
    header = HEADER if is_groups else ("query", "passage", "label")
    columns = GROUPS if is_groups else (*PAIRS, LABELS)
    file = write_rows(tmp_path / "a.tsv", header, *columns)
    settings = {"task_name": "custom", "problem_type": "reranking", "train_file": file}
    settings |= {"eval_file": file, **(OF_GROUPS if is_groups else OF_PAIRS)}
    out = tmp_path / "out"
    results = classify(out, tiny_model, settings, batch_size=4, num_train_epochs=10.0)
    assert results["accuracy"] == 1.0
    assert ("spearman" in results) == (not is_groups)
    rows = [line.split("\t") for line in (out / "predictions.tsv").read_text().splitlines()[1:]]
    count = 3 if is_groups else 1
    assert [index for index, _ in rows] == [str(i // count) for i in range(len(columns[0]) * count)]
    reranker = load(out)
    assert (reranker.settings.problem_type, reranker.settings.pair) == ("reranking", True)
    score = reranker.predict((columns[0][0], columns[1][0]))["score"]
    assert float(rows[0][1]) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "row", "message"),
    [
        ({"columns": ["text=a"]}, "a b 1 c", "--columns: text_pair is missing; expected text_pair"),
        ({"columns": ["text=a", "text_pair="]}, "a b 1 c", "--columns=text=a,text_pair=: expected"),
        ({"task_name": "MRPC"}, "a b 1 c", "expected --task_name=custom with --"),
        ({}, "a b 1.5 c", "line 2: expected a number from 0 to 1 as label, got '1.5'"),
        (
            {"columns": ["text=a", "text_pair=b", "text_pair=c"]},
            "a  1 c",
            "line 2: the text in 'b' is empty; expected text",
        ),
        ({"class_weights": "balanced"}, "a b 1 c", "class_weights=balanced: a reranker has no cl"),
    ],
)
def test_invalid_files_and_flags_are_rejected(tiny_model, tmp_path, changes, row, message):
    file = write_rows(tmp_path / "a.tsv", ("a", "b", "label", "c"), *[[x] for x in row.split(" ")])
    settings = {"task_name": "custom", "problem_type": "reranking", "train_file": file}
    settings |= {"columns": ["text=a", "text_pair=b"]} | changes
    with pytest.raises(InputError, match=message):
        classify(tmp_path / "out", tiny_model, settings)
    assert not (tmp_path / "out").exists()


# --- arguments ---

ONE = (["a"], ["b"])


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("fit", (["a"], [1]), "texts is a list of 1 items; expected a tuple of two lists, of quer"),
        ("predict", ([["a", "b"]],), "expected a tuple of .*, or a list of tuples of both"),
        ("fit", (ONE,), "texts is a tuple of 2 items; expected labels, or without them a tuple of"),
        ("fit", ((["a"], ["b"], ["c"]), [1]), "texts is a tuple of 3 items; expected a tuple of t"),
        ("fit", ((["a"], [""], ["c"]),), r"texts\[1\]\[0\] is ''; expected a text"),
        ("fit", ((["a"], ["b"], []),), r"texts\[0\] has 1 items, texts\[1\] has 1 items, texts"),
        ("fit", (ONE, [1.01]), "labels, item 0: expected a number from 0 to 1 as label, got 1.01"),
        ("fit", (ONE, [[0, 1]]), r"labels\[0\] is \[0, 1\]; expected a number from 0 to 1"),
        ("predict", ((["", "a"], ["b", "b"]),), r"texts\[0\]\[0\] is ''; expected a text"),
        ("calibrate", (ONE, [1]), "calibrate: a reranker has no classes; expected some"),
        ("rank", ("", ["a"]), r"query is '', a str; expected a string with text"),
        ("rank", (["a"], ["a"]), "query is a list of 1 items; expected a string"),
        ("rank", ("a", "b"), "texts is 'b', a str; expected a list of strings"),
        ("rank", ("a", []), "texts is empty; expected at least one item"),
        ("rank", ("a", ["b"], 0), "top_k=0: expected a whole number of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(pretrained, method, arguments, message):
    options = FAST if method == "fit" else {}
    with pytest.raises(InputError, match=message):
        getattr(open_new(pretrained), method)(*arguments, **options)


def test_scores_that_are_not_finite_are_rejected(pretrained, tmp_path):
    reranker = open_new(pretrained)
    reranker.untrained = ()
    reranker.model.classifier.bias.assign([np.nan])
    with pytest.raises(InputError, match="the model's logits are not finite for 1 of 1 examples"):
        reranker.rank("a", ["b"])
    with pytest.raises(InputError, match=r"not finite in score, logits; .* nothing was exported"):
        reranker.export(tmp_path / "export" / "1")


def test_problem_type_and_head_must_match(pretrained, trained, tmp_path):
    with pytest.raises(InputError, match=r"labels=\['a', 'b'\]: expected none for problem_type='r"):
        open_new(pretrained, labels=["a", "b"])
    with pytest.raises(InputError, match="pair=False: a reranker scores pairs"):
        ClassifierSettings((), "reranking")
    trained.save_pretrained(tmp_path / "saved")
    with pytest.raises(InputError, match=r"'single_label': .* a head of one logit; expected at"):
        TextClassifier.from_pretrained(tmp_path / "saved", problem_type="single_label")
    with pytest.raises(InputError, match="rank: the problem type of the model is single_label"):
        TextClassifier.from_pretrained(pretrained, labels=["a", "b"]).rank("a", ["b"])
    two = TextClassifier.from_pretrained(pretrained, labels=["a", "b"])
    two.save_pretrained(tmp_path / "two")
    with pytest.raises(InputError, match=r"problem_type='reranking': .* has a head of 2 logits"):
        open_new(tmp_path / "two")
