"""Tests EntityTagger: training from words and texts, exporting, and invalid arguments."""

import json

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.load import load
from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.entity_tagger import EntityTagger
from keras_bert.tasks.ner.tag_schemes import entities

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
        ([1], r"labels\[0\] is 1, a int; expected a string"),
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


@pytest.mark.parametrize("max_seq_length", [2, 17, "8"])
def test_lengths_that_exceed_the_model_are_rejected(ner_files, max_seq_length):
    with pytest.raises(InputError, match=rf"max_seq_length={max_seq_length!r}: expected"):
        EntityTagger.from_pretrained(ner_files / "bert", ["PER"], max_seq_length=max_seq_length)


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
        (["a"], [["PER"]], r"entities\[0\]\[0\] is 'PER'; expected an entity such as"),
        (["a"], [[{"start": 0, "end": 1}]], "expected an entity such as"),
        (["a"], [[(0, 2, "PER")]], r"0 <= start < end <= 1, the length of texts\[0\]"),
        (["a"], [[("0", 1, "PER")]], r"expected whole numbers"),
        (["a"], [[(0, 1, "ORG")]], "expected a type of LOC, PER"),
        (
            ["d", "axx c"],
            [[], [(0, 1, "PER")]],
            r"entities\[1\]\[0\]: characters 0 to 1, 'a', are not complete words; expected "
            "the start and the end of words, such as 0 to 3: 'axx'",
        ),
        (
            ["a b c"],
            [[(0, 3, "PER"), (2, 5, "LOC")]],
            r"entities\[0\]\[1\]: characters 2 to 5 overlap entities\[0\]\[0\]; expected entities "
            "that do not overlap",
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
