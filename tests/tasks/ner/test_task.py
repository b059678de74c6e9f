"""EntityTagger, and fine-tuning on the files of a run."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert.errors import InputError
from keras_bert.tasks.fine_tuning import FineTuningRun
from keras_bert.tasks.load import load
from keras_bert.tasks.ner.data import NerSettings, read_conll
from keras_bert.tasks.ner.tag_schemes import entities, entity_scores
from keras_bert.tasks.ner.task import EntityTagger
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.objective import TrainingSettings

OPTIONS = {"learning_rate": 1e-2, "batch_size": 16, "length_pool": 1, "verbose": 0}
OPTIONS["jit_compile"] = False
UNNAMED = [f"LABEL_{index}" for index in range(5)]


@pytest.fixture(scope="module")
def corpus(ner_files):
    """Returns lists of words and lists of tags for "train" and "dev"."""
    read = {name: read_conll(ner_files / f"{name}.conll") for name in ("train", "dev")}
    return {
        name: ([[*s.words] for s in sentences], [[*s.tags] for s in sentences])
        for name, sentences in read.items()
    }


@pytest.fixture(scope="module")
def learned(ner_files, corpus):
    """Returns a tagger fitted on words, and the Keras history."""
    tagger = EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)
    return tagger, tagger.fit(*corpus["train"], validation_data=corpus["dev"], epochs=5, **OPTIONS)


@pytest.mark.slow
def test_fit_learns_from_words_and_reports_validation_metrics(learned, corpus):
    tagger, history = learned
    assert tagger.labels == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    assert {"loss", "tag_accuracy", "val_f1", "val_f1_PER"} <= history.history.keys()
    scores = tagger.evaluate(*corpus["dev"])
    assert scores["f1"] == history.history["val_f1"][-1] > 0.95
    assert {"precision", "recall", "accuracy", "recall_LOC"} <= scores.keys()


def entity(start, end, kind):
    return {"start": start, "end": end, "type": kind}


def text_and_entities(words, tags):
    """Returns running text and its entities with character positions."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    return " ".join(words), [
        entity(int(starts[first]), int(starts[last]) - 1, kind)
        for kind, first, last in entities(tags)
    ]


@pytest.mark.slow
def test_texts_with_entities_are_the_same_examples_as_words_with_tags(ner_files, corpus):
    words, tags = (column[:20] for column in corpus["train"])
    texts, spans = zip(*map(text_and_entities, words, tags), strict=True)
    # Words with unknown labels are not trained on.
    words, tags = [*words, ["a"]], [*tags, ["-"]]
    losses = []
    for data in ((words, tags), (list(texts), list(spans))):
        tagger = EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)
        losses.append(tagger.fit(*data, epochs=1, **OPTIONS | {"batch_size": 32}).history["loss"])
        assert tagger.evaluate(list(texts), list(spans)) == tagger.evaluate(words, tags)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_texts_and_words_get_equal_entities_with_character_positions(learned):
    tagger = learned[0]
    texts = ["d a b e", "", "😀 c \ud800 a b, ex", "f " * 30 + "a b", "ß"]
    found = tagger.predict(texts)
    assert found["types"] == [["PER"], [], ["LOC", "PER"], ["PER"], []]
    assert found["texts"] == [["a b"], [], ["c", "a b"], ["a b"], []]
    for text, *row in zip(texts, found["texts"], found["starts"], found["ends"], strict=True):
        assert [text[start:end] for start, end in zip(*row[1:], strict=True)] == row[0]
    words = tagger.predict([["d", "a", "b", "e"], [], ["\u200b", "c"]])
    assert words["tags"] == [["O", "B-PER", "I-PER", "O"], [], ["O", "B-LOC"]]
    assert [len(row) for row in words["scores"]] == [4, 0, 2]
    assert found["scores"][0] == [pytest.approx(np.mean(words["scores"][0][1:3]), abs=1e-6)]
    assert tagger.predict([]) == {name: [] for name in found}
    assert tagger.predict(texts[2])["starts"] == found["starts"][2]
    # The entities have the form that `fit` takes.
    entities = tagger.predict(texts, as_dicts=True)
    assert [(e["text"], e["type"]) for e in entities[2]] == [("c", "LOC"), ("a b", "PER")]
    assert entities[2] == tagger.predict(texts[2], as_dicts=True)
    assert tagger.evaluate(texts, entities)["f1"] == 1.0


@pytest.mark.slow
def test_saved_tagger_has_its_types_in_any_order(learned, tmp_path):
    tagger = learned[0]
    tagger.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert EntityTagger.from_pretrained(tmp_path / "saved", ["LOC", "PER"]).labels == tagger.labels
    with pytest.raises(InputError, match=r"has the labels O, B-PER.*; expected the same; for"):
        EntityTagger.from_pretrained(tmp_path / "saved", ["ORG"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("PER", r"labels is 'PER', a str; expected a list"),
        ([], "expected at least one name"),
        (["PER", "PER"], "no duplicates"),
        (["B-PER", "I-PER"], "expected entity types such as PER, or tags with O"),
        (["O", "B-PER"], "expected IOB2 tags, O and both B and I for each type: O, B-PER, I-PER"),
    ],
)
def test_labels_of_a_new_head_are_types_or_iob2_tags(ner_files, labels, message):
    with pytest.raises(InputError, match=message):
        EntityTagger.from_pretrained(ner_files / "bert", labels)


def rename_labels(folder, names, **settings):
    """Changes the names of a tagger's labels, and other settings of its config."""
    config = json.loads((folder / "config.json").read_text()) | settings
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    (folder / "config.json").write_text(json.dumps(config))


# The tagger's own labels are O, B-PER, I-PER, B-LOC, I-LOC; "a" is B-PER and "c" is B-LOC.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "types", "texts"),
    [
        (["O", "PER", "MISC", "LOC", "ORG"], ["PER", "LOC"], ["a a", "c c"]),
        (["O", "B-PER", "I-PER", "LOC", "ORG"], ["PER", "PER", "LOC"], ["a", "a", "c c"]),
        (["O", "E", "S", "LOC", "ORG"], ["E", "LOC"], ["a a", "c c"]),
        # Only "O" is outside, as in transformers.
        (
            UNNAMED,
            ["LABEL_0", "LABEL_1", "LABEL_0", "LABEL_3"],
            ["d", "a a", "d", "c c"],
        ),
    ],
)
def test_labels_without_a_prefix_are_types(learned, tmp_path, caplog, names, types, texts):
    learned[0].save_pretrained(tmp_path / "model")
    rename_labels(tmp_path / "model", names)
    tagger = load(tmp_path / "model")
    assert ("has no label names; each of LABEL_0, LABEL_1" in caplog.text) == (names is UNNAMED)
    assert tagger.labels == tuple(names)
    words = ["d", "a", "a", "d", "c", "c"]
    found = tagger.predict([" ".join(words)])
    assert (found["types"], found["texts"]) == ([types], [texts])
    tags = tagger.predict([words])["tags"]
    assert [kind for kind, *_ in entities(tags[0])] == types
    scores = tagger.evaluate([words], tags)
    assert scores["f1"] == scores[f"f1_{types[0]}"] == 1.0
    if "MISC" in names:
        gold = ["O", "PER", "PER", "O", "LOC", "LOC"]  # The labels of the model are tags, too.
        assert tagger.evaluate([words], [gold])["f1"] == 1.0
        with pytest.raises(InputError, match="expected one of O, PER, MISC, LOC, ORG"):
            tagger.evaluate([["a", "a"]], [["DATE", "O"]])


def test_tags_of_every_scheme_are_accepted(ner_files, caplog):
    labels = ["I-PER", "O", "B-PER", "B-LOC", "I-LOC"]  # A new head keeps their order.
    tagger = EntityTagger.from_pretrained(ner_files / "bert", labels, max_seq_length=8)
    assert tagger.labels == tuple(labels)
    words = [["a", "b", "d", "c"]]
    expected = tagger.evaluate(words, [["B-PER", "I-PER", "O", "B-LOC"]])
    for scheme, tags in {"bilou": "B-PER L-PER O U-LOC", "io": "PER PER - LOC"}.items():
        with caplog.at_level("INFO", "absl"):
            scores = tagger.evaluate(words, [tags.split()])
        assert f"tags: scheme {scheme}" in caplog.text
        assert scores.keys() == expected.keys()
        with pytest.raises(InputError, match=r"targets\[0\]\[\d\]: tag '.*'; expected O, or B"):
            tagger.evaluate(words, [[*tags.split()[:3], "E_PER"]])


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        ([["a", "b"]], [["S-PER", "O"]]),  # Of any scheme.
        (["a b"], [[entity(0, 1, "PER")]]),
        (["a b"], [np.array([entity(0, 1, "PER")])]),  # From Parquet.
    ],
)
def test_labels_that_are_not_given_are_the_types_of_the_data(ner_files, inputs, targets):
    tagger = EntityTagger.from_pretrained(ner_files / "bert", max_seq_length=8)
    with pytest.raises(InputError, match="has no head for the task ner; expected the names"):
        tagger.predict(inputs)
    with pytest.raises(InputError, match="validation_data is a list of 0 items; expected a tuple"):
        tagger.fit(inputs, targets, validation_data=[])
    assert (tagger.needs_labels, tagger.untrained) == (True, ())
    tagger.fit(inputs, targets, epochs=1, verbose=0, jit_compile=False)
    assert tagger.labels == ("O", "B-PER", "I-PER")
    nothing = [["O", "O"]] if isinstance(inputs[0], list) else [[]]
    with pytest.raises(InputError, match="got no entities; expected at least one"):
        EntityTagger.from_pretrained(ner_files / "bert").fit(inputs, nothing)


DATASET = tf.data.Dataset.from_tensor_slices(([["a", "b"]], [["B-PER", "O"]]))


@pytest.fixture(scope="module")
def tagger(ner_files):
    return EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([["a"]], [["O"], ["O"]], "inputs has 1 items, targets has 2 items; expected lists of the"),
        ([["a", "b"]], [["O"]], r"inputs\[0\] has 2 items, targets\[0\] has 1 items"),
        ([["a"]], [["B-ORG"]], r"targets\[0\]\[0\] is 'B-ORG'; expected one of O, B-PER, I-PER"),
        ([["a"], "b"], [["O"], ["O"]], r"inputs\[1\] is 'b', a str; expected a list of strings"),
        ([["a", ""]], [["O", "O"]], r"inputs\[0\]\[1\] is ''; expected a word"),
        ("a b", [], "inputs is 'a b', a str; expected a list of strings, or of lists of words"),
        (["a"], [["PER"]], r"targets\[0\]\[0\] is 'PER'; expected an object with start"),
        (["a"], [[entity(0, 2, "PER")]], "0 <= start < end <= 1, the length of the"),
        (["a"], [[entity(0, 1, "ORG")]], "expected a type of LOC, PER"),
        ([], [], "got no"),
    ],
)
def test_invalid_arguments_are_named(tagger, inputs, targets, message):
    for method in (tagger.fit, tagger.evaluate):
        with pytest.raises(InputError, match=message):
            method(inputs, targets)


def test_entities_that_do_not_fit_words_are_changed_with_a_warning(tagger, caplog):
    tagger.evaluate(["axx c"], [[entity(0, 1, "PER")]])
    extended = "targets[0][0]: characters 0 to 1, 'a' (PER), in the words 0 to 3, 'axx'"
    assert f"spans extended to whole words: 1, the first: {extended}" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.predict(5), "inputs is 5, a int; expected"),
        (lambda it: it.fit(DATASET), "inputs is a tf.data.Dataset; expected lists, or a table"),
        (
            lambda it: it.fit([["a"]], [["O"]], validation_data=([["a"]], [["B-ORG"]])),
            r"^validation_data: targets\[0\]\[0\] is 'B-ORG'; expected one of",
        ),
        (lambda it: it.predict([["a"]], as_dicts=True), "got lists of words; expected texts"),
        (lambda it: it.predict([["a", 1]]), r"inputs\[0\]\[1\] is 1, a int; expected"),
    ],
)
def test_other_invalid_arguments_are_named(tagger, call, message):
    with pytest.raises(InputError, match=message):
        call(tagger)


# --- fine-tuning ---


def run(files, output_dir, init_checkpoint=None, **changes):
    ner = {
        "train_file": str(files / "train.conll"),
        "eval_file": str(files / "dev.conll"),
        "predict_file": str(files / "test.conll"),
    }
    ner |= {name: changes.pop(name) for name in [*changes] if hasattr(NerSettings, name)}
    settings = {
        "init_checkpoint": str(init_checkpoint or files / "bert"),
        "max_seq_length": 8,  # Some sentences are split.
        "learning_rate": 1e-2,
        "num_train_epochs": 4.0,
        "random_seed": 1,
    } | changes
    run = FineTuningRun(
        settings=FineTuningSettings(**settings),
        training=TrainingSettings(num_train_steps=0, train_batch_size=8, jit_compile=False),
        strategy=tf.distribute.get_strategy(),
        output_dir=output_dir,
    )
    return EntityTagger.fine_tune(NerSettings(**ner), run)


@pytest.fixture(scope="module")
def trained(ner_files, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("out") / "run"
    return run(ner_files, output_dir), output_dir


def test_run_learns_and_writes_predictions_in_conlleval_format(trained, ner_files):
    results, output_dir = trained
    assert results["f1"] > 0.95
    assert {"precision", "recall", "f1_PER", "recall_LOC", "accuracy"} <= results.keys()
    assert json.loads((output_dir / "results.json").read_text()) == results
    predicted = read_conll(output_dir / "predictions.conll")
    gold = read_conll(output_dir / "predictions.conll", tag_column=1)
    for columns in zip(gold, read_conll(ner_files / "test.conll"), strict=True):
        assert columns[0]._replace(line=0) == columns[1]._replace(line=0)
    scores = entity_scores([(g.tags, p.tags) for g, p in zip(gold, predicted, strict=True)])
    reported = json.loads((output_dir / "test_results.json").read_text())
    assert {name: reported[name] for name in scores} == scores


@pytest.fixture(scope="module")
def public(trained, tmp_path_factory):
    """Returns a function that writes the tagger as transformers does: labels, but no pooler."""

    def write(labels, **settings):
        folder = tmp_path_factory.mktemp("public") / "model"
        shutil.copytree(trained[1] / "model", folder)
        file = folder / "model.safetensors"
        save_file({name: v for name, v in load_file(file).items() if "pooler" not in name}, file)
        rename_labels(folder, labels, **settings)
        return folder

    return write


@pytest.mark.parametrize(
    ("labels", "label_names"),
    [
        (None, None),  # The run itself.
        (["O", "U-LOC", "L-LOC", "B-PER", "L-PER"], None),
        (UNNAMED, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]),
    ],
)
def test_trained_tagger_of_any_scheme_is_scored_and_writes_iob2(
    trained, ner_files, public, tmp_path, caplog, labels, label_names
):
    results, output_dir = trained
    (tmp_path / "words.conll").write_text("d\na\nb\na\n\nc\n")
    with caplog.at_level("INFO", "absl"):
        again = run(
            ner_files,
            tmp_path / "out",
            init_checkpoint=public(labels) if labels else output_dir,
            do_train=False,
            train_file="",
            predict_file=str(tmp_path / "words.conll"),
            label_names=label_names,
        )
    assert "encoder/pooler" not in caplog.text
    assert again["accuracy"] == results["accuracy"]
    predicted = read_conll(tmp_path / "out" / "predictions.conll")
    assert [s.tags for s in predicted] == [("O", "B-PER", "I-PER", "B-PER"), ("B-LOC",)]


def test_checkpoints_that_are_not_taggers_cannot_predict(ner_files, public, tmp_path):
    classifier = public("abcde", architectures=["BertForSequenceClassification"])
    for folder, message in (
        (ner_files / "bert", "bert: has no label names; expected a tagger"),
        (public(UNNAMED), "model: has no label names; expected .* --label_names"),
        (classifier, "model: is a BertForSequenceClass.*; expected a tagger"),
    ):
        with pytest.raises(InputError, match=message):
            run(ner_files, tmp_path / "out", init_checkpoint=folder, do_train=False)


def test_type_only_in_dev_is_rejected_before_the_folder_is_touched(ner_files, tmp_path):
    (tmp_path / "dev.conll").write_text("a B-ORG\n")
    with pytest.raises(InputError, match=r"dev\.conll, line 1: has an ent.*'ORG'.*train\.conll"):
        run(ner_files, tmp_path / "out", eval_file=str(tmp_path / "dev.conll"))
    assert not (tmp_path / "out").exists()
