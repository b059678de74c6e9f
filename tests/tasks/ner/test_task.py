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
from keras_bert.tasks.ner.metrics import entity_scores
from keras_bert.tasks.ner.tag_schemes import entities
from keras_bert.tasks.ner.task import EntityTagger, fine_tune_tagger
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.objective import TrainingSettings

OPTIONS = {"learning_rate": 1e-2, "batch_size": 16, "length_pool": 1, "verbose": 0}


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


@pytest.fixture(scope="module")
def exported(learned, tmp_path_factory):
    """Returns the opened export of the trained tagger."""
    folder = tmp_path_factory.mktemp("export") / "1"
    learned[0].export(folder)
    return load(folder)


def text_and_entities(words, tags):
    """Returns running text and its entities with character positions."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    return " ".join(words), [
        {"start": int(starts[first]), "end": int(starts[last]) - 1, "type": kind}
        for kind, first, last in entities(tags)
    ]


@pytest.mark.slow
def test_fit_learns_from_words_and_reports_validation_metrics(learned, corpus):
    tagger, history = learned
    assert tagger.labels == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    assert {"loss", "tag_accuracy", "val_f1", "val_f1_PER"} <= history.history.keys()
    scores = tagger.evaluate(*corpus["dev"])
    assert scores["f1"] == history.history["val_f1"][-1] > 0.95
    assert {"precision", "recall", "accuracy", "recall_LOC"} <= scores.keys()


@pytest.mark.slow
def test_fit_learns_from_texts_with_character_entities(ner_files, corpus):
    data = {
        name: tuple(map(list, zip(*map(text_and_entities, *pair), strict=True)))
        for name, pair in corpus.items()
    }
    tagger = EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)
    tagger.fit(*data["train"], epochs=5, **OPTIONS)
    # Texts split into the words of the corpus, so both forms give the same examples.
    assert tagger.evaluate(*data["dev"]) == tagger.evaluate(*corpus["dev"])
    assert tagger.evaluate(*data["dev"])["f1"] > 0.95


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


@pytest.mark.slow
def test_export_gives_the_same_predictions(learned, exported, corpus):
    words, tags = corpus["dev"]
    inputs = [words, [*(" ".join(sentence) for sentence in words), "", "😀 a b"]]
    for given in inputs:
        expected, got = learned[0].predict(given), exported.predict(given, batch_size=7)
        scores = expected.pop("scores"), got.pop("scores")
        assert got == expected
        for row in zip(*scores, strict=True):
            np.testing.assert_allclose(*row, atol=1e-5)
    assert exported.evaluate(words, tags) == learned[0].evaluate(words, tags)
    assert exported.predict([]) == learned[0].predict([])
    with pytest.raises(InputError, match="an exported model has no Keras model"):
        exported.fit(words, tags)


@pytest.mark.slow
def test_saved_tagger_reloads_unchanged(learned, corpus, tmp_path):
    tagger = learned[0]
    tagger.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    for again in (load(tmp_path / "saved"), EntityTagger.from_pretrained(tmp_path / "saved")):
        assert (again.labels, again.settings) == (tagger.labels, tagger.settings)
        assert again.predict(corpus["dev"][0]) == tagger.predict(corpus["dev"][0])
    # The types of the model are accepted in any order.
    swapped = EntityTagger.from_pretrained(tmp_path / "saved", ["LOC", "PER"])
    assert swapped.labels == tagger.labels
    with pytest.raises(InputError, match=r"has the labels O, B-PER.*; expected the same; for"):
        EntityTagger.from_pretrained(tmp_path / "saved", ["ORG"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, r"has no label names; expected a tagger, or entity types such as labels="),
        ("PER", r"labels is 'PER', a str; expected a list"),
        ([], "expected at least one name"),
        (["PER", "PER"], "no duplicates"),
        (["B-PER", "I-PER"], "expected entity types such as PER, or tags with O"),
        (["O", "B-PER"], "expected IOB2 tags, O and both B and I for each type: O, B-PER, I-PER"),
        (["O", "PER"], "expected IOB2 tags"),
    ],
)
def test_labels_of_a_new_head_are_types_or_iob2_tags(ner_files, labels, message):
    with pytest.raises(InputError, match=message):
        EntityTagger.from_pretrained(ner_files / "bert", labels)


def test_tags_of_a_new_head_keep_their_order(ner_files):
    labels = ["I-X", "O", "B-X"]
    assert EntityTagger.from_pretrained(ner_files / "bert", labels).labels == tuple(labels)


def renamed(tagger, folder, names):
    """Saves a tagger with other names of its labels, and returns the folder."""
    tagger.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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
            [f"LABEL_{index}" for index in range(5)],
            ["LABEL_0", "LABEL_1", "LABEL_0", "LABEL_3"],
            ["d", "a a", "d", "c c"],
        ),
    ],
)
def test_labels_without_a_prefix_are_types(learned, tmp_path, names, types, texts):
    folder = renamed(learned[0], tmp_path / "model", names)
    tagger = load(folder)
    assert tagger.labels == tuple(names)
    words = ["d", "a", "a", "d", "c", "c"]
    found = tagger.predict([" ".join(words)])
    assert (found["types"], found["texts"]) == ([types], [texts])
    tags = tagger.predict([words])["tags"]
    assert [kind for kind, *_ in entities(tags[0])] == types
    scores = tagger.evaluate([words], tags)
    assert scores["f1"] == scores[f"f1_{types[0]}"] == 1.0
    if "MISC" in names:
        exported = load(tagger.export(tmp_path / "1"))
        assert exported.labels == tagger.labels
        assert exported.predict([words])["tags"] == tags
        assert exported.predict([" ".join(words)])["types"] == [types]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("B-PER E-PER O S-LOC", "bioes"),
        ("B-PER L-PER O U-LOC", "bilou"),
        ("B-PER M-PER O S-LOC", "bmes"),
        ("B-PER E-PER O W-LOC", "bmewo"),
        ("PER PER O LOC", "io"),
    ],
)
def test_tags_of_every_scheme_are_accepted(ner_files, caplog, tags, scheme):
    tagger = EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)
    words = [["a", "b", "d", "c"]]
    expected = tagger.evaluate(words, [["B-PER", "I-PER", "O", "B-LOC"]])
    with caplog.at_level("INFO", "absl"):
        assert tagger.evaluate(words, [tags.split()]) == expected
    assert f"tags: scheme {scheme}" in caplog.text
    mixed = {"bioes": "L-PER", "bilou": "S-PER", "bmes": "L-PER", "bmewo": "U-PER", "io": "B-PER"}
    with pytest.raises(InputError, match=r"tags\[0\]\[\d\] is '.*'; expected one of O, B-PER"):
        tagger.evaluate(words, [[*tags.split()[:3], mixed[scheme]]])


@pytest.mark.slow
def test_words_with_unknown_labels_are_not_trained_on(ner_files):
    def first_loss(*data):
        tagger = EntityTagger.from_pretrained(ner_files / "bert", ["PER", "LOC"], max_seq_length=8)
        return tagger.fit(*data, epochs=1, **OPTIONS).history["loss"][0]

    # With O in place of -, the loss is 1.6263 in place of 1.6280.
    with_unknown = first_loss([["a"], ["b"]], [["B-PER"], ["-"]])
    assert with_unknown == pytest.approx(first_loss([["a"]], [["B-PER"]]), rel=1e-5)


@pytest.mark.slow
def test_own_labels_are_accepted_as_tags_of_words(learned, tmp_path):
    names = ["O", "PER", "MISC", "LOC", "ORG"]
    tagger = EntityTagger.from_pretrained(renamed(learned[0], tmp_path / "model", names))
    for tags in (["PER", "PER", "O", "LOC"], ["B-PER", "I-PER", "O", "S-LOC"]):
        assert tagger.evaluate([["a", "a", "d", "c"]], [tags])["f1"] == 1.0
        tagger.fit([["a", "a", "d", "c"]], [tags], epochs=1, **OPTIONS)
    with pytest.raises(InputError, match="expected one of O, PER, MISC, LOC, ORG"):
        tagger.evaluate([["a"]], [["DATE"]])


@pytest.mark.slow
def test_names_of_the_logits_are_accepted_for_a_head(learned, tmp_path, caplog):
    folder = renamed(learned[0], tmp_path / "model", [f"LABEL_{index}" for index in range(5)])
    names = ["O", "PER", "MISC", "LOC", "ORG"]
    tagger = EntityTagger.from_pretrained(folder, names)
    assert tagger.predict(["d a a"])["types"] == [["PER"]]
    assert "has no label names" not in caplog.text
    assert EntityTagger.from_pretrained(folder).labels[0] == "LABEL_0"
    assert "has no label names; each of LABEL_0, LABEL_1" in caplog.text
    tagger.save_pretrained(tmp_path / "named")
    again = EntityTagger.from_pretrained(tmp_path / "named", names)
    assert again.labels == tuple(names)
    with pytest.raises(InputError, match=r"has the labels O, PER, MISC.*; expected the same; for"):
        EntityTagger.from_pretrained(tmp_path / "named", ["ORG"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([["a"]], [["O"], ["O"]], "words has 1 items, tags has 2 items; expected lists of the"),
        ([["a", "b"]], [["O"]], r"words\[0\] has 2 items, tags\[0\] has 1 items"),
        ([["a"]], [["B-ORG"]], r"tags\[0\]\[0\] is 'B-ORG'; expected one of O, B-PER, I-PER"),
        ([["a"]], ["O"], r"tags\[0\] is 'O', a str; expected a list of strings"),
        ([["a"], "b"], [["O"], ["O"]], r"words\[1\] is 'b', a str; expected a list of strings"),
        ([["a", ""]], [["O", "O"]], r"words\[0\]\[1\] is ''; expected a word"),
        ([["a", 1]], [["O", "O"]], r"words\[0\]\[1\] is 1, a int; expected a string"),
        ("a b", [], "inputs is 'a b', a str; expected a list of strings, or of lists of words"),
        (["a"], [[], []], "texts has 1 items, entities has 2 items"),
        (["a", 1], [[], []], r"texts\[1\] is 1, a int; expected a string"),
        (["a"], [["PER"]], r"entities\[0\]\[0\] is 'PER'; expected an object with start"),
        (["a"], [[{"start": 0, "end": 1}]], r"\[0\] has no 'type'; expected a string"),
        (["a"], [[(0, 2, "PER")]], "0 <= start < end <= 1, the length of the"),
        (["a"], [[("0", 1, "PER")]], r"\[0\]\.start is '0'; expected a whole number"),
        (["a"], [[(0, 1, "ORG")]], "expected a type of LOC, PER"),
        (
            ["d", "axx c"],
            [[], [(0, 1, "PER")]],
            r"entities\[1\]\[0\]: characters 0 to 1, 'a' \(PER\), in the words 0 to 3, 'axx'; exp",
        ),
        (
            ["a b c"],
            [[(0, 3, "PER"), (2, 5, "LOC")]],
            r"entities\[0\]\[1\]: characters 2 to 5, 'b c' \(LOC\); expected complete words that",
        ),
        ([], [], "got no"),
    ],
)
def test_invalid_arguments_are_named(learned, inputs, targets, message):
    tagger = learned[0]
    if isinstance(targets[0] if targets else None, list):
        targets = [
            [
                dict(zip(("start", "end", "type"), e, strict=True)) if type(e) is tuple else e
                for e in row
            ]
            for row in targets
        ]
    for method in (tagger.fit, tagger.evaluate):
        with pytest.raises(InputError, match=message):
            method(inputs, targets)


@pytest.mark.slow
def test_invalid_arguments_of_predict_are_named(learned):
    for given in ("text", [1], [["a", 1]], ["a", ["b"]], None, {"a"}):
        with pytest.raises(InputError, match=r"(inputs|texts|words).* is .*; expected"):
            learned[0].predict(given)
    with pytest.raises(InputError, match="batch_size=0: expected a whole number of at least 1"):
        learned[0].predict(["a"], batch_size=0)
    with pytest.raises(InputError, match=r"validation_data is \[\]; expected a tuple"):
        learned[0].fit([["a"]], [["O"]], validation_data=[])
    with pytest.raises(InputError, match="validation_data is empty; expected at least one item"):
        learned[0].fit([["a"]], [["O"]], validation_data=([], []))


# --- fine-tuning ---


def run(files, output_dir, init_checkpoint=None, **changes):
    ner = {
        "train_file": str(files / "train.conll"),
        "eval_file": str(files / "dev.conll"),
        "test_file": str(files / "test.conll"),
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
    return fine_tune_tagger(NerSettings(**ner), run)


@pytest.fixture(scope="module")
def trained(ner_files, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("out") / "run"
    return run(ner_files, output_dir), output_dir


def test_run_learns_and_reports_every_type(trained):
    results, output_dir = trained
    assert results["f1"] > 0.95
    assert {"precision", "recall", "f1_PER", "recall_LOC", "accuracy"} <= results.keys()
    assert json.loads((output_dir / "results.json").read_text()) == results


def test_predictions_in_conlleval_format_give_the_reported_scores(trained, ner_files):
    _, output_dir = trained
    predicted = read_conll(output_dir / "predictions.conll")
    gold = read_conll(ner_files / "test.conll")
    assert [s.words for s in predicted] == [s.words for s in gold]
    gold_column = read_conll(output_dir / "predictions.conll", tag_column=1)
    assert [s.tags for s in gold_column] == [s.tags for s in gold]
    first_line = (output_dir / "predictions.conll").read_text().split("\n")[0]
    assert len(first_line.split(" ")) == 3
    scores = entity_scores([(g.tags, p.tags) for g, p in zip(gold, predicted, strict=True)])
    reported = json.loads((output_dir / "test_results.json").read_text())
    assert {name: reported[name] for name in scores} == scores


def test_trained_model_evaluates_and_predicts_without_training(trained, ner_files, tmp_path):
    results, output_dir = trained
    (tmp_path / "words.conll").write_text("d\na\nb\n\nc\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=output_dir,
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["f1"] == results["f1"]
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\nb I-PER\n\nc B-LOC\n\n"


def test_tagger_of_another_scheme_is_scored_and_written_as_iob2(trained, ner_files, tmp_path):
    results, output_dir = trained
    shutil.copytree(output_dir / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [*config["id2label"].values()] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    tags = ["O", "U-LOC", "L-LOC", "B-PER", "L-PER"]
    config["id2label"] = {str(i): tag for i, tag in enumerate(tags)}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "words.conll").write_text("d\na\nb\n\nc\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=tmp_path / "model",
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["accuracy"] == results["accuracy"]
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\nb I-PER\n\nc B-LOC\n\n"


@pytest.fixture
def public(trained, tmp_path):
    """Returns the tagger as transformers saves it: without a pooler and label names."""
    shutil.copytree(trained[1] / "model", tmp_path / "public")
    file = tmp_path / "public" / "model.safetensors"
    save_file({name: v for name, v in load_file(file).items() if "pooler" not in name}, file)
    config = json.loads((tmp_path / "public" / "config.json").read_text())
    config["id2label"] = {str(index): f"LABEL_{index}" for index in range(5)}
    (tmp_path / "public" / "config.json").write_text(json.dumps(config))
    return tmp_path / "public"


def test_tagger_without_pooler_and_names_is_scored_with_given_names(
    trained, ner_files, public, tmp_path, caplog
):
    with pytest.raises(InputError, match=r"public: has no label names; expected .* --label_names"):
        run(ner_files, tmp_path / "out", init_checkpoint=public, do_train=False)
    with caplog.at_level("INFO", "absl"):
        again = run(
            ner_files,
            tmp_path / "out",
            init_checkpoint=public,
            do_train=False,
            label_names=["O", "B-LOC", "I-LOC", "B-PER", "I-PER"],
        )
    assert again["f1"] == trained[0]["f1"]
    assert "weights loaded" in caplog.text
    assert "encoder/pooler" not in caplog.text


def test_tagger_whose_labels_are_types_is_scored_and_written_as_iob2(
    trained, ner_files, public, tmp_path
):
    config = json.loads((public / "config.json").read_text())
    names = ["O", "LOC", "ORG", "PER", "MISC"]  # In the run: O B-LOC I-LOC B-PER I-PER.
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    (public / "config.json").write_text(json.dumps(config))
    (tmp_path / "words.conll").write_text("d\na\na\n\nc\nd\na\n")
    again = run(
        ner_files,
        tmp_path / "out",
        init_checkpoint=public,
        do_train=False,
        train_file="",
        test_file=str(tmp_path / "words.conll"),
    )
    assert again["f1_LOC"] > 0.5
    assert {"f1_PER", "f1_ORG", "f1_MISC"} <= again.keys()
    text = (tmp_path / "out" / "predictions.conll").read_text()
    assert text == "d O\na B-PER\na I-PER\n\nc B-LOC\nd O\na B-PER\n\n"


def test_model_of_another_task_is_rejected(ner_files, public, tmp_path):
    config = json.loads((public / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(index): name for index, name in enumerate("abcde")}
    (public / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"public: is a BertForSequenceClass.*; expected a tagger"):
        run(ner_files, tmp_path / "out", init_checkpoint=public, do_train=False)


@pytest.mark.slow
def test_wrong_predictions_are_written_to_tensorboard(ner_files, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(ner_files, tmp_path / "out", num_train_epochs=0.1, learning_rate=0.0, do_predict=False)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    table = events.Tensors("wrong_predictions")[0].tensor_proto.string_val[0].decode()
    assert table.startswith("| where | sentence | missed | wrong |")
    assert "dev.conll:" in table


@pytest.mark.slow
def test_training_works_with_context(ner_files, tmp_path):
    lines = (ner_files / "train.conll").read_text()
    (tmp_path / "train.conll").write_text(f"-DOCSTART- O\n\n{lines}-DOCSTART- O\n\n{lines}")
    results = run(
        ner_files,
        tmp_path / "out",
        train_file=str(tmp_path / "train.conll"),
        document_context=True,
        num_train_epochs=1.0,
        do_predict=False,
    )
    assert results["f1"] > 0.5


def test_type_only_in_dev_is_rejected_before_the_folder_is_touched(ner_files, tmp_path):
    (tmp_path / "dev.conll").write_text("a B-ORG\n")
    with pytest.raises(InputError, match=r"dev\.conll, line 1: tag 'B-ORG', but .*train\.conll"):
        run(ner_files, tmp_path / "out", eval_file=str(tmp_path / "dev.conll"))
    assert not (tmp_path / "out").exists()


def test_checkpoint_without_tags_cannot_predict(ner_files, tmp_path):
    with pytest.raises(InputError, match=r"bert: has no label names; expected a tagger"):
        run(ner_files, tmp_path / "out", do_train=False)
