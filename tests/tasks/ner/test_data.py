"""Sentences of a run: column files, texts with entities, rows of words, TensorFlow Datasets."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.ner.data import (
    NerSettings,
    Sentence,
    check_types,
    make_labels,
    read_conll,
    read_data,
    write_conll,
)
from keras_bert.tasks.tables import Splits
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS

DO = {"do_train": True, "do_eval": True, "do_predict": True}
EVAL = {"do_train": False, "do_eval": True, "do_predict": False}
PREDICT = {"do_train": False, "do_eval": False, "do_predict": True}


@pytest.fixture(scope="module")
def tokenizer():
    words = ["ann", "bo", "li", "met", "in", "new", "york", "-", "."]
    return BertTokenizer([*SPECIAL_TOKENS, *words])


@pytest.fixture
def read(tmp_path, tokenizer):
    """Returns a function that writes text or rows to a file, and reads its sentences."""

    def read(content, name="dev.jsonl", do=EVAL, **settings):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_bytes(content.encode())
        elif path.suffix == ".parquet":
            table = content if isinstance(content, pa.Table) else pa.Table.from_pylist(content)
            parquet.write_table(table, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        ner = NerSettings(eval_file=str(path), **settings)
        splits = flat(read_data(ner, new_tokenizer=lambda: tokenizer, **do))
        return splits.dev or splits.test

    return read


def flat(splits):
    return Splits(splits.train, splits.dev.get(""), splits.test.get("test"))


def conll(read, text, **settings):
    return read(text, "dev.conll", **settings)


# --- tags and labels of a file ---


def test_tags_of_any_scheme_are_converted_to_iob2(read, caplog):
    file = conll(read, "a PER\nb PER\nc LOC\nd O\n")
    assert file.tags == [("B-PER", "I-PER", "B-LOC", "O")]
    assert file.types == {"PER", "LOC"}
    with caplog.at_level("INFO", "absl"):
        file = conll(read, "a B-PER\nb -\nc I-LOC\nd O\ne I-LOC\n", tag_scheme="iob2")
    assert file.tags == [("B-PER", "-", "B-LOC", "O", "B-LOC")]
    for message in (
        "1 sentences, 5 words, 3 entities, scheme iob2",
        "1 tags violate the scheme iob2; they are read by the rules of conlleval",
        "the labels of 1 words are unknown; they are not trained on or scored",
    ):
        assert message in caplog.text
    with pytest.raises(InputError, match=r"has the tag - .unknown label., but not O; expected O"):
        conll(read, "a B-PER\nb -\n")


def test_labels_are_o_and_both_tags_of_every_type(read):
    train = conll(read, "a B-PER\nb B-LOC\nc O\n")
    labels = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert make_labels(train, None) == labels
    assert make_labels(train, labels[::-1]) == labels[::-1]  # the order of a checkpoint
    assert make_labels(train, ["LABEL_0", "LABEL_1"]) == labels
    with pytest.raises(InputError, match=r"has no entities \(every tag is O\); expected"):
        make_labels(conll(read, "a O\n"), None)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("a\nb\n", "x.conll", "has words without tags; expected words and their tags"),
        ([{"tokens": ["a", "b"]}], "x.jsonl", "has words without tags"),
        ([{"text": "a b"}], "x.jsonl", r"x\.jsonl, line 1: has no 'entities'; expected a list"),
    ],
)
def test_file_without_tags_can_be_predicted_but_not_scored(read, content, name, message):
    file = read(content, name, PREDICT)
    assert (file.sentences[0].words, file.tags, file.counts) == (("a", "b"), None, {})
    with pytest.raises(InputError, match=message):
        read(content, name)


def test_document_context_of_a_file_without_boundaries_is_the_whole_file(read, caplog):
    assert conll(read, "a O\n\nb O\n", document_context=True).documents == [0, 0]
    assert "no document boundaries found; all sentences form one document" in caplog.text


# --- column files ---


@pytest.fixture
def file(write):
    return lambda text: write("train.conll", text)


def test_words_and_tags_are_columns(file):
    path = file("EU NNP I-NP B-ORG\nrejects  VBZ I-VP O \n\nPeter NNP I-NP B-PER\n")
    assert read_conll(path) == [
        Sentence(("EU", "rejects"), ("B-ORG", "O"), line=1),
        Sentence(("Peter",), ("B-PER",), line=4),
    ]
    path = file("1\tEU\tB-ORG\tx\n")
    assert read_conll(path, token_column=1, tag_column=2)[0].words == ("EU",)
    assert read_conll(path, token_column=1, tag_column=-2)[0].tags == ("B-ORG",)
    assert read_conll(file("EU\nrejects\n")) == [Sentence(("EU", "rejects"), (), line=1)]


def test_blank_lines_end_sentences_and_docstart_lines_start_documents(file):
    for end in ("\n\n", "\n \t \n", "\r\n\t\r\n", "\n\n\n\n"):
        sentences = read_conll(file(f"\ufeffa\tO{end}b\tO"))
        assert [sentence.words for sentence in sentences] == [("a",), ("b",)]
    path = file("-DOCSTART- O\n\na N O O\n\nb N O O\n\n-DOCSTART- -X- O O\nc N O O\n")
    sentences = [(s.words, s.document) for s in read_conll(path)]
    assert sentences == [(("a",), 0), (("b",), 0), (("c",), 1)]


def test_words_between_tabs_may_contain_spaces_or_be_a_no_break_space(file):
    path = file("New York\tB-LOC\n\u00a0\tO\n\u2028\tO\n#b\tO\n")
    assert read_conll(path)[0].words == ("New York", "\u00a0", "\u2028", "#b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\nb\n", r"train\.conll, line 2: expected 2 columns, as in line 1; got 1: 'b'"),
        ("a\tO\n\tO\n", r"line 2: column 0 is empty; expected a word and its tag"),
        ("-DOCSTART- -X- O\n", r"train\.conll: contains no sentences"),
        ("1\tIn\tO\n2\tOslo\tB\n\n1\tHere\tO\n", r"column 0 has the number .*--columns=token=1"),
    ],
)
def test_invalid_line_is_rejected_with_file_and_line_number(file, text, message):
    with pytest.raises(InputError, match=message):
        read_conll(file(text))


def test_missing_column_is_rejected(file):
    with pytest.raises(InputError, match=r"line 1: --columns=tag=4, but the line has 2 columns"):
        read_conll(file("a O\n"), tag_column=4)


def test_columns_are_written_in_the_format_of_conlleval(tmp_path):
    path = tmp_path / "predictions.conll"
    write_conll(
        path, [(("New York", "\u00a0"), ("B-LOC", "O"), ("B-LOC", "O")), (("a",), ("O",), ("O",))]
    )
    assert path.read_text() == "New_York B-LOC B-LOC\n_ O O\n\na O O\n\n"


# --- rows of words ---

ROWS = [
    {"tokens": ["Ada", "Lovelace", "in", "Ulm"], "ner_tags": ["B-PER", "L-PER", "O", "U-LOC"]},
    {"tokens": [], "ner_tags": []},
    {"tokens": ["-DOCSTART-"], "ner_tags": ["O"]},
    {"tokens": ["Nobody"], "ner_tags": ["-"]},
]
NAMES = ["O", "B-PER", "L-PER", "U-LOC"]


@pytest.mark.parametrize(
    ("name", "tags", "unit"), [("a.jsonl", "tags", "line"), ("a.parquet", "ner_tags", "row")]
)
def test_rows_of_words_and_tags(read, name, tags, unit):
    keys = ("tokens", tags)
    file = read([dict(zip(keys, row.values(), strict=True)) | {"id": "1"} for row in ROWS], name)
    assert [(s.words, s.document) for s in file.sentences] == [
        (("Ada", "Lovelace", "in", "Ulm"), 0),
        (("Nobody",), 1),
    ]
    assert file.tags == [("B-PER", "I-PER", "O", "B-LOC"), ("-",)]
    with pytest.raises(InputError, match=rf"{name}, {unit} 1, word 4: has an entity of type 'LOC'"):
        check_types(file, ["O", "B-PER", "I-PER"], "x")


@pytest.mark.parametrize("sequence", ["Sequence", "List", None])
def test_numbers_of_tags_have_names_in_the_files_of_datasets(read, sequence):
    numbers = [
        [NAMES.index(tag) if tag in NAMES else -100 for tag in row["ner_tags"]] for row in ROWS
    ]
    table = pa.table({"tokens": [row["tokens"] for row in ROWS], "ner_tags": numbers})
    label = {"names": NAMES, "_type": "ClassLabel"}
    feature = {"feature": label, "_type": sequence} if sequence else [label]
    info = {"info": {"features": {"ner_tags": feature}}}
    named = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    assert read(named, "a.parquet").tags == [("B-PER", "I-PER", "O", "B-LOC"), ("-",)]
    for rows, name in ((table, "a.parquet"), ([{"tokens": ["Ada"], "ner_tags": [1]}], "a.jsonl")):
        with pytest.raises(
            InputError, match="1: 'ner_tags' has the number 1; expected names of ta"
        ):
            read(rows, name)


# --- texts with entities ---

TEXT = "Ann met 😀 Bo Li."
SPANS = [("PER", 0, 3), ("PER", 10, 15)]


def annotated(text, spans):
    return {
        "text": text,
        "entities": [{"start": start, "end": end, "type": kind} for kind, start, end in spans],
    }


def test_texts_with_entities_become_tags_of_words(read):
    file = read([annotated(TEXT, SPANS), annotated("No one.", [])])
    first, second = file.sentences
    assert first.words == ("Ann", "met", "😀", "Bo", "Li", ".")
    assert file.tags == [("B-PER", "O", "O", "B-PER", "I-PER", "O"), ("O", "O", "O")]
    assert (second.where(1), second.document) == ("line 2, word 2", 1)
    assert not any(file.counts.values())


@pytest.mark.parametrize(
    ("column", "items"),
    [
        ("label", [[0, 3, "PER"]]),
        ("labels", [[0, 3, "PER"]]),
        ("entities", [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}]),
        ("spans", [{"start": 0, "end": 3, "token_start": 0, "token_end": 0, "label": "PER"}]),
        ("label", [{"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}]),
    ],
    ids=["doccano", "doccano labels", "doccano entities", "Prodigy", "Label Studio"],
)
def test_exports_of_annotation_tools(read, column, items):
    row = {"text": "Ann met Bo.", column: items, "tokens": [{"text": "Ann", "id": 0}]}
    rejected = {"text": "Bo", column: [], "answer": "reject"}
    assert read([row | {"answer": "accept"}, rejected]).tags == [("B-PER", "O", "O", "O")]
    with pytest.raises(InputError, match=rf"line 1: {column}\[0\]"):
        read([{"text": "Ann", column: [[0, 9, "PER"]]}])


def test_offsets_of_label_studio_count_utf16_units(read):
    items = [{"start": 3, "end": 6, "text": "Ann", "labels": ["PER"]}]
    file = read([{"text": "😀 Ann", "label": items}])
    assert (file.tags, file.counts["misaligned_spans"]) == ([("O", "B-PER")], 0)


def test_other_columns_named_label_or_spans_are_ignored(read):
    rows = [{"tokens": ["Ann"], "ner_tags": ["B-PER"], "spans": ["PER: Ann"], "label": "x"}]
    assert read(rows).tags == [("B-PER",)]
    assert read([{"text": "Ann", "label": "sports"}], do=PREDICT).tags is None


def entity(**values):
    return annotated(TEXT, []) | {"entities": [{"start": 0, "end": 3, "type": "PER"} | values]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no texts; expected texts"),
        ([{"entities": []}], "line 1: has no 'text'; expected a string"),
        ([annotated("\u200b", [])], "contains no words"),
        ([{"text": "x", "entities": ["PER"]}], r"entities\[0\] is 'PER'; expected an object with"),
        ([entity(), entity(type=" ")], r"line 2: entities\[0\] is .*expected a type, and 0 <= sta"),
        ([entity(start="0")], r"line 1: entities\[0\]\.start is '0'; expected a whole number"),
        ([entity(end=17)], "expected a type, and 0 <= start < end <= 16, the length of the text"),
        ([{"annotations": [], "data": {}}], "line 1: is a task of Label Studio's JSON export; exp"),
        ([*ROWS, {"tokens": ["a", "b"], "tags": ["O"]}], "line 5: has no 'ner_tags'; expected a l"),
        ([*ROWS, {"tokens": ["a", "b"], "ner_tags": ["O"]}], "line 5: tokens has 2 items, ner_tag"),
        ([*ROWS, {"tokens": ["a"], "ner_tags": [None]}], r"ner_tags\[0\] is None; expected a stri"),
        ([*ROWS, {"tokens": ["a", ""], "ner_tags": ["O", "O"]}], "expected a list of words"),
    ],
)
def test_invalid_file_is_rejected(read, content, message):
    with pytest.raises(InputError, match=rf"dev\.jsonl.*{message}") as error:
        read(content)
    assert "\n" not in str(error.value)


def test_entities_that_do_not_fit_are_counted_and_named(read, caplog):
    spans = [("PER", 8, 10), ("PER", 1, 2), ("LOC", 21, 25), ("LOC", 17, 25), ("X", 25, 26)]
    # White space around entities and repeated ones are ignored.
    spans += [("LOC", 16, 25), ("PER", 8, 10)]
    file = read([annotated("Ann met Bo-Li in New York .", spans), annotated(" ", [])])
    assert file.sentences[0].words == ("Ann", "met", "Bo-Li", "in", "New", "York", ".")
    assert file.tags == [("B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "O")]
    assert [*file.counts.values()] == [2, 2, 1]
    for message in (
        "spans extended to whole words: 2, the first: ",
        "dev.jsonl, line 1: entities[0]: characters 8 to 10, 'Bo' (PER), in the words 8 to 13, 'Bo",
        "entities[1]: characters 1 to 2, 'n' (PER), in the words 0 to 3, 'Ann'",
        "spans dropped because they overlap a longer one: 2, the first: ",
        "characters 21 to 25, 'York' (LOC)",
        "spans dropped because they contain no word: 1, the first: ",
        "skipped 1 texts without words",
    ):
        assert message in caplog.text


# --- TensorFlow Datasets ---


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares conll2003 and wikiann/de in the layout of TFDS, and datasets of other kinds."""
    tfds = pytest.importorskip("tensorflow_datasets")
    import numpy as np
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("tfds")
    names = tfds.features.ClassLabel(names=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    tags, numbers = tfds.features.Sequence(names), tfds.features.Sequence(np.int64)
    words = tf.ragged.constant([["Ada", "Lee", "naïve"], [], ["Ulm"]], dtype=tf.string)
    values = tf.ragged.constant([[1, 2, 0], [], [3]], dtype=tf.int64)
    for name, column, feature, splits in (
        ("conll2003/conll2003", "ner", tags, ("train", "dev", "test")),
        ("wikiann/de", "tags", tags, ("train", "validation", "test")),
        ("numbers/numbers", "sizes", numbers, ("train",)),
        ("only/train", "tags", tags, ("train",)),
        ("only/dev", "tags", tags, ("dev",)),
        ("no/words", "tags", tags, ("train", "validation")),
    ):
        rows = tf.data.Dataset.from_tensor_slices({"tokens": words, column: values})
        rows = rows.skip(1).take(1) if name == "no/words" else rows
        text = tfds.features.Sequence(tfds.features.Text())
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name.partition("/")[0],
            config=name.partition("/")[2],
            version="1.0.0",
            data_dir=folder,
            features=tfds.features.FeaturesDict({"tokens": text, column: feature}),
            split_datasets=dict.fromkeys(splits, rows),
            disable_shuffling=True,
        )
    return str(folder)


def read_tfds(prepared, task_name, ner=None, **changes):
    ner = NerSettings(tfds=True, data_dir=prepared, task_name=task_name, **ner or {})
    return flat(read_data(ner, new_tokenizer=None, **DO | changes))


@pytest.mark.parametrize("task_name", ["conll2003", "wikiann/de"])
def test_sentences_have_the_words_and_tags_of_their_rows(prepared, task_name):
    splits = read_tfds(prepared, task_name)
    assert [(s.words, s.tags, s.line) for s in splits.dev.sentences] == [
        (("Ada", "Lee", "naïve"), ("B-PER", "I-PER", "O"), 1),
        (("Ulm",), ("B-LOC",), 3),
    ]
    name = task_name if "/" in task_name else f"{task_name}/{task_name}"
    dev = "dev" if task_name == "conll2003" else "validation"
    for split, name_of_split in ((splits.train, "train"), (splits.dev, dev), (splits.test, "test")):
        assert split.source.endswith(f"{name}/1.0.0, split {name_of_split}")


@pytest.mark.parametrize(
    ("task_name", "changes", "message"),
    [
        ("", {}, "--task_name is missing; expected a dataset for --tfds"),
        ("conll2003", {"ner": {"eval_file": "a"}}, "--eval_file cannot be combined with --tfds"),
        ("conll2003", {"ner": {"columns": ["tag=2"]}}, "--columns cannot be combined with --tfds"),
        ("only/dev", {}, "there are no training examples; expected a train split of --task_name=o"),
        ("no/words", {}, "no/words/1.0.0, split train: contains no sentences"),
        ("conll2002/es", {}, r"no prepared dataset conll2002/es .*tfds build conll2002/es --data"),
        ("numbers", {}, r"numbers: has the columns .*; expected tokens and ner"),
    ],
)
def test_settings_of_a_dataset_are_checked(prepared, task_name, changes, message):
    with pytest.raises(InputError, match=message):
        read_tfds(prepared, task_name, **changes)


def test_missing_split_is_skipped(prepared):
    splits = read_tfds(prepared, "only/train")
    assert len(splits.train.sentences) == 2
    assert splits.dev is splits.test is None
