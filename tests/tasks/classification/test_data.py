"""Labels of every problem type, as numbers, from files and arguments."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.classification.data import (
    ClassificationSettings,
    find_labels,
    given_label_array,
    label_array,
    read_data,
    warn_of_absent_labels,
    weights_of_classes,
)
from keras_bert.tasks.tables import Texts


def texts(*labels):
    locations = [f"a.tsv, line {number}" for number in range(2, len(labels) + 2)]
    return Texts("a.tsv", (["x"] * len(labels),), list(labels), locations)


def array_of(labels, problem_type, classes):
    return label_array(texts(*labels), problem_type, classes).tolist()


def test_classes_are_sorted_by_value_or_alphabetically():
    assert find_labels(texts("10", "9", "10"), "single_label") == ("9", "10")
    assert find_labels(texts("b", "a", "10"), "single_label") == ("10", "a", "b")
    assert find_labels(texts(True, False), "single_label") == ("false", "true")
    assert find_labels(texts("1.5", "2"), "regression") == ()
    assert array_of(["2.5", 1], "regression", ()) == [2.5, 1.0]


@pytest.mark.parametrize(
    ("labels", "classes", "rows"),
    [
        (["a, c", ["b"], "", None], ("a", "b", "c"), [[1, 0, 1], [0, 1, 0], [0] * 3, [0] * 3]),
        # As JSON spells them.
        ([[0, False], 0, False, None], ("0", "false"), [[1, 1], [1, 0], [0, 1], [0, 0]]),
    ],
)
def test_multiple_labels_are_separated_by_commas_or_listed_or_absent(labels, classes, rows):
    assert find_labels(texts(*labels), "multi_label") == classes
    assert array_of(labels, "multi_label", classes) == rows


@pytest.mark.parametrize("number", ["high", "", None, "nan", "inf", [1], "1e39", 10**400])
def test_value_that_is_not_a_number_is_rejected(number):
    with pytest.raises(InputError, match=r"a.tsv, line 3: expected a number as label, got"):
        label_array(texts("1", number), "regression", ())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("a", "c"), "a.tsv, line 3: unknown label 'c'; expected one of a, b"),
        (("", "a"), 'a.tsv, line 2: expected a label, got ""'),
    ],
)
def test_invalid_label_is_rejected_with_file_and_line(labels, message):
    with pytest.raises(InputError, match=message):
        label_array(texts(*labels), "single_label", ("a", "b"))


def test_single_class_is_rejected():
    with pytest.raises(InputError, match=r"a.tsv: expected at least 2 classes, got a"):
        find_labels(texts("a", "a"), "single_label")


def test_classes_missing_in_evaluation_are_named(caplog):
    warn_of_absent_labels(texts("a"), np.array([0]), ("a", "b", "c"))
    assert "a.tsv: no example is labelled b, c" in caplog.text


# --- class weights ---

MANY = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], np.float32)


@pytest.mark.parametrize(
    ("setting", "problem_type", "array", "weights"),
    [
        ("", "single_label", np.array([0]), []),
        ("1,2.5", "single_label", np.array([0]), [1.0, 2.5]),
        ({"b": 3}, "single_label", np.array([0]), [1.0, 3.0]),
        ([1, 2.5], "single_label", np.array([0]), [1.0, 2.5]),
        (np.array([1, 2.5]), "single_label", np.array([0]), [1.0, 2.5]),
        (dict(zip(np.arange(2), [1, 2.5], strict=True)), "single_label", np.array([0]), [1.0, 2.5]),
        ({np.str_("b"): 3}, "single_label", np.array([0]), [1.0, 3.0]),
        ({0: 0.5, 1: 2.0}, "multi_label", MANY, [0.5, 2.0]),
        ("balanced", "single_label", np.array([0, 0, 0, 1]), [4 / (2 * 3), 4 / (2 * 1)]),
        ("balanced", "multi_label", MANY, [1 / 3, 3]),
        ("balanced", "multi_label", np.maximum(MANY, [1, 0]), [1, 3]),  # A label of all examples.
    ],
)
def test_class_weights(setting, problem_type, array, weights):
    computed = weights_of_classes("class_weights", setting, problem_type, ("a", "b"), array)
    assert computed == pytest.approx(weights, rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "problem_type", "message"),
    [
        *(
            (setting, "single_label", r"expected balanced, or 2 numbers .* each of a, b")
            for setting in ("1,2,3", "a,b", "-1,2", "nan,1", "0,1", [1, 2, 3], {"a": None})
        ),
        *(
            (weights, "single_label", f"has the key {key}; expected labels: a, b")
            for weights, key in (({"a": 2, "c": 1}, "'c'"), ({2: 1}, "'2'"), ({-1: 1}, "'-1'"))
        ),
        (2.0, "single_label", "class_weights is 2.0, a float; expected a list of numbers"),
        ("balanced", "single_label", "balanced: no training example is labelled 'b'"),
        ("balanced", "regression", "a regression has no classes"),
    ],
)
def test_class_weights_that_do_not_match_the_classes_are_rejected(setting, problem_type, message):
    with pytest.raises(InputError, match=message):
        weights_of_classes("--class_weights", setting, problem_type, ("a", "b"), np.array([0]))


# --- labels in files ---


def read(folder, ending, labels, problem_type="single_label"):
    """Writes examples with the labels to a file, and returns the classes and the label array."""
    path = folder / f"train.{ending}"
    rows = [("text", "label"), *(("x", label) for label in labels)]
    if ending == "csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    elif ending == "tsv":
        path.write_text("".join(f"{x}\t{y}\n" for x, y in rows))
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"text": "x", "label": y}) + "\n" for y in labels))
    else:
        parquet.write_table(pa.table({"text": ["x"] * len(labels), "label": labels}), path)
    settings = ClassificationSettings("custom", train_file=str(path), problem_type=problem_type)
    do = {"do_train": True, "do_eval": False, "do_predict": False}
    problem, splits = read_data(settings, None, **do)
    return problem.labels, label_array(splits.train, problem_type, problem.labels).tolist()


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("['a', 'b']", "a b"),
        ('["a", "b"]', "a b"),
        ("{'b'}", "b"),
        ("a, b", "a b"),
        ("['a', None]", "a"),
        ("[]", ""),
        ("set()", ""),
        ("", ""),
    ],
)
def test_lists_in_cells_are_labels(tmp_path, cell, names):
    rows = [cell, "a,b", '["a, b"]', "[OTHER]"]
    labels, array = read(tmp_path, "csv", rows, "multi_label")
    assert labels == ("[OTHER]", "a", "a, b", "b")
    assert array[0] == [name in names.split() for name in labels]
    assert array[2:] == [[0, 0, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("cell", ["[1, 2]", [1, 2.0]])
def test_lists_of_numbers_are_labels(tmp_path, cell):
    ending = "csv" if isinstance(cell, str) else "jsonl"
    labels, array = read(tmp_path, ending, [cell, "3"], "multi_label")
    assert (labels, array) == (("1", "2", "3"), [[1, 1, 0], [0, 0, 1]])


NOT_A_LIST = r"line \d: expected labels separated by ',', or a list such as \[\"a\", \"b\"\], got"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", "[a, b]"], NOT_A_LIST),
        (["a", "['a' 'b']"], NOT_A_LIST),  # as NumPy writes an array
        (["a", "array(['a', 'b'], dtype=object)"], NOT_A_LIST),
        (["a", "['a', nan]"], NOT_A_LIST),
        (["a", "{['a']}"], NOT_A_LIST),
        (["a", "[" * 9999 + "a,b" + "]" * 9999], NOT_A_LIST),
        (["a", "[['a', 'b']]"], r"line \d: expected "),
        (["a", "[0 1 1]"], NOT_A_LIST),
        (["a", "a,nan"], r"line \d: expected a label, got nan; remove examples without a label"),
        (["a", [["a"]]], r"line \d: expected a label, got \["),
        (["a", [0, 1, 1]], r"expected the names of the labels, got zeros and ones: \[0, 1, 1\]"),
        ([[0, 1], [1, 0]], "expected the names of the labels, got both 0 and 1 in"),
        (["[1, 0]", "[0, 1]"], "expected the names of the labels, got both 1 and 0 in"),
        ([[True, False], [False, True]], "the names of the labels, got both true and false in"),
    ],
)
def test_lists_that_are_not_labels_are_rejected(tmp_path, cells, message):
    ending = "csv" if isinstance(cells[1], str) else "jsonl"
    with pytest.raises(InputError, match=rf"train\.{ending}.*{message}"):
        read(tmp_path, ending, cells, "multi_label")


@pytest.mark.parametrize(
    ("ending", "cell"), [("csv", "['a', 'b']"), ("csv", "['a' 'b']"), ("jsonl", ["a", "b"])]
)
def test_lists_for_a_single_label_are_rejected(tmp_path, ending, cell):
    with pytest.raises(InputError, match=r"line \d: expected a label, got .*is multi_label"):
        read(tmp_path, ending, ["a", cell])


@pytest.mark.parametrize("problem_type", ["single_label", "multi_label", "regression"])
@pytest.mark.parametrize(
    ("ending", "labels"),
    [
        ("csv", ["1", "2", "nan"]),
        ("tsv", ["1", "2", "<NA>"]),
        ("csv", ["1", "2", "None"]),
        ("parquet", [1.0, 2.0, float("nan")]),
    ],
)
def test_missing_labels_are_no_class(tmp_path, ending, labels, problem_type):
    with pytest.raises(InputError, match=rf"train\.{ending}, \w+ [34]: expected a .*label, got"):
        read(tmp_path, ending, labels, problem_type)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_integers_as_floats_are_integers(tmp_path, ending):
    assert read(tmp_path, ending, [1.0, 0.0, 10.0]) == (("0", "1", "10"), [1, 0, 2])
    assert read(tmp_path, ending, [1.0, 0.5])[0] == ("0.5", "1.0")
    assert array_of(["1.0", 1, 0.0], "single_label", ("0", "1")) == [1, 1, 0]


# --- labels as arguments ---

ROWS = [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
NAMES = [["a", "b"], [], ["c"]]


@pytest.mark.parametrize(
    ("problem_type", "classes", "items", "array"),
    [
        ("single_label", "01", [0, "1"], [0, 1]),
        ("single_label", "ba", np.array([1, 0]), [1, 0]),  # Indices.
        ("single_label", "21", [1, 2], [1, 0]),
        ("single_label", "01", np.array([0, 1]), [0, 1]),
        ("single_label", "01", [np.int64(0), b"1"], [0, 1]),
        ("single_label", "ab", np.array([b"b", b"a"]), [1, 0]),
        ("multi_label", "cab", NAMES, ROWS),
        ("multi_label", "cab", [np.array(row, "S1") for row in NAMES], ROWS),
        *(("multi_label", "cab", np.array(ROWS, k), ROWS) for k in (bool, np.int64, np.float32)),
        ("multi_label", "cab", tuple(map(tuple, ROWS)), ROWS),
        ("multi_label", "012", [["1", "2"], ["0"]], [[0, 1, 1], [1, 0, 0]]),
        ("multi_label", "012", [[1, 2], [0]], [[0, 1, 1], [1, 0, 0]]),
        ("multi_label", "012", np.array(ROWS, bool), ROWS),
    ],
)
def test_labels_may_have_any_type_convertible_to_a_name(problem_type, classes, items, array):
    assert given_label_array("labels", items, problem_type, tuple(classes)).tolist() == array


@pytest.mark.parametrize(
    ("problem_type", "classes", "items", "message"),
    [
        ("single_label", "ab", [["a"]], r"labels\[0\] is \['a'\]; expected a class name"),
        ("single_label", "ab", [0, 2], "labels, item 1: unknown label '2'; expected one of a, b"),
        ("single_label", "a2", [0, 1], "labels, item 0: unknown label '0'; expected one of a, 2"),
        ("single_label", "ab", [None], "labels, item 0: expected a label, got null"),
        ("single_label", "ab", np.array(["a", np.nan]), "item 1: expected a label, got nan; rem"),
        ("multi_label", "ab", ["a"], r"labels\[0\] is 'a'; expected a list of class names"),
        ("multi_label", "ab", [["c"]], "unknown label 'c'; expected some of a, b"),
        ("multi_label", [f"label{i}" for i in range(999)], [["c"]], r"unknown .{,240}\.\.\.$"),
        (
            "multi_label",
            "abc",
            [[0], [2]],
            "found the number .*, or rows of 3 values, a 0 or 1 for",
        ),
        *(
            (
                "multi_label",
                "cab",
                wrong,
                "found the number .*; expected some of c, a, b, or rows of",
            )
            for wrong in (np.array(ROWS)[:, :2], np.array(ROWS) * 2, np.array(ROWS) / 2)
        ),
        (
            "multi_label",
            "012",
            ROWS,
            "labels: found a 0 or 1 for each label, but 0 and 1 also name labels; expected names "
            "as strings, or a bool array with a column for each label",
        ),
    ],
)
def test_invalid_labels_as_arguments_are_rejected(problem_type, classes, items, message):
    with pytest.raises(InputError, match=message):
        given_label_array("labels", items, problem_type, tuple(classes))
