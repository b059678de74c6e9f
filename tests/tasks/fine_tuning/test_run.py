"""Tests fine-tuning runs: best weights, resuming after a kill, and early stopping."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert.tasks.fine_tuning as run_module
from keras_bert.checkpoints.earlier_run import SETTINGS_KEY
from keras_bert.errors import EndedEarly, InputError
from keras_bert.tasks.classification.metrics import ClassificationObjective
from keras_bert.tasks.examples import make_predict_examples
from keras_bert.tasks.fine_tuning import FineTuningRun, open_pretrained
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import make_strategy
from tests.tasks.fine_tuning.conftest import LabelTask

TRAINING = TrainingSettings(num_train_steps=0, train_batch_size=16, jit_compile=False)
KEEP_ALL = replace(TRAINING, keep_checkpoint_max=10)
ONE_STEP = replace(TRAINING, num_train_steps=1)
OBJECTIVE = ClassificationObjective("single_label")


@pytest.fixture(scope="module")
def settings(tiny_checkpoint):
    return FineTuningSettings(str(tiny_checkpoint), max_seq_length=64, learning_rate=3e-3)


@pytest.fixture(scope="module")
def make_task(make_examples):
    """Returns a function that makes a label prediction task on 72 examples, with changes."""
    train, held_out = make_examples(72, 0, 8), make_examples(24, 1, 8)  # One graph for all.

    def make(accuracies=None, labels=("even", "odd"), losses=None, **changes):
        """Returns the accuracy on the development set, or the next of the given accuracies."""
        given, given_losses = iter(accuracies or ()), iter(losses or ())

        def score(outputs):
            hits = outputs["logits"].argmax(-1) == held_out.labels["labels"]
            loss = {"loss": next(given_losses, 9.0)} if losses else {}
            return {"accuracy": next(given, -1.0) if accuracies else hits.mean(), **loss}

        values = {"train": train, "score": score, "data": ["24 examples"], **changes}
        return LabelTask(OBJECTIVE, held_out=held_out, labels=labels, **values)

    return make


def go(settings, output_dir, task, training=TRAINING):
    run = FineTuningRun(
        settings=settings, training=training, strategy=make_strategy(), output_dir=output_dir
    )
    return task.run(run, open_pretrained(settings))


def weights_of(path):
    return (path / "model" / "model.safetensors").read_bytes()


def evaluations(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["eval_accuracy"]) for line in lines if "eval_accuracy" in line]


@pytest.fixture(scope="module")
def trained(settings, make_task, tmp_path_factory):
    """Returns the folder of a finished run."""
    path = tmp_path_factory.mktemp("trained")
    go(settings, path, make_task())
    return path


def test_run_evaluates_once_per_epoch_and_writes_the_expected_files(settings, make_task, trained):
    results = json.loads((trained / "results.json").read_text())
    assert [step for step, _ in evaluations(trained)] == [5, 10, 15]  # 72 / 16, rounded up
    assert results["accuracy"] == max(value for _, value in evaluations(trained))
    assert {path.name for path in trained.iterdir()} == {
        *("best", "checkpoints", "examples.json", "metrics.jsonl", "model", "results.json"),
        *("run.json", "tensorboard"),
    }
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "even", "1": "odd"}
    assert go(settings, trained, make_task(accuracies=[0.0])) == results  # nothing left to do


@pytest.mark.slow
def test_best_weights_are_kept_and_of_ties_those_of_the_lower_loss(settings, make_task, tmp_path):
    task = make_task([0.9, 0.9, 0.8, 0.0], losses=[0.94, 0.68, 0.1])
    results = go(settings, tmp_path, task, KEEP_ALL)
    assert results["best_step"] == 10
    assert weights_of(tmp_path) == (tmp_path / "best" / "model.safetensors").read_bytes()
    saved = load_file(tmp_path / "model" / "model.safetensors")["classifier.bias"]
    for step in (5, 10, 15):
        then = load_file(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
        assert np.array_equal(then["classifier/bias"], saved) == (step == 10)


def killed_at(number, function):
    """Wraps a function so that the run is killed at the end of a call."""
    calls = iter(range(1, 100))

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        if next(calls) == number:
            raise KeyboardInterrupt
        return result

    return call


@pytest.mark.slow
def test_repeatedly_interrupted_run_ends_with_identical_weights(
    settings, make_task, tmp_path, monkeypatch, trained
):
    """Sends SIGTERM in the first evaluation, which runs when the run resumes; then kills the run
    after the first save of best/, an evaluation, a checkpoint, and before the results.
    """
    task = make_task()

    def interrupted(*args, **kwargs):
        predict = make_predict_examples(*args, **kwargs)

        def call(examples, **after):
            os.kill(os.getpid(), signal.SIGTERM)
            return predict(examples, **after)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "make_predict_examples", interrupted)
        with pytest.raises(
            EndedEarly, match="stopped by SIGTERM after step 5; the checkpoint is saved"
        ):
            go(settings, tmp_path, task)
    assert [path.name[-2:] for path in (tmp_path / "checkpoints").iterdir()] == ["05"]
    assert evaluations(tmp_path) == []
    kills = [
        ("save_best", run_module, 1),
        ("score", None, 2),
        ("save", CheckpointWriter, 1),
        ("score", None, 2),
    ]
    for name, module, number in kills:
        with monkeypatch.context() as patch:
            doomed = task
            if module is None:
                doomed = make_task(score=killed_at(number, task.score))
            else:
                patch.setattr(module, name, killed_at(number, getattr(module, name)))
            with pytest.raises(KeyboardInterrupt):
                go(settings, tmp_path, doomed)
        assert not (tmp_path / "results.json").exists()
    results = go(settings, tmp_path, task)
    assert results == json.loads((trained / "results.json").read_text())
    assert weights_of(tmp_path) == weights_of(trained)
    assert evaluations(tmp_path) == evaluations(trained)
    # A lost evaluation does not count as one without improvement.
    (tmp_path / "results.json").unlink()
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(r for r in rows if '"step": 10' not in r))
    with pytest.raises(InputError, match=r"metrics\.jsonl: evaluations are missing"):
        go(settings, tmp_path, task)


@pytest.mark.slow
def test_best_step_is_the_step_of_the_saved_weights_after_a_kill(
    settings, make_task, tmp_path, monkeypatch, caplog
):
    """The run is killed between best/ and the metrics of step 10, whose repeated evaluation then
    gives a lower figure than step 5, as it may with other package versions.
    """
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_best", killed_at(2, run_module.save_best))
        with pytest.raises(KeyboardInterrupt):
            go(settings, tmp_path, make_task([0.5, 0.6]), KEEP_ALL)
    assert evaluations(tmp_path) == [(5, 0.5)]
    results = go(settings, tmp_path, make_task([0.4, 0.3, 0.4]), KEEP_ALL)
    assert evaluations(tmp_path) == [(5, 0.5), (10, 0.4), (15, 0.3)]
    saved = load_file(tmp_path / "model" / "model.safetensors")["classifier.bias"]
    then = load_file(tmp_path / "checkpoints" / "step-00000010" / "model.safetensors")
    assert np.array_equal(then["classifier/bias"], saved)
    assert results["best_step"] == 10
    assert "the better weights of step 5 were lost" in caplog.text


@pytest.mark.slow
def test_run_resumes_from_best_weights_without_a_step_as_version_0_2_saved_them(
    settings, make_task, tmp_path, monkeypatch, edit_json
):
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_best", killed_at(2, run_module.save_best))
        with pytest.raises(KeyboardInterrupt):
            go(settings, tmp_path, make_task([0.7, 0.8]), KEEP_ALL)
    edit_json(tmp_path / "best" / "config.json", **{SETTINGS_KEY: None})
    results = go(settings, tmp_path, make_task([0.4, 0.3, 0.4]), KEEP_ALL)
    assert (results["step"], results["best_step"]) == (15, 5)


@pytest.mark.slow
def test_training_stops_when_evaluations_do_not_improve(settings, make_task, tmp_path):
    settings = replace(settings, num_train_epochs=6, early_stopping_patience=2)
    results = go(settings, tmp_path, make_task([0.3, 0.6, 0.6, 0.5, 0.9, 0.9]))
    assert [step for step, _ in evaluations(tmp_path)] == [5, 10, 15, 20]
    assert (results["step"], results["best_step"]) == (20, 15)
    # A run that was killed after the last evaluation does not train further.
    (tmp_path / "results.json").unlink()
    assert go(settings, tmp_path, make_task([0.9]))["step"] == 20


def test_trained_model_evaluates_and_predicts_without_training(
    settings, make_task, tmp_path, trained
):
    only = replace(settings, init_checkpoint=str(trained), do_train=False, do_predict=True)
    written = []
    task = make_task(train=None, write=written.append)
    results = go(only, tmp_path / "scored", task)
    assert results["accuracy"] == json.loads((trained / "results.json").read_text())["accuracy"]
    assert written == [tmp_path / "scored" / "predictions"]
    assert not (tmp_path / "scored" / "model").exists()
    with pytest.raises(InputError, match=r"has the labels even, odd; expected odd, even"):
        go(only, tmp_path / "other", make_task(labels=["odd", "even"]))
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("do_train", [True, False])
def test_unnamed_labels_accept_any_names(
    settings, make_task, tmp_path, trained, edit_json, do_train, caplog
):
    unnamed = tmp_path / "unnamed"
    shutil.copytree(trained / "model", unnamed)
    edit_json(unnamed / "config.json", id2label={"0": "LABEL_0", "1": "LABEL_1"})
    again = replace(settings, init_checkpoint=str(unnamed), do_train=do_train)
    go(again, tmp_path / "out", make_task(labels=["bad", "good"]), ONE_STEP)
    assumed = "assuming that its logits belong to the labels bad, good in this order"
    assert (assumed in caplog.text) != do_train


def test_label_names_are_in_the_order_of_the_logits(settings, make_task, tmp_path, trained):
    only = replace(settings, init_checkpoint=str(trained), do_train=False)
    task = make_task(train=None, labels=["bad", "good"])

    def score(names, output_dir):
        return go(replace(only, label_names=names), output_dir, task)

    with pytest.raises(InputError, match=r"even, odd; expected bad, good; .* --label_names$"):
        score(None, tmp_path)
    with pytest.raises(InputError, match=r"has the labels good, bad; expected bad, good"):
        score(["good", "bad"], tmp_path)
    results = json.loads((trained / "results.json").read_text())
    assert score(["bad", "good"], tmp_path)["accuracy"] == results["accuracy"]


@pytest.mark.parametrize("names", [["a"], ["a", "a"]])
def test_each_logit_needs_a_label_name(settings, trained, names):
    with pytest.raises(InputError, match=r"--label_names=a.*: .* has 2 logits; expected one name"):
        open_pretrained(replace(settings, init_checkpoint=str(trained), label_names=names))
    with pytest.raises(InputError, match=r"has no logits; expected one name"):
        open_pretrained(replace(settings, label_names=names))


@pytest.mark.parametrize(
    ("training", "changes", "message"),
    [
        ({}, {"train": None}, "there are no training examples"),
        ({"gradient_accumulation_steps": 3}, {}, r"--train_batch_size=16 is not divisible by"),
        ({}, {"labels": ["no", "yes"]}, r"has the labels even, odd; expected no, yes; .*--noheads"),
        ({}, {"labels": ()}, r"a head with 2 logits; expected 1; .* convert SRC DST --noheads"),
        ({}, {"score": None}, r"--early_stopping_patience=1 needs a development set"),
        (None, {"problem_type": "multi_label"}, r"type single_label_cl.*; expected multi_label"),
    ],
)
def test_rejected_run_leaves_no_folder(
    settings, make_task, tmp_path, trained, training, changes, message
):
    settings = replace(
        settings,
        init_checkpoint=str(trained),
        early_stopping_patience=1,
        do_train=training is not None,
    )
    with pytest.raises(InputError, match=message):
        go(settings, tmp_path / "out", make_task(**changes), replace(ONE_STEP, **(training or {})))
    assert not (tmp_path / "out").exists()


def test_run_without_training_needs_a_head(settings, make_task, tmp_path):
    with pytest.raises(InputError, match=r"has no weights classifier/kernel, classifier/bias"):
        go(replace(settings, do_train=False), tmp_path / "a", make_task())
    assert not (tmp_path / "a").exists()


def test_changed_checkpoint_weights_are_detected(settings, make_task, tmp_path, trained):
    copy = tmp_path / "model"
    shutil.copytree(settings.init_checkpoint, copy)
    moved = replace(settings, init_checkpoint=str(copy))
    assert open_pretrained(moved).record() == open_pretrained(settings).record()
    weights = load_file(copy / "model.safetensors")
    weights["bert.pooler.dense.bias"] += 1
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(InputError, match="the content of weights has changed"):
        go(moved, trained, make_task())


def test_changed_data_and_labels_are_rejected(settings, make_task, trained):
    train = make_task().train
    flipped = replace(train, labels={"labels": 1 - train.labels["labels"]})
    for changes, message in (
        ({"data": ["others"]}, "the content of dev has changed"),
        ({"write": print}, "the content of predictions has changed"),
        ({"train": flipped}, "the content of train has changed"),
        ({"labels": ["odd", "even"]}, r'labels was \["even", "odd"\] and is now \["odd", "even"'),
    ):
        with pytest.raises(InputError, match=message):
            go(settings, trained, make_task(**changes))


def test_settings_that_exceed_the_checkpoint_are_rejected(settings):
    with pytest.raises(InputError, match=r"--max_seq_length=65: .* has 64 positions; expected"):
        open_pretrained(replace(settings, max_seq_length=65))


@pytest.mark.slow
def test_float16_and_bfloat16_moments_are_used_and_checkpointed(settings, make_task, tmp_path):
    half = replace(settings, mixed_precision="float16", optimizer_state_dtype="bfloat16")
    twice = replace(ONE_STEP, gradient_checkpointing=True)
    go(half, tmp_path, make_task(score=None), twice)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss_scale"] == 2.0**15
    state = load_file(tmp_path / "checkpoints/step-00000001/optimizer.safetensors")
    assert {v.dtype.name for name, v in state.items() if name.endswith("_m")} == {"bfloat16"}
    assert state["adam_weight_decay/good_steps"] == 1
