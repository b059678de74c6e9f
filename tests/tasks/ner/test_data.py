"""Tests files and labels: one tag scheme for the model, one set of types for all files."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.common.errors import InputError
from keras_bert.tasks.ner.conll import read_conll
from keras_bert.tasks.ner.data import NerSettings, read_data, tagged
from keras_bert.tasks.ner.labels import check_labels, check_types, make_labels, tag_ids


@pytest.fixture
def read(tmp_path):
    def read(text, name="train.conll", tags_needed=True, **settings):
        path = tmp_path / name
        path.write_text(text)
        return tagged(str(path), read_conll(path), NerSettings(**settings), tags_needed)

    return read


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("iob1", "O I-PER I-PER B-PER"),
        ("iob2", "O B-PER I-PER B-PER"),
        ("bioes", "O B-PER E-PER S-PER"),
        ("bilou", "O B-PER L-PER U-PER"),
        ("bmes", "O B-PER M-PER S-PER"),
        ("bmewo", "O B-PER E-PER W-PER"),
    ],
)
def test_every_scheme_is_converted_to_iob2(read, scheme, tags, caplog):
    with caplog.at_level("INFO", "absl"):
        file = read("".join(f"w\t{tag}\n" for tag in tags.split()))
    assert file.tags == [["O", "B-PER", "I-PER", "B-PER"]]
    assert f"1 sentences, 4 words, 2 entities, scheme {scheme}" in caplog.text


def test_types_without_a_prefix_are_converted_to_iob2(read):
    file = read("a PER\nb PER\nc LOC\nd O\n")
    assert file.tags == [["B-PER", "I-PER", "B-LOC", "O"]]
    labels = make_labels(read("a PER\nd O\n"), None)
    with pytest.raises(InputError, match=r"line 3: tag 'LOC', but x has no entity of type 'LOC'"):
        check_types(file, labels, "x")


def test_prefix_of_all_tags_in_io_is_no_part_of_the_types(read):
    file = read("a I-PER\nb I-PER\nc I-LOC\nd O\n", tag_scheme="io")
    assert file.tags == [["B-PER", "I-PER", "B-LOC", "O"]]


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
@pytest.mark.parametrize("keys", [("tokens", "ner_tags"), ("words", "labels"), ("tokens", "tags")])
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
        ({"text": "a"}, "'tokens' is None; expected a list of words"),
    ],
)
def test_invalid_rows_of_words_are_named(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"dev\.jsonl, line 5: {message}"):
        read_rows(tmp_path / "dev.jsonl", [*ROWS, row])


def test_invalid_sequences_are_counted_and_read_like_conlleval(read, caplog):
    file = read("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2")
    assert file.tags == [["B-PER", "O", "B-LOC"]]
    assert "1 tags violate the scheme iob2" in caplog.text


def test_strict_rejects_invalid_sequences(read):
    with pytest.raises(InputError, match=r"train\.conll, line 3: iob2 does not allow 'I-LOC'"):
        read("a B-PER\nb O\nc I-LOC\n", tag_scheme="iob2", strict=True)


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


def test_entities_without_a_type_have_tags_b_and_i(read):
    assert make_labels(read("a B\nb I\nc O\n"), None) == ["O", "B", "I"]


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


@pytest.mark.parametrize(
    ("name", "value"), [("train_file", "a"), ("tag_column", 2), ("comment_prefix", "#")]
)
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
