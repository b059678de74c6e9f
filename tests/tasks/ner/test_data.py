"""Sentences of a run: tags of any scheme, labels, column files, TensorFlow Datasets."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.ner.data import (
    NerSettings,
    check_types,
    make_labels,
    read_conll,
    read_data,
    tagged,
    write_conll,
)
from keras_bert.tasks.ner.tag_schemes import Sentence, check_labels, tag_ids


@pytest.fixture
def read(tmp_path):
    def read(text, name="train.conll", tags_needed=True, **settings):
        path = tmp_path / name
        path.write_text(text)
        return tagged(str(path), read_conll(path), NerSettings(**settings), tags_needed)

    return read


def test_types_without_a_prefix_are_converted_to_iob2(read):
    file = read("a PER\nb PER\nc LOC\nd O\n")
    assert file.tags == [["B-PER", "I-PER", "B-LOC", "O"]]
    labels = make_labels(read("a PER\nd O\n"), None)
    with pytest.raises(InputError, match=r"line 3: tag 'LOC', but x has no entity of type 'LOC'"):
        check_types(file, labels, "x")


def test_unknown_labels_are_not_trained_on(read, caplog):
    file = read("a B-PER\nb -\nc O\n")
    assert (file.tags, file.types) == ([["B-PER", "-", "O"]], {"PER"})
    labels = make_labels(file, None)
    assert labels == ["O", "B-PER", "I-PER"]
    assert tag_ids(file.tags, labels).tolist() == [1, -1, 0]
    assert "the labels of 1 words are unknown; they are not trained on or scored" in caplog.text


ROWS = [
    {"tokens": ["Ada", "Lovelace", "in", "Ulm"], "ner_tags": ["B-PER", "L-PER", "O", "U-LOC"]},
    {"tokens": [], "ner_tags": []},
    {"tokens": ["-DOCSTART-"], "ner_tags": ["O"]},
    {"tokens": ["Nobody"], "ner_tags": ["-"]},
]


NAMES = ["O", "B-PER", "L-PER", "U-LOC"]


def read_rows(path, rows, **flags):
    if path.suffix == ".parquet":
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        parquet.write_table(table, path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    do = {"do_train": False, "do_eval": True, "do_predict": False, "new_tokenizer": None}
    splits = read_data(NerSettings(eval_file=str(path)), **do | flags)
    return splits.dev or splits.test


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("keys", [("tokens", "ner_tags"), ("tokens", "tags")])
def test_rows_of_words_and_tags(tmp_path, ending, keys):
    rows = [dict(zip(keys, row.values(), strict=True)) | {"id": "1"} for row in ROWS]
    file = read_rows(tmp_path / f"dev.{ending}", rows)
    assert [sentence.words for sentence in file.sentences] == [
        ("Ada", "Lovelace", "in", "Ulm"),
        ("Nobody",),
    ]
    assert file.tags == [["B-PER", "I-PER", "O", "B-LOC"], ["-"]]
    assert [sentence.document for sentence in file.sentences] == [0, 1]
    unit = {"jsonl": "line", "json": "item", "parquet": "row"}[ending]
    message = rf"dev\.{ending}, {unit} 1, word 4: tag 'U-LOC', but x has no entity of type 'LOC'"
    with pytest.raises(InputError, match=message):
        check_types(file, ["O", "B-PER", "I-PER"], "x")


def test_rows_of_words_can_be_predicted(tmp_path):
    rows = [{"tokens": row["tokens"]} for row in ROWS]
    file = read_rows(tmp_path / "new.jsonl", rows, do_eval=False, do_predict=True)
    assert (len(file.sentences), file.tags) == (2, None)
    with pytest.raises(InputError, match=r"new\.jsonl: has words without tags; expected words and"):
        read_rows(tmp_path / "new.jsonl", rows)


@pytest.mark.parametrize("sequence", ["Sequence", "List", None])
def test_numbers_of_tags_have_names_in_the_files_of_datasets(tmp_path, sequence):
    numbers = [
        [NAMES.index(tag) if tag in NAMES else -100 for tag in row["ner_tags"]] for row in ROWS
    ]
    table = pa.table({"tokens": [row["tokens"] for row in ROWS], "ner_tags": numbers})
    label = {"names": NAMES, "_type": "ClassLabel"}
    feature = {"feature": label, "_type": sequence} if sequence else [label]
    info = {"info": {"features": {"ner_tags": feature}}}
    named = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    file = read_rows(tmp_path / "dev.parquet", named)
    assert file.tags == [["B-PER", "I-PER", "O", "B-LOC"], ["-"]]
    message = (
        r"row 1: 'ner_tags' has the number 1; expected names of tags, such as B-PER, or a Parq"
    )
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / "dev.parquet", table)
    rows = [{"tokens": ["Ada"], "ner_tags": [1]}]
    with pytest.raises(InputError, match="line 1: 'ner_tags' has the number 1; expected names of"):
        read_rows(tmp_path / "dev.jsonl", rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, r"'ner_tags' is \['O'\]; expected 2 tags"),
        ({"tokens": ["a"]}, "'ner_tags' is None; expected 1 tags"),
        ({"tokens": ["a"], "ner_tags": "O"}, "'ner_tags' is 'O'; expected 1 tags"),
        ({"tokens": ["a"], "ner_tags": [None]}, r"'ner_tags' is \[None\]; expected 1 tags"),
        ({"tokens": ["a", ""], "ner_tags": ["O", "O"]}, "'tokens' is .* expected a list of words"),
        ({"tag": "a"}, "'tokens' is None; expected a list of words"),
    ],
)
def test_invalid_rows_of_words_are_named(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"dev\.jsonl, line 5: {message}"):
        read_rows(tmp_path / "dev.jsonl", [*ROWS, row])


def test_invalid_sequences_are_counted_and_read_like_conlleval(read, caplog):
    with caplog.at_level("INFO", "absl"):
        file = read("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2")
    assert "1 sentences, 3 words, 2 entities, scheme iob2" in caplog.text
    assert file.tags == [["B-PER", "O", "B-LOC"]]
    assert "1 tags violate the scheme iob2" in caplog.text


def test_labels_are_o_and_both_tags_of_every_type(read):
    labels = make_labels(read("a B-PER\nb B-LOC\nc O\n"), None)
    assert labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tag_ids([["O", "B-PER"], ["I-LOC"]], labels).tolist() == [0, 3, 2]
    assert tag_ids([["O"]], labels).dtype == np.int32


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O B-X I-X", "B-X I-X I-X B-X O B-X I-X"),
        ("O B-X I-X L-X U-X", "B-X I-X L-X U-X O B-X L-X"),
        ("E-X S-X B-X I-X O", "B-X I-X E-X S-X O B-X E-X"),
        ("B-X M-X E-X W-X O", "B-X M-X E-X W-X O B-X E-X"),
        ("O X", "X X X X O X X"),
    ],
)
def test_words_get_labels_of_the_scheme_of_the_model(labels, expected):
    labels, expected = labels.split(), expected.split()
    ids = tag_ids([["B-X", "I-X", "I-X", "B-X", "O"], ["B-X", "I-X"]], labels)
    assert [labels[index] for index in ids] == expected


def test_checkpoint_order_of_the_same_labels_is_kept(read):
    train = read("a B-PER\nb O\n")
    assert make_labels(train, ["I-PER", "O", "B-PER"]) == ["I-PER", "O", "B-PER"]
    assert make_labels(train, ["LABEL_0", "LABEL_1"]) == ["O", "B-PER", "I-PER"]


def test_type_in_dev_missing_in_train_is_rejected_with_its_line(read):
    train = read("a B-PER\n")
    dev = read("a O\n\nb B-LOC\nc B-LOC\n", name="dev.conll")
    with pytest.raises(
        InputError,
        match=r"dev\.conll, line 3: tag 'B-LOC', but train has no entity of type 'LOC'; .* PER",
    ):
        check_types(dev, make_labels(train, None), "train")
    check_types(train, make_labels(dev, None) + make_labels(train, None), "both")


def test_training_file_without_entities_is_rejected(read):
    with pytest.raises(InputError, match=r"has no entities \(every tag is O\); expected"):
        make_labels(read("a O\n"), None)


def test_file_without_tags_can_be_predicted_but_not_scored(read):
    assert read("a\nb\n", tags_needed=False).tags is None
    with pytest.raises(InputError, match=r"has words without tags; expected words and their tags"):
        read("a\nb\n")


@pytest.mark.parametrize(
    "labels",
    [
        "O B-PER I-PER",
        "O PER LOC",
        "LABEL_0 LABEL_1",
        "O B-PER LOC",
        "O U-Boot B-PER",
        "O B-PER I-PER L-PER U-PER",
    ],
)
def test_labels_are_tags_or_types(labels):
    check_labels(labels.split(), "bert")


@pytest.mark.parametrize("label", ["X-PER", "b-PER", "O-PER", ""])
def test_labels_of_an_unknown_scheme_are_rejected(label):
    message = rf"bert: has the labels O, B-PER, {label}; expected tags, .* got '{label}'$"
    with pytest.raises(InputError, match=message):
        check_labels(["O", "B-PER", label], "bert")


def test_types_of_the_model_are_compared_with_those_of_a_file(read):
    check_types(read("a B-PER\n"), ["O", "LOC", "PER"], "bert")
    with pytest.raises(InputError, match=r"no entity of type 'PER'; expected one of LOC, ORG$"):
        check_types(read("a B-PER\n"), ["O", "ORG", "LOC"], "bert")


def files(folder, *names):
    for name in names:
        (folder / name).write_text("a B-PER\n\nb O\n")
    return NerSettings(**{name: str(folder / name) for name in names})


DO = {"do_train": True, "do_eval": True, "do_predict": True, "new_tokenizer": None}


def test_splits_without_a_file_are_none(tmp_path):
    splits = read_data(files(tmp_path, "train_file"), **DO)
    assert len(splits.train.sentences) == 2
    assert splits.dev is splits.test is None


def test_dev_sentences_are_predicted_without_a_test_file(tmp_path):
    ner = files(tmp_path, "train_file", "eval_file")
    splits = read_data(ner, **DO)
    assert splits.test is splits.dev
    splits = read_data(replace(ner, test_file=ner.eval_file), **DO)
    assert splits.test is splits.dev
    splits = read_data(ner, **DO | {"do_train": False, "do_eval": False})
    assert (splits.train, splits.dev, len(splits.test.sentences)) == (None, None, 2)


@pytest.mark.parametrize(("name", "value"), [("train_file", "a"), ("columns", ["tag=2"])])
def test_file_settings_are_rejected_with_tfds(name, value):
    with pytest.raises(
        InputError, match=f"--{name} cannot be combined with --tfds; expected --task_n"
    ):
        read_data(NerSettings(tfds=True, task_name="conll2003", **{name: value}), **DO)


@pytest.mark.parametrize(
    ("names", "do_train", "message"),
    [
        (["eval_file"], True, "--train_file is missing; expected a CoNLL column file or texts"),
        (["train_file"], False, "nothing to do: .* expected --eval_file, --test_file"),
    ],
)
def test_missing_file_flag_is_named(tmp_path, names, do_train, message):
    with pytest.raises(InputError, match=message):
        read_data(files(tmp_path, *names), **DO | {"do_train": do_train})


def test_tags_without_a_label_in_the_model_are_named():
    with pytest.raises(InputError, match="the tag 'I-X' is not one of the model's labels O, B-X;"):
        tag_ids([["O", "B-X", "I-X"]], ["O", "B-X"])


# --- column files ---


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "train.conll"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_words_are_the_first_column_and_tags_the_last(file):
    path = file("EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP B-PER\n")
    assert read_conll(path) == [
        Sentence(("EU", "rejects"), ("B-ORG", "O"), line=1),
        Sentence(("Peter",), ("B-PER",), line=4),
    ]


def test_other_columns_can_be_chosen(file):
    path = file("1\tEU\tB-ORG\tx\n")
    assert read_conll(path, token_column=1, tag_column=2)[0].words == ("EU",)
    assert read_conll(path, token_column=1, tag_column=-2)[0].tags == ("B-ORG",)


@pytest.mark.parametrize(
    "end", ["\n\n", "\n\t\n", "\n \t \n", "\r\n\r\n", "\r\n\t\r\n", "\n\n\n\n"]
)
def test_blank_line_with_any_whitespace_ends_a_sentence(file, end):
    sentences = read_conll(file(f"a\tO{end}b\tO"))
    assert [sentence.words for sentence in sentences] == [("a",), ("b",)]


def test_byte_order_mark_is_not_part_of_the_first_word(file):
    assert read_conll(file(b"\xef\xbb\xbfEU O\n"))[0].words == ("EU",)


def test_multiple_spaces_separate_columns_like_one(file):
    assert read_conll(file("EU   O \nis O\n"))[0].tags == ("O", "O")


def test_words_between_tabs_may_contain_spaces_or_be_a_no_break_space(file):
    path = file("New York\tB-LOC\n\u00a0\tO\n\u2028\tO\n")
    assert read_conll(path)[0].words == ("New York", "\u00a0", "\u2028")


def test_lines_with_a_number_sign_are_words(file):
    assert read_conll(file("a O\n#b O\n"))[0].words == ("a", "#b")
    path = file("#\thttp://a.b [2011]\n1\tEU\tB-ORG\n")
    for columns in ((0, -1), (1, 2)):
        with pytest.raises(InputError, match=r"line [12]: .*comments are not supported: remove"):
            read_conll(path, *columns)


def test_docstart_lines_start_documents_and_are_not_words(file):
    path = file("-DOCSTART- -X- O O\n\na N O O\n\nb N O O\n\n-DOCSTART- -X- O O\nc N O O\n")
    assert [(s.words, s.document) for s in read_conll(path)] == [
        (("a",), 0),
        (("b",), 0),
        (("c",), 1),
    ]


def test_docstart_line_may_have_fewer_columns_and_come_first(file):
    assert read_conll(file("-DOCSTART- O\na N N O\n"))[0] == Sentence(("a",), ("O",), line=2)


def test_file_with_one_column_has_words_without_tags(file):
    assert read_conll(file("EU\nrejects\n")) == [Sentence(("EU", "rejects"), (), line=1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\nb\n", r"train\.conll, line 2: expected 2 columns, as in line 1; got 1: 'b'"),
        ("a N O\n\nb O\n", r"line 3: expected 3 columns, as in line 1; got 2: 'b O'"),
        ("a\tO\n\tO\n", r"line 2: column 0 is empty; expected a word and its tag"),
        ("a\tO\nb\t\n", r"line 2: column -1 is empty"),
        (b"a\tO\n\xff\tO\n", r"line 2: expected UTF-8, got the bytes b'\\xff\\tO"),
        ("a\tO\nb\0\tO\n", r"line 2: has a NUL character; expected text in UTF-8"),
        ("\n\n", r"train\.conll: contains no sentences"),
        ("-DOCSTART- -X- O\n", r"train\.conll: contains no sentences"),
    ],
)
def test_invalid_line_is_rejected_with_file_and_line_number(file, text, message):
    with pytest.raises(InputError, match=message):
        read_conll(file(text))


def test_missing_column_is_rejected(file):
    with pytest.raises(InputError, match=r"line 1: --columns=tag=4, but the line has 2 columns"):
        read_conll(file("a O\n"), tag_column=4)


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"none\.conll: cannot be read: No such file"):
        read_conll(tmp_path / "none.conll")


def test_columns_are_written_in_the_format_of_conlleval(tmp_path):
    path = tmp_path / "predictions.conll"
    write_conll(
        path, [(("New York", "\u00a0"), ("B-LOC", "O"), ("B-LOC", "O")), (("a",), ("O",), ("O",))]
    )
    assert path.read_text() == "New_York B-LOC B-LOC\n_ O O\n\na O O\n\n"


def test_wnut_17_is_read_completely(shared_data):
    folder = shared_data / "ner" / "wnut17"
    counts = {
        name: len(read_conll(folder / name))
        for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    }
    assert counts == {
        "wnut17train.conll": 3394,
        "emerging.dev.conll": 1009,
        "emerging.test.annotated": 1287,
    }


@pytest.mark.parametrize("first", [0, 1])
def test_column_of_word_numbers_is_rejected(tmp_path, first):
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\tIn\tO\n{first + 1}\tOslo\tB-LOC\n\n{first}\tHere\tO\n")
    with pytest.raises(
        InputError, match=r"column 0 has the number of each word; .*--columns=token=1"
    ):
        read_conll(path)
    assert [sentence.words for sentence in read_conll(path, 1)] == [("In", "Oslo"), ("Here",)]


# --- TensorFlow Datasets ---

tfds = pytest.importorskip("tensorflow_datasets")
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TFDS_ROWS = {"tokens": [["Ada", "Lee", "naïve"], [], ["Ulm"]], "numbers": [[1, 2, 0], [], [3]]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares conll2003 and wikiann/de in the layout of TFDS, and a dataset of another kind."""
    import numpy as np
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("tfds")
    tags = tfds.features.Sequence(tfds.features.ClassLabel(names=TAGS))
    others = tfds.features.Sequence(np.int32)
    tables = {
        ("conll2003", "conll2003"): ("ner", tags, ("train", "dev", "test")),
        ("wikiann", "de"): ("tags", tags, ("train", "validation", "test")),
        ("numbers", "numbers"): ("sizes", others, ("train",)),
        ("only", "train"): ("tags", tags, ("train",)),
        ("no", "words"): ("tags", tags, ("train", "validation")),
    }
    for (name, config), (column, feature, splits) in tables.items():
        words = tf.ragged.constant(TFDS_ROWS["tokens"], dtype=tf.string)
        numbers = tf.ragged.constant(TFDS_ROWS["numbers"], dtype=tf.int32)
        if column != "sizes":
            numbers = tf.cast(numbers, tf.int64)
        rows = tf.data.Dataset.from_tensor_slices({"tokens": words, column: numbers})
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            config=config,
            version="1.0.0",
            data_dir=folder,
            features=tfds.features.FeaturesDict(
                {"tokens": tfds.features.Sequence(tfds.features.Text()), column: feature}
            ),
            split_datasets=dict.fromkeys(splits, rows.skip(1).take(1) if name == "no" else rows),
            disable_shuffling=True,
        )
    return str(folder)


def read_tfds(prepared, task_name, **changes):
    ner = NerSettings(tfds=True, data_dir=prepared, task_name=task_name)
    return read_data(replace(ner, **changes.pop("ner", {})), **DO | changes)


@pytest.mark.parametrize("task_name", ["conll2003", "wikiann/de"])
def test_sentences_have_the_words_tags_and_lines_of_a_column_file(prepared, task_name):
    splits = read_tfds(prepared, task_name)
    assert [(s.words, s.tags, s.line) for s in splits.dev.sentences] == [
        (("Ada", "Lee", "naïve"), ("B-PER", "I-PER", "O"), 1),
        (("Ulm",), ("B-LOC",), 5),
    ]
    assert splits.train.types == {"PER", "LOC"}
    name = task_name if "/" in task_name else f"{task_name}/{task_name}"
    dev = "dev" if task_name == "conll2003" else "validation"
    for file, split in ((splits.train, "train"), (splits.dev, dev), (splits.test, "test")):
        assert file.source.endswith(f"{name}/1.0.0, split {split}")


def test_settings_of_a_dataset_are_checked(prepared):
    with pytest.raises(InputError, match="--task_name is missing; expected a dataset for --tfds"):
        read_tfds(prepared, "")
    with pytest.raises(InputError, match="--eval_file cannot be combined with --tfds"):
        read_tfds(prepared, "conll2003", ner={"eval_file": "dev.conll"})


def test_missing_split_is_skipped_and_empty_split_is_rejected(prepared):
    splits = read_tfds(prepared, "only/train")
    assert len(splits.train.sentences) == 2
    assert splits.dev is splits.test is None
    with pytest.raises(InputError, match=r"nothing to do: there are no sentences"):
        read_tfds(prepared, "only/train", do_train=False)
    with pytest.raises(InputError, match=r"no/words/1.0.0, split train: contains no sentences"):
        read_tfds(prepared, "no/words")


def test_dataset_that_is_unprepared_or_has_no_tags_is_rejected(prepared):
    message = r"no prepared dataset conll2002/es .*tfds build conll2002/es --data_dir="
    with pytest.raises(InputError, match=message):
        read_tfds(prepared, "conll2002/es")
    with pytest.raises(InputError, match=r"numbers: has the columns .*; expected tokens and ner"):
        read_tfds(prepared, "numbers")
