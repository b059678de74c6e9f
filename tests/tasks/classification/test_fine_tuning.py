"""Tests end-to-end fine-tuning of a classifier, on synthetic reviews and a tiny model."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.classification import task as classification_task
from keras_bert.tasks.classification.data import ClassificationSettings, label_array, read_data
from keras_bert.tasks.classification.metrics import score
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.examples import make_predict_examples
from keras_bert.tasks.fine_tuning import FineTuningRun
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.objective import TrainingSettings


def classify(output_dir, init_checkpoint, classification, batch_size=16, **settings):
    values = {"max_seq_length": 16, "learning_rate": 1e-2, "num_train_epochs": 2.0}
    values |= {"random_seed": 2} | settings
    record = {**classification, **values}
    run = FineTuningRun(
        training=TrainingSettings(0, batch_size, jit_compile=False),
        strategy=tf.distribute.get_strategy(),
        output_dir=output_dir,
        record=record,
        settings=FineTuningSettings(str(init_checkpoint), **values),
    )
    return TextClassifier.fine_tune(ClassificationSettings(**classification), run)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory, write_reviews):
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "train.tsv", 200)
    write_reviews(folder / "dev.tsv", 61, seed=1)
    return {
        "task_name": "custom",
        "train_file": str(folder / "train.tsv"),
        "eval_file": str(folder / "dev.tsv"),
    }


@pytest.fixture(scope="module")
def trained(reviews, tiny_model, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("trained")
    return output_dir, classify(output_dir, tiny_model, reviews)


@pytest.mark.slow
def test_truncated_examples_are_counted(reviews, tiny_model, tmp_path, caplog):
    settings = {"max_seq_length": 5, "num_train_epochs": 0.1}
    results = classify(tmp_path / "out", tiny_model, reviews, **settings)
    rows = Path(reviews["eval_file"]).read_text().splitlines()[1:]
    # The words of the reviews are tokens; [CLS] and [SEP] are the two others.
    count = sum(len(row.partition("\t")[0].split()) > 3 for row in rows)
    assert 0 < count == results["dev_truncated"] == results["predictions_truncated"]
    assert results["train_truncated"] > 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    found = [each.getMessage() for each in caplog.records if "truncated" in each.getMessage()]
    assert f"{count} of 61 texts (dev) are truncated to max_seq_length=5 tokens" in found
    assert any(re.match(r"\d+ of 200 texts \(train\) are truncated", each) for each in found)
    card = (tmp_path / "out" / "model" / "README.md").read_text()
    assert "accuracy" in card
    assert "truncated" not in card


def test_run_learns_and_reports_the_metrics_of_the_problem(trained):
    output_dir, results = trained
    scores = {"accuracy", "f1_macro", "loss", "score"}
    counts = {"train_truncated", "dev_truncated", "predictions_truncated"}
    assert results.keys() == {"step", "best_step"} | scores | counts
    assert results["accuracy"] > 0.95
    assert results["score"] == pytest.approx((results["accuracy"] + results["f1_macro"]) / 2)
    assert json.loads((output_dir / "results.json").read_text()) == results
    checkpoint = open_checkpoint(output_dir)
    assert checkpoint.labels == ["bad", "good"]
    assert checkpoint.problem_type == "single_label_classification"


def test_predictions_are_in_the_order_of_the_file(trained, reviews):
    rows = (trained[0] / "predictions.tsv").read_text().splitlines()[1:]
    # Without --predict_file, the predictions are those of the development set.
    labels = [row.split("\t")[1] for row in Path(reviews["eval_file"]).read_text().splitlines()[1:]]
    assert [row.split("\t")[0] for row in rows] == [str(index) for index in range(61)]
    hits = np.mean([row.split("\t")[1] == label for row, label in zip(rows, labels, strict=True)])
    assert hits == pytest.approx(trained[1]["accuracy"])


@pytest.mark.slow
def test_head_that_is_trained_further_keeps_its_label_order(trained, reviews, edit_json, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(trained[0], start)
    weights = load_file(start / "model" / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][::-1].copy()
    save_file(weights, start / "model" / "model.safetensors")
    config = start / "model" / "config.json"
    edit_json(config, id2label={"0": "GOOD", "1": "Bad"})  # In any case.
    results = classify(tmp_path / "out", start, reviews, num_train_epochs=0.1, learning_rate=0.0)
    assert results["accuracy"] > 0.95
    assert open_checkpoint(tmp_path / "out").labels == ["good", "bad"]
    edit_json(config, id2label={"0": "bad", "1": "good"})
    with pytest.raises(InputError, match=r'labels was \["good", "bad"\] and is now \["bad", "good'):
        classify(tmp_path / "out", start, reviews, num_train_epochs=0.1, learning_rate=0.0)


def test_glue_f1_is_that_of_label_1_in_any_label_order(tmp_path):
    (tmp_path / "dev.tsv").write_text(
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        + "".join(f"{label}\t1\t2\ta\tb\n" for label in "1100")
    )
    settings = ClassificationSettings("mrpc", str(tmp_path))
    metrics = []
    for known in (("0", "1"), ("1", "0")):
        problem, splits = read_data(settings, known, do_train=False, do_eval=True, do_predict=False)
        assert problem.labels == known
        logits = np.float32([[0, 1], [1, 0], [1, 0], [1, 0]])[:, [int(name) for name in known]]
        answers = {"label": np.array(problem.labels)[logits.argmax(axis=1)], "logits": logits}
        array = label_array(splits.dev[""], "single_label", problem.labels)
        metrics.append(score(problem, answers, array))
    assert metrics[0] == metrics[1]
    assert metrics[0]["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("name", "count"), [("train", 200), ("eval", 61)])
def test_changed_texts_are_detected(trained, reviews, tiny_model, write_reviews, name, count):
    path = Path(reviews[f"{name}_file"])
    before = path.read_text()
    split = {"train": "train", "eval": "dev"}[name]
    try:
        write_reviews(path, count, seed=2)
        with pytest.raises(InputError, match=rf"other settings: (.*; )?the content of {split} has"):
            classify(trained[0], tiny_model, reviews)
    finally:
        path.write_text(before)


@pytest.mark.parametrize("has_test_file", [False, True])
def test_texts_to_score_and_to_predict_run_through_the_model_once(
    trained, reviews, tmp_path, monkeypatch, has_test_file
):
    """Without --predict_file, or with the file of --eval_file, the predictions are those of dev."""
    calls = []

    def counted(*args, **kwargs):
        predict = make_predict_examples(*args, **kwargs)
        return lambda examples: calls.append(len(examples)) or predict(examples)

    monkeypatch.setattr("keras_bert.tasks.fine_tuning.make_predict_examples", counted)
    settings = reviews | {"predict_file": reviews["eval_file"]} if has_test_file else reviews
    classify(tmp_path / "out", trained[0], settings, do_train=False)
    assert calls == [61]
    assert len((tmp_path / "out" / "predictions.tsv").read_text().splitlines()) == 62


@pytest.mark.slow
def test_mnli_is_scored_on_both_dev_sets_and_predicts_the_diagnostic_set(tiny_model, tmp_path):
    header = "index\tsentence1\tsentence2\tgold_label\n"
    labels = ("entailment", "neutral", "contradiction")
    words = ("good", "bad", "film")
    rows = "".join(f"{i}\tit is {words[i % 3]}\ta book\t{labels[i % 3]}\n" for i in range(12))
    glue = tmp_path / "glue"
    (glue / "MNLI").mkdir(parents=True)
    (glue / "diagnostic").mkdir()
    for name in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        (glue / "MNLI" / f"{name}.tsv").write_text(header + rows)
    (glue / "diagnostic" / "diagnostic.tsv").write_text(
        "index\tsentence1\tsentence2\n0\tit is bad\ta book\n"
    )
    settings = {"task_name": "mnli", "data_dir": str(glue)}
    results = classify(tmp_path / "mnli", tiny_model, settings, num_train_epochs=1.0)
    assert results.keys() >= {"accuracy_matched", "accuracy_mismatched", "score"}
    names = {path.name for path in (tmp_path / "mnli").iterdir()}
    assert names >= {"MNLI-m.tsv", "MNLI-mm.tsv"}
    settings["task_name"] = "ax"
    with pytest.raises(InputError, match=r"AX: the task has no training examples; .* on MNLI as"):
        classify(tmp_path / "ax", tmp_path / "mnli", settings)
    classify(tmp_path / "ax", tmp_path / "mnli", settings, do_train=False)
    lines = (tmp_path / "ax" / "AX.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert lines[1].split("\t")[1] in labels


def test_balanced_weights_are_those_of_texts_and_not_of_windows(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(classification_task, "run_fine_tuning", lambda *values, **_: values[3])
    rows = [("good " * 40, "pos"), ("bad", "neg"), ("bad film", "neg"), ("bad book", "neg")]
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    settings = {"task_name": "custom", "train_file": str(path), "eval_file": str(path)}
    settings |= {"class_weights": "balanced", "long_text": "windows"}
    objective = classify(tmp_path / "out", tiny_model, settings)
    assert objective.class_weights == pytest.approx((4 / (2 * 3), 4 / (2 * 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem_type", "rows", "metrics"),
    [
        ("regression", [("good film", "4.5"), ("bad film", "1.0")], {"pearson", "spearman"}),
        (
            "multi_label",
            [("good film", "good,film"), ("bad book", ""), ("very good", "good")],
            {"f1_micro", "f1_macro", "accuracy"},
        ),
    ],
)
def test_other_problem_types(tiny_model, tmp_path, problem_type, rows, metrics):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows * 16))
    settings = {
        "task_name": "custom",
        "problem_type": problem_type,
        "train_file": str(path),
        "eval_file": str(path),
        "predict_file": str(path),
    }
    if problem_type == "multi_label":
        settings["class_weights"] = "balanced"
    results = classify(tmp_path / "out", tiny_model, settings, num_train_epochs=6.0)
    assert results.keys() >= metrics
    assert results["score"] > 0.7
    assert open_checkpoint(tmp_path / "out").problem_type.startswith(problem_type)
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 16 * len(rows)


@pytest.mark.parametrize(
    ("changes", "row", "message"),
    [
        ({}, "it is good\tbetter", r"dev.tsv, line 2: unknown label 'better'; expected one of bad"),
        ({"columns": ["label=stars"]}, "a\tgood", r"train.tsv, line 1: has no column 'stars'"),
        ({"problem_type": "regression"}, "a\tgood", r"train.tsv, line 2: expected a number"),
        ({"class_weights": "1"}, "a\tgood", r"--class_weights=1: expected .* 2 numbers"),
        ({"train_file": ""}, "a\tgood", "expected --train_file with a file of"),
        (
            {"data_dir": "glue"},
            "a\tgood",
            r"--task_name=custom cannot be combined with --tfds or --data",
        ),
        (
            {"task_name": "RTE"},
            "a\tgood",
            r"--train_file: got --task_name=RTE; expected --task_name=custom",
        ),
        (
            {"task_name": "RTE", "train_file": "", "eval_file": "", "columns": ["text_pair=b"]},
            "a\tgood",
            r"--columns: got --task_name=RTE; expected --task_name=custom",
        ),
    ],
)
def test_invalid_input_is_rejected_before_the_folder_is_touched(
    reviews, tiny_model, tmp_path, changes, row, message
):
    dev = tmp_path / "dev.tsv"
    dev.write_text(f"text\tlabel\n{row}\n")
    settings = {**reviews, "eval_file": str(dev)} | changes
    with pytest.raises(InputError, match=message):
        classify(tmp_path / "out", tiny_model, settings)
    assert not (tmp_path / "out").exists()


def test_single_texts_are_rejected_by_a_model_of_pairs(reviews, tiny_model, tmp_path):
    start, labels = open_checkpoint(tiny_model), ["bad", "good"]
    TextClassifier.from_checkpoint(start, labels=labels, pair=True).save_pretrained(tmp_path / "m")
    with pytest.raises(InputError, match="m: was trained on pairs, got single texts; expected"):
        classify(tmp_path / "out", tmp_path / "m", reviews, do_train=False)


def test_model_without_the_head_is_rejected_without_training(reviews, tiny_model, tmp_path):
    with pytest.raises(InputError, match=r"the checkpoint has no label names"):
        classify(tmp_path / "out", tiny_model, reviews, do_train=False)


def test_nothing_is_predicted_without_test_files(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tentailment\n")
    settings = ClassificationSettings("rte", str(tmp_path))
    do = {"do_train": False, "do_predict": True}
    _, splits = read_data(settings, None, do_eval=True, **do)
    assert (len(splits.dev[""]), splits.test) == (1, {})
    with pytest.raises(InputError, match=r"nothing to do: there are no examples"):
        read_data(settings, None, do_eval=False, **do)
