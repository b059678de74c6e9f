"""Tests TextClassifier: training, saving and exporting from a checkpoint, and invalid input."""

import json
import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.classification.processor import takes_pairs
from keras_bert.tasks.classification.task import TextClassifier
from keras_bert.tasks.load import load
from keras_bert.tasks.prepared import prepare
from tests import processes
from tests.tasks.classification import classify_on_backend

# From 4 to 31 tokens.
TEXTS = [f"{('bad ', 'good ')[i % 2] * (1 + i * 7 % 28)}film" for i in range(32)]
LABELS = [("neg", "pos")[i % 2] for i in range(32)]
PAIRS = (TEXTS, [f"it is {'very ' * (i % 3)}a book" for i in range(32)])
FAST = {"verbose": 0, "batch_size": 4, "seed": 0, "learning_rate": 1e-2, "jit_compile": False}


def open_new(pretrained, **changes):
    return TextClassifier.from_pretrained(
        pretrained, **{"labels": ["neg", "pos"], "max_seq_length": 32} | changes
    )


def weights_of(task):
    return [keras.ops.convert_to_numpy(weight) for weight in task.model.weights]


@pytest.fixture(scope="module")
def trained(pretrained, tmp_path_factory):
    """Returns a classifier after three epochs, its history, and the folder of its callbacks."""
    folder = tmp_path_factory.mktemp("callbacks")
    keras.utils.set_random_seed(1)
    classifier = open_new(pretrained)
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss"),
        keras.callbacks.TensorBoard(folder / "tensorboard", write_graph=False),
        keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=3),
    ]
    held_out = (TEXTS[:10], LABELS[:10])
    history = classifier.fit(
        TEXTS, LABELS, validation_data=held_out, callbacks=callbacks, epochs=3, **FAST
    )
    return classifier, history.history, folder


def test_fit_learns_and_reports_the_metrics_of_both_sets(trained):
    classifier, history, _ = trained
    names = {"loss", "accuracy", "val_loss", "val_accuracy", "val_f1_macro"}
    assert history.keys() >= names
    assert {len(values) for name, values in history.items() if name in names} == {3}
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_accuracy"][-1] == 1.0
    metrics = classifier.evaluate(TEXTS, LABELS)
    assert metrics.keys() == {"loss", "accuracy", "f1_macro"}
    assert classifier.evaluate(TEXTS[:10], LABELS[:10], batch_size=3)["loss"] == pytest.approx(
        history["val_loss"][-1], abs=1e-5
    )


def test_callbacks_write_their_files(trained):
    classifier, _, folder = trained
    assert list((folder / "tensorboard").rglob("events*"))
    logits = classifier.predict(TEXTS[:5])["logits"]
    before = weights_of(classifier)
    classifier.model.load_weights(folder / "best.weights.h5")
    loaded = keras.models.load_model(folder / "best.keras")
    for mine, *others in zip(weights_of(classifier), before, loaded.weights, strict=True):
        for other in others:
            np.testing.assert_array_equal(mine, keras.ops.convert_to_numpy(other))
    np.testing.assert_allclose(classifier.predict(TEXTS[:5])["logits"], logits, atol=1e-6)


def test_empty_list_of_texts_gives_empty_arrays(trained):
    for empty in ([], ([], []), np.array([])):
        answers = trained[0].predict(empty)
        assert {name: value.shape for name, value in answers.items()} == {
            "label": (0,),
            "probabilities": (0, 2),
            "logits": (0, 2),
            "truncated": (0,),
        }


def test_saved_model_reloads_unchanged(trained, tmp_path):
    classifier = trained[0]
    classifier.save_pretrained(tmp_path / "out")
    expected = classifier.predict(TEXTS[:5])
    for opened in (load(tmp_path / "out"), TextClassifier.from_pretrained(tmp_path / "out")):
        assert isinstance(opened, TextClassifier)
        assert opened.settings == classifier.settings
        answers = opened.predict(TEXTS[:5])
        np.testing.assert_array_equal(answers["logits"], expected["logits"])
        assert answers["label"].tolist() == expected["label"].tolist()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "neg", "1": "pos"}
    # The same names in another order are accepted, other names are rejected.
    assert TextClassifier.from_pretrained(tmp_path / "out", ["pos", "neg"]).labels == ("neg", "pos")
    with pytest.raises(InputError, match=r"labels=\['a', 'b'\]: .*has the labels neg, pos; exp"):
        TextClassifier.from_pretrained(tmp_path / "out", labels=["a", "b"])


@pytest.mark.slow
def test_labels_that_are_not_given_are_those_of_the_data(pretrained, capsys):
    classifier = open_new(pretrained, labels=None)
    for call in (lambda: classifier.predict(TEXTS), lambda: classifier.evaluate(TEXTS, LABELS)):
        with pytest.raises(InputError, match="has no head for the task classification; expected"):
            call()
    given = open_new(pretrained)
    # Integers are indices of given labels.
    given.fit(TEXTS, [int(label == "pos") for label in LABELS], **FAST | {"epochs": 1})
    assert capsys.readouterr().out == ""
    classifier.fit(TEXTS, LABELS, **FAST | {"epochs": 1, "verbose": 2})
    assert "labels: 'neg', 'pos'\n" in capsys.readouterr().out
    assert classifier.labels == given.labels
    for mine, other in zip(weights_of(classifier), weights_of(given), strict=True):
        np.testing.assert_array_equal(mine, other)
    with pytest.raises(InputError, match="unknown label 'a'; expected one of neg, pos"):
        classifier.fit(TEXTS, ["a"] * 32, **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": {"pos": 2}}, "class_weights has the key 'pos'; expected labels: 1, 2"),
        ({"class_weight": {0: 2}}, "class_weight has the key '0'; expected labels: 1, 2"),
        ({"validation_data": (["a"], ["pos"])}, "unknown label 'pos'; expected one of 1, 2"),
        ({"teacher": "trained"}, "unknown label '2'; expected one of neg, pos"),
    ],
)
def test_labels_of_a_fit_that_fails_are_not_kept(pretrained, trained, options, message):
    classifier = open_new(pretrained, labels=None)
    options = {k: trained[0] if v == "trained" else v for k, v in options.items()}
    with pytest.raises(InputError, match=message):
        classifier.fit(TEXTS, [1, 2] * 16, **FAST, **options)
    assert (classifier.needs_labels, classifier.untrained) == (True, ())
    with pytest.raises(InputError, match="has the key '1'; expected labels: neg, pos"):
        classifier.fit(TEXTS, LABELS, **FAST, class_weights={"1": 2})


def test_calibration_lowers_the_loss_and_is_saved_with_the_weights(trained, tmp_path):
    trained[0].save_pretrained(tmp_path / "out")
    classifier = load(tmp_path / "out")
    labels = ["pos", *LABELS[1:]]  # One is wrong, so the model is too sure.
    before, loss = classifier.predict(TEXTS), classifier.evaluate(TEXTS, labels)["loss"]
    temperature = classifier.calibrate(TEXTS, labels)["temperature"]
    assert classifier.evaluate(TEXTS, labels)["loss"] < loss
    after = classifier.predict(TEXTS)
    assert after["label"].tolist() == before["label"].tolist()
    np.testing.assert_allclose(after["logits"] * temperature, before["logits"], atol=1e-4)
    classifier.save_pretrained(tmp_path / "calibrated")
    found = load(tmp_path / "calibrated").predict(TEXTS)["probabilities"]
    np.testing.assert_array_equal(found, after["probabilities"])
    assert classifier.checkpoint is None  # Whose checksum an export would contain.
    with pytest.raises(InputError, match="texts is empty"):
        classifier.calibrate([], [])


@pytest.mark.slow
def test_multiple_labels_of_pairs(pretrained, tmp_path):
    classifier = open_new(pretrained, labels=["good", "very"], problem_type="multi_label")
    labels = [[name for name in ("good", "very") if name in text] for text in TEXTS]
    classifier.fit(PAIRS, labels, epochs=4, **FAST)
    metrics = classifier.evaluate(PAIRS, labels)
    assert metrics.keys() == {"loss", "accuracy", "f1_micro", "f1_macro"}
    assert metrics["f1_micro"] > 0.7
    answers = classifier.predict(PAIRS)
    for names, row in zip(answers["labels"], answers["probabilities"], strict=True):
        order = [classifier.labels[i] for i in np.argsort(-row) if row[i] > 0.5]
        assert names.tolist() == order + [""] * (2 - len(order))
    with pytest.raises(InputError, match="restore_best: expected validation_data or validation_sp"):
        classifier.fit(PAIRS, labels, restore_best=True)
    thresholds = classifier.calibrate(PAIRS, labels)["thresholds"]
    assert thresholds.keys() == {"good", "very"}
    assert classifier.evaluate(PAIRS, labels)["f1_macro"] >= metrics["f1_macro"]
    # It was trained on pairs, so its export takes pairs.
    classifier.settings = replace(classifier.settings, thresholds=(0.9, 0.0))
    classifier.processor = classifier.make_processor()
    answers = classifier.predict(PAIRS)
    assert all("very" in names for names in answers["labels"])
    classifier.save_pretrained(tmp_path / "out")
    exported = load(load(tmp_path / "out").export(tmp_path / "serving" / "1"))
    assert exported.settings == classifier.settings
    found = exported.predict(PAIRS)
    assert found["labels"].tolist() == answers["labels"].tolist()
    np.testing.assert_allclose(found["logits"], answers["logits"], atol=1e-5)


def test_thresholds_are_those_of_the_head(pretrained, tmp_path):
    kind = {"problem_type": "multi_label"}
    classifier = open_new(pretrained, **kind)
    classifier._replace_settings(thresholds=(0.9, 0.1))
    classifier.save_pretrained(tmp_path / "out")
    assert load(tmp_path / "out").settings.thresholds == (0.9, 0.1)
    convert(tmp_path / "out", tmp_path / "encoder", heads=False)
    for labels in (["a", "b"], ["a", "b", "c"]):
        assert open_new(tmp_path / "encoder", labels=labels, **kind).settings.thresholds == ()


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantized_heads_are_not_calibrated(pretrained):
    classifier = open_new(pretrained)
    classifier.model.quantize("int8")
    with pytest.raises(InputError, match="calibrate: the head is quantized to int8; expected fl"):
        classifier.calibrate(TEXTS, LABELS)


def test_boolean_labels_are_those_of_boolean_data(pretrained):
    classifier = open_new(pretrained, labels=[False, True])
    assert classifier.labels == ("false", "true")
    scores = classifier.evaluate(TEXTS, np.array([label == "pos" for label in LABELS]))
    assert 0 <= scores["accuracy"] <= 1


def test_predictions_follow_variables_that_keras_replaces(trained, tmp_path):
    trained[0].save_pretrained(tmp_path / "out")
    classifier = load(tmp_path / "out")
    before = classifier.predict(TEXTS[:3])["logits"]
    head = classifier.model.classifier
    head.enable_lora(2)
    head.lora_kernel_b.assign(np.ones(head.lora_kernel_b.shape))
    after = classifier.predict(TEXTS[:3])["logits"]
    assert np.abs(after - before).max() > 1e-3
    batch = prepare(classifier.processor.preprocess, [TEXTS[:1]]).examples.input_ids[np.newaxis]
    inputs = {"input_ids": batch, "input_mask": batch * 0 + 1, "segment_ids": batch * 0}
    np.testing.assert_allclose(classifier.model(inputs)["logits"], after[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "pair"),
    [
        ({"task_name": "MRPC"}, True),
        ({"task_name": "sst2"}, False),
        ({"task_name": "custom", "text_pair_column": ""}, False),
        ({"task_name": "Custom", "text_pair_column": "b"}, True),
        ({"task_name": "custom"}, None),
        ({}, None),
    ],
)
def test_pairs_are_determined_by_the_task_of_the_run_in_any_spelling(
    pretrained, settings, pair, tmp_path
):
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    assert takes_pairs(replace(open_checkpoint(pretrained), path=tmp_path)) is pair


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["a"]}, r"labels=\['a'\]: expected at least two different names"),
        ({"labels": "ab"}, r"labels is 'ab', a str; expected a list of names"),
        ({"max_seq_length": 33}, r"max_seq_length=33: expected from 5 to the model's 32 positions"),
        ({"dtype": "bf16"}, "dtype='bf16': expected one of float32, mixed_bfloat16, mixed_float16"),
        ({"max_seq_length": "32"}, r"max_seq_length='32': expected a whole number"),
        ({"problem_type": "single"}, "problem_type='single': expected one of single_label"),
        ({"problem_type": "regression"}, r"labels=\['neg', 'pos'\]: expected none for problem_ty"),
    ],
)
def test_settings_that_do_not_match_the_model_are_rejected(pretrained, arguments, message):
    with pytest.raises(InputError, match=message):
        open_new(pretrained, **arguments)


def test_pairs_need_a_model_with_two_segments(make_checkpoint, tmp_path):
    path = make_checkpoint(tmp_path / "bert", ["a", "b"], type_vocab_size=1)
    classifier = TextClassifier.from_pretrained(path, labels=["0", "1"])
    message = r"texts is a tuple of pairs, but the model has type_vocab_size 1; expected single"
    with pytest.raises(InputError, match=message):
        classifier.fit((["a"], ["b"]), ["0"])


ONE = (["a"], ["neg"])


@pytest.mark.parametrize(
    ("method", "data", "options", "message"),
    [
        ("fit", (["a", "b"], ["neg"]), {}, "texts has 2 items, labels has 1 items; expected lists"),
        ("fit", ("a text", ["neg"]), {}, "texts is 'a text', a str; expected a list of strings"),
        ("fit", (["a"], "neg"), {}, "labels is 'neg', a str; expected a list of labels"),
        ("fit", (["a"], ["good"]), {}, "labels, item 0: unknown label 'good'; expected one of neg"),
        ("fit", ([], []), {}, r"fit\(\) got no examples; expected at least one"),
        ("fit", ONE, {"epochs": 0}, "epochs=0: expected a whole number from 1"),
        ("fit", ONE, {"batch_size": 1.5}, "batch_size=1.5: expected a whole number"),
        ("fit", ONE, {"learning_rate": 0}, "learning_rate=0: expected a finite number above 0"),
        ("fit", ONE, {"seed": -1}, "seed=-1: expected a whole number from 0"),
        ("fit", ONE, {"lr": 1.0}, r"fit\(\) got unknown arguments lr; expected any of epochs"),
        (
            "fit",
            ONE,
            {"sample_weight": {}},
            "any of epochs, .*, label, validation_data, class_weights, class_weight",
        ),
        (
            "fit",
            ONE,
            {"validation_data": ["a"]},
            "validation_data is a list of 1 items; expected a tuple",
        ),
        ("fit", ONE, {"validation_data": ([], [])}, "validation_data is empty; expected at least"),
        (
            "fit",
            ONE,
            {"validation_data": (["a"], ["x"])},
            r"validation_data\[1\], item 0: unknown label 'x'",
        ),
        ("evaluate", ([], []), {}, r"evaluate\(\) got no texts; expected at least one"),
        ("evaluate", ONE, {"batch_size": 0}, "batch_size=0: expected a whole number"),
        ("predict", (5,), {}, "texts is 5, a int; expected a list of strings, or one string, or "),
        (
            "predict",
            (None,),
            {},
            "None, a NoneType; .*, or for pairs a tuple of two lists or strings",
        ),
        ("fit", ONE, {"mixed_precision": "bf16"}, "'bf16': expected one of float32, bfloat16, fl"),
        ("predict", (("a", "b"),), {}, "a tuple of two strings, which is one pair, but the model"),
    ],
)
def test_invalid_arguments_are_named(trained, method, data, options, message):
    with pytest.raises(InputError, match=message):
        getattr(trained[0], method)(*data, **options)


@pytest.mark.slow
def test_fit_keeps_the_metrics_of_the_task_and_forgets_pairs(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text('{"settings": {"task_name": "QQP"}}')
    classifier = open_new(tmp_path / "run", labels=["0", "1"])
    data = (["good", "bad film"], ["1", "0"])
    before = classifier.evaluate(*data)
    assert before.keys() == {"loss", "accuracy", "f1"}
    pairs = (data[0], data[0])
    classifier.fit(pairs, data[1], **FAST, epochs=1)
    assert classifier.settings.pair
    classifier.fit(*data, **FAST, epochs=1)
    assert not classifier.settings.pair  # An export takes single texts again.
    assert classifier.example_request().keys() == {"text"}
    assert classifier.evaluate(*data).keys() == before.keys()


def test_untrained_model_is_not_exported(pretrained, tmp_path):
    message = r"model: lacks the weights classifier/kernel, classifier/bias; exp"
    with pytest.raises(InputError, match=message):
        open_new(pretrained).export(tmp_path / "1")
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a/first",), "^export_dir=.* is not a version number"),
        (("1", "tflite"), "format='tflite': expected one of saved_model, onnx"),
        (("1", "onnx", "bfloat16"), "compute_type has no effect with format='onnx'"),
        (("1", "saved_model", "float16"), "compute_type='float16': expected one of float32, bfl"),
        (("1", "saved_model", None, True), "int8 has no effect with format='saved_model'"),
    ],
)
def test_invalid_arguments_of_export_are_named(trained, arguments, message, tmp_path):
    place, *others = arguments
    names = ("format", "compute_type", "int8")
    with pytest.raises(InputError, match=message):
        trained[0].export(tmp_path / place, **dict(zip(names, others, strict=False)))
    assert not list(tmp_path.iterdir())


def test_tokenizer_with_another_vocabulary_is_rejected(pretrained, trained):
    from keras_bert.text.tokenizer import BertTokenizer

    own = trained[0].tokenizer
    other = BertTokenizer([*own.vocab, "more"])
    with pytest.raises(InputError, match=r"tokenizer: has 16 tokens, but .* has vocab_size 15"):
        open_new(pretrained, tokenizer=other)
    assert open_new(pretrained, tokenizer=own).tokenizer is own


@pytest.fixture(scope="module")
def untrained(make_checkpoint, tmp_path_factory):
    """Returns the folder of an untrained classifier without dropout."""
    folder = tmp_path_factory.mktemp("untrained")
    sizes = {"initializer_range": 0.2, "max_position_embeddings": 96}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    words = ["good", "bad", "film", "very"]
    encoder = make_checkpoint(folder / "bert", words, **sizes, **no_dropout)
    open_new(encoder, max_seq_length=96).save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module", params=["jax", "torch"])
def on_backend(request, backend_python, untrained, root, tmp_path_factory):
    """Returns a backend, and the report and model of a training on it.

    Preprocessing and decoding run in TensorFlow, and the model runs on the other backend.
    """
    python = backend_python(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "out"
    script = root / "tests" / "tasks" / "classification" / "classify_on_backend.py"
    done = processes.run_on(request.param, python, [script, untrained, folder])
    return request.param, json.loads(done.stdout.splitlines()[-1]), folder


def test_other_backends_train_and_predict_as_tensorflow(on_backend, untrained):
    _, report, folder = on_backend
    classifier = TextClassifier.from_pretrained(untrained, max_seq_length=96)
    data = (classify_on_backend.TEXTS, classify_on_backend.LABELS)
    for name in ("history", "second_history"):  # The last batch of each epoch has two texts.
        options = classify_on_backend.OPTIONS | {"jit_compile": False}
        fitted = classifier.fit(*data, validation_data=data, **options)
        assert report[name].keys() == fitted.history.keys()
        for metric, values in fitted.history.items():
            np.testing.assert_allclose(report[name][metric], values, atol=1e-3)
    assert report["untrained"] == []
    mine = load(folder).predict(classify_on_backend.TEXTS)
    assert mine["label"].tolist() == report["label"]
    np.testing.assert_allclose(mine["logits"], report["logits"], atol=1e-5)


def test_jax_compiles_few_programs_and_keeps_them_for_the_next_fit(on_backend):
    backend, report, _ = on_backend
    if backend == "jax":
        # Fit: training batches of 32, 64 and 96 tokens, and one evaluation batch.
        # Prediction: 1, 2, 4 and 8 texts.
        assert report["compilations"] == {"fit": 4, "predict": 4, "second_fit": 0}


def test_next_fit_has_its_own_learning_rate_and_threads_predict_at_the_same_time(on_backend):
    _, report, _ = on_backend
    assert 0 < report["moved_at_a_low_rate"] < 1e-4
    assert report["failures"] == []
