"""Tests of `fit`: callbacks, the next `fit`, new weights, and learning with every loss."""

import itertools

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.weights import weights_of
from keras_bert.errors import InputError
from keras_bert.tasks.checks import split_rows
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.fitting import reinitialize
from keras_bert.training import log
from tests import processes
from tests.tasks import memorize

DATA = (["good film", "bad book", "very good", "it is bad"] * 2, ["b", "a"] * 4)
FAST = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-2, "verbose": 0, "jit_compile": False}


@pytest.fixture(scope="module")
def start(pretrained):
    """Returns a classifier, whose step is compiled once, and its initial weights."""
    classifier = TextClassifier.from_pretrained(pretrained, labels=["a", "b"])
    return classifier, weights_of(classifier.model)


@pytest.fixture
def classifier(start):
    classifier, weights = start
    for variable in classifier.model.weights:
        variable.assign(weights[variable.path])
    return classifier


@pytest.fixture
def new(pretrained):
    return TextClassifier.from_pretrained(pretrained, labels=["a", "b"])


# --- callbacks ---


def test_callbacks_run_before_and_after_steps_and_epochs(classifier, tmp_path):
    calls = []
    names = ("train_begin", "epoch_begin", "train_batch_begin", "train_batch_end")
    names += ("epoch_end", "train_end")

    def record(name):
        if "train_begin" in name or "train_end" in name:
            return lambda logs: calls.append((name,))
        return lambda index, logs=None: calls.append((name, index))

    callback = keras.callbacks.LambdaCallback(**{f"on_{name}": record(name) for name in names})
    csv = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    board = keras.callbacks.TensorBoard(tmp_path / "board")
    callbacks = [callback, csv, board]
    history = classifier.fit(*DATA, validation_data=DATA, callbacks=callbacks, **FAST)
    steps = [(f"train_batch_{when}", i) for i in range(2) for when in ("begin", "end")]
    epochs = ([("epoch_begin", epoch), *steps, ("epoch_end", epoch)] for epoch in range(3))
    assert calls == [("train_begin",), *itertools.chain(*epochs), ("train_end",)]
    assert history.epoch == [0, 1, 2]
    assert {path.name for path in (tmp_path / "board").iterdir()} == {"train", "validation"}
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert header == "epoch,accuracy,loss,val_accuracy,val_f1_macro,val_loss,val_score"
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(history.history["loss"])


def test_early_stopping_needs_no_mode_and_restores_the_best_weights(classifier):
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_f1_macro", min_delta=9.0, patience=1, restore_best_weights=True
    )
    weights = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(weights_of(classifier.model))
    )
    history = classifier.fit(*DATA, validation_data=DATA, callbacks=[callback, stopping], **FAST)
    assert len(history.history["val_f1_macro"]) == 2
    for path, value in weights_of(classifier.model).items():
        np.testing.assert_array_equal(value, weights[0][path])


class StopAfterFirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_callback_can_stop_within_an_epoch(classifier):
    history = classifier.fit(*DATA, callbacks=[StopAfterFirstStep()], **FAST)
    assert len(history.history["loss"]) == 1
    assert int(classifier.trainer.state.optimizer.iterations) == 1


PLAN = "Training: 4 steps of 5 examples, 2 epochs of 8 examples\n"
COMPILING = "Compiling the training step; the first step takes longer"


@pytest.mark.parametrize(
    ("verbose", "shown"),
    [(0, []), (1, [PLAN, f"{COMPILING}\n", f"{COMPILING}: 0 s\n", "Epoch 2/2", "2/2", "loss:"])],
)
def test_fit_shows_its_plan_and_the_progress_bar_of_keras(
    classifier, capsys, monkeypatch, caplog, verbose, shown
):
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.05)
    # With another weight decay, the step is compiled again.
    options = {"epochs": 2, "verbose": verbose, "batch_size": 5, "weight_decay": 0.02 + verbose}
    classifier.fit(*DATA, **FAST | options)
    out = capsys.readouterr().out
    assert bool(out) == bool(verbose)
    warning = (
        "4 steps are few; if the scores are low, use higher values of epochs and learning_rate"
    )
    assert (warning in caplog.text) == bool(verbose)
    assert all(part in out for part in shown)


def test_loss_that_is_not_finite_stops_the_training(classifier):
    classifier.model.classifier.bias.assign([np.nan, np.nan])
    with pytest.raises(InputError, match=r"step 1: the loss is nan .* the dtype of the model"):
        classifier.fit(*DATA, **FAST)
    history = classifier.fit(*DATA, callbacks=[keras.callbacks.TerminateOnNaN()], **FAST).history
    assert np.isnan(history["loss"]).tolist() == [True]


# --- options ---


def test_best_weights_are_those_of_the_best_epoch_and_of_ties_the_lower_loss(classifier):
    # The score falls from 1 to 0, since the labels of the held-out data are those of the start.
    held_out = (DATA[0], classifier.predict(DATA[0])["label"])
    weights = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(weights_of(classifier.model))
    )
    options = {**FAST, "learning_rate": 3e-2, "epochs": 5, "callbacks": [callback]}
    flipped = [{"a": "b", "b": "a"}[label] for label in held_out[1]]
    history = classifier.fit(
        DATA[0], flipped, validation_data=held_out, restore_best=True, **options
    ).history
    ranks = list(zip(history["val_score"], [-loss for loss in history["val_loss"]], strict=True))
    best = ranks.index(max(ranks))
    assert best < 4
    for path, value in weights_of(classifier.model).items():
        np.testing.assert_array_equal(value, weights[best][path])


def test_validation_split_holds_out_examples_at_random(classifier):
    history = classifier.fit(*DATA, validation_split=0.25, restore_best=True, **FAST).history
    assert len(history["val_accuracy"]) == 3
    assert {value * 2 % 1 for value in history["val_accuracy"]} == {0.0}  # Two of eight.
    with pytest.raises(InputError, match="validation_split: has no effect with validation_data"):
        classifier.fit(*DATA, validation_split=0.5, validation_data=DATA)
    with pytest.raises(InputError, match=r"validation_split=0.5: there are 1 examples; expected a"):
        classifier.fit(["a"], ["no"], validation_split=0.5)
    assert all(map(all, split_rows(0.9, 0, [1, 2])))  # Neither part is empty.


def test_frozen_layers_are_not_trained(classifier):
    before = weights_of(classifier.model)
    classifier.fit(*DATA, num_frozen_layers=1, **FAST)
    changed = {
        path
        for path, value in weights_of(classifier.model).items()
        if not np.array_equal(value, before[path])
    }
    assert {path.split("/")[1] for path in changed if path.startswith("encoder/")} == {"pooler"}
    assert all(variable.trainable for variable in classifier.model.weights)
    with pytest.raises(InputError, match="num_frozen_layers=2: expected at most 1, the number of"):
        classifier.fit(*DATA, num_frozen_layers=2)


def test_mixed_precision_is_that_of_a_model_that_was_loaded_in_it(new, pretrained):
    other = TextClassifier.from_pretrained(pretrained, labels=["a", "b"], dtype="mixed_bfloat16")
    new.predict(["good"])
    for task_object, options in ((new, {"mixed_precision": "bfloat16"}), (other, {})):
        task_object.fit(*DATA, **FAST, **options)
    assert new.model.dtype_policy.name == "mixed_bfloat16"
    for path, value in weights_of(new.model).items():
        np.testing.assert_array_equal(value, weights_of(other.model)[path])
    trainer = new.trainer
    new.fit(*DATA, **FAST)
    assert new.trainer is trainer  # The model is the same.
    other.fit(*DATA, **FAST)
    logits = [task_object.predict(DATA[0])["logits"] for task_object in (new, other)]
    np.testing.assert_array_equal(*logits)


# --- weights ---


def test_next_fit_has_the_same_step_and_a_new_optimizer_state(classifier, tmp_path, capsys):
    classifier.fit(*DATA, **FAST)
    assert "Compiling" not in capsys.readouterr().out
    trainer = classifier.trainer
    compiled = trainer.train_steps.experimental_get_tracing_count()
    # Other learning rates, and another number of steps.
    classifier.save_pretrained(tmp_path / "out")
    other = TextClassifier.from_pretrained(tmp_path / "out")
    options = {"epochs": 5, "learning_rate": 2e-2, "warmup_proportion": 0.4, "seed": 1}
    for task_object in (classifier, other):
        task_object.fit(DATA[0] * 2, DATA[1] * 2, **FAST | options)
    assert classifier.trainer is trainer
    assert trainer.train_steps.experimental_get_tracing_count() == compiled
    for path, value in weights_of(classifier.model).items():
        np.testing.assert_array_equal(value, weights_of(other.model)[path])
    schedule = classifier.model.optimizer.get_config()["learning_rate"]["config"]
    assert schedule == {"learning_rate": 2e-2, "num_train_steps": 20, "num_warmup_steps": 8}
    for _ in range(2):  # The second one has the step of the first.
        classifier.fit(*DATA, **FAST | {"weight_decay": 0.1, "verbose": 2})
    assert classifier.trainer is not trainer
    out = capsys.readouterr().out
    assert out.count("Compiling the training step; the first step takes longer\n") == 1


def test_class_weight_is_another_name_of_class_weights(new):
    new.fit(*DATA, **FAST, class_weight={1: 2})
    assert new.trainer.state.objective.class_weights == (1.0, 2.0)
    with pytest.raises(InputError, match="class_weight: is another name of class_weights"):
        new.fit(*DATA, class_weight={1: 2}, class_weights="balanced")


def test_weights_that_were_set_after_initialization_are_kept(new):
    kernel = new.model.classifier.kernel
    kernel.assign(np.full(kernel.shape, 0.25))
    reinitialize(new, 0)
    assert (keras.ops.convert_to_numpy(kernel) == 0.25).all()


# --- learning ---


@pytest.fixture(scope="module")
def without_dropout(make_checkpoint, tmp_path_factory):
    return make_checkpoint(
        tmp_path_factory.mktemp("without_dropout") / "model",
        memorize.WORDS,
        initializer_range=0.2,
        hidden_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*memorize.TAUGHT, "mnrl"])
def test_fit_memorizes_the_labels_or_the_outputs_of_a_teacher(without_dropout, name):
    memorize.check_case(without_dropout, name)


def test_fit_memorizes_on_jax(without_dropout, backend_python):
    command = ["-m", "tests.tasks.memorize", without_dropout, "tags", "spans", "cosine", "masks"]
    processes.run_on("jax", backend_python("jax"), command)
