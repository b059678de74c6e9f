"""Labels of every problem type, as numbers."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.classification.data import (
    ClassificationSettings,
    class_weights,
    find_labels,
    given_label_array,
    label_array,
    read_data,
    warn_of_absent_labels,
)
from keras_bert.tasks.tables import Texts


def texts(*labels):
    locations = [f"a.tsv, line {number}" for number in range(2, len(labels) + 2)]
    return Texts("a.tsv", (["x"] * len(labels),), list(labels), locations)


def test_classes_are_sorted_by_value_or_alphabetically():
    assert find_labels(texts("10", "9", "10"), "single_label") == ("9", "10")
    assert find_labels(texts("b", "a", "10"), "single_label") == ("10", "a", "b")
    assert find_labels(texts(True, False), "single_label") == ("false", "true")
    assert find_labels(texts("1.5", "2"), "regression") == ()


def test_classes_that_differ_only_in_case_or_unicode_form_are_reported(caplog):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    labels = find_labels(texts("Pos", "pos", composed, decomposed, "neg"), "single_label")
    assert labels == ("Pos", decomposed, composed, "neg", "pos")
    (message,) = caplog.messages
    assert "a.tsv: different classes have names that differ only in case" in message
    assert "'Pos', 'pos'" in message
    assert f"{decomposed!r}, {composed!r}" in message
    caplog.clear()
    find_labels(texts("Pos", "Neg"), "single_label")
    assert not caplog.messages


def test_multiple_labels_are_separated_by_a_sign_or_listed_or_absent():
    several = texts("a, c", ["b"], "", None)
    assert find_labels(several, "multi_label") == ("a", "b", "c")
    array = label_array(several, "multi_label", ("a", "b", "c"))
    assert array.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    falsy = texts([0, False], 0, False, None)  # As JSON spells them.
    assert find_labels(falsy, "multi_label") == ("0", "false")
    array = label_array(falsy, "multi_label", ("0", "false"))
    assert array.tolist() == [[1, 1], [1, 0], [0, 1], [0, 0]]


def test_regression_labels_are_numbers():
    assert label_array(texts("2.5", 1), "regression", ()).tolist() == [2.5, 1.0]


@pytest.mark.parametrize("number", ["high", "", None, "nan", "inf", [1], "1e39", 10**400])
def test_value_that_is_not_a_number_is_rejected(number):
    with pytest.raises(InputError, match=r"a.tsv, line 3: expected a number as label, got"):
        label_array(texts("1", number), "regression", ())


def test_unknown_label_is_rejected_with_file_and_line():
    message = r"a.tsv, line 3: unknown label 'c'; expected one of a, b"
    with pytest.raises(InputError, match=message):
        label_array(texts("a", "c"), "single_label", ("a", "b"))


def test_missing_label_is_rejected():
    with pytest.raises(InputError, match=r"a.tsv, line 2: expected a label, got \"\""):
        find_labels(texts("", "a"), "single_label")


def test_single_class_is_rejected():
    with pytest.raises(InputError, match=r"a.tsv: expected at least 2 classes, got a"):
        find_labels(texts("a", "a"), "single_label")


def test_classes_missing_in_evaluation_are_named(caplog):
    warn_of_absent_labels(texts("a"), np.array([0]), ("a", "b", "c"))
    assert "a.tsv: no example is labelled b, c" in caplog.text


def test_balanced_weights_are_n_over_classes_times_counts():
    weights = class_weights("balanced", "single_label", ("a", "b"), np.array([0, 0, 0, 1]))
    np.testing.assert_allclose(weights, [4 / (2 * 3), 4 / (2 * 1)])
    array = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], np.float32)
    weights = class_weights("balanced", "multi_label", ("a", "b"), array)
    np.testing.assert_allclose(weights, [1 / 3, 3 / 1])
    array[:, 0] = 1
    weights = class_weights("balanced", "multi_label", ("a", "b"), array)
    np.testing.assert_allclose(weights, [1, 3 / 1])  # A label of all examples is learned as well.


def test_listed_weights_are_in_the_order_of_the_classes():
    assert class_weights("", "single_label", ("a", "b"), np.array([0])) is None
    weights = class_weights("1,2.5", "single_label", ("a", "b"), np.array([0]))
    assert weights.tolist() == [1.0, 2.5]


@pytest.mark.parametrize("setting", ["1", "1,2,3", "a,b", "-1,2", "nan,1", "0,1"])
def test_weights_that_do_not_match_the_classes_are_rejected(setting):
    with pytest.raises(InputError, match=r"expected balanced, or 2 numbers .* each of a, b"):
        class_weights(setting, "single_label", ("a", "b"), np.array([0, 1]))


def test_weights_of_absent_classes_and_of_regressions_are_rejected():
    with pytest.raises(InputError, match=r"balanced: no training example is labelled 'b'"):
        class_weights("balanced", "single_label", ("a", "b"), np.array([0]))
    with pytest.raises(InputError, match=r"a regression has no classes"):
        class_weights("balanced", "regression", (), np.array([0.0]))


# Labels in files

DO = {"do_train": True, "do_eval": False, "do_predict": False}


def read(folder, ending, labels, problem_type="single_label"):
    """Writes examples with the labels to a file, and returns the classes and the label array."""
    path = folder / f"train.{ending}"
    if ending == "csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *(("x", label) for label in labels)])
    elif ending == "tsv":
        path.write_text(
            "".join(f"{x}\t{y}\n" for x, y in [("text", "label"), *(("x", y) for y in labels)])
        )
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"text": "x", "label": y}) + "\n" for y in labels))
    else:
        parquet.write_table(pa.table({"text": ["x"] * len(labels), "label": labels}), path)
    settings = ClassificationSettings("custom", train_file=str(path), problem_type=problem_type)
    problem, splits = read_data(settings, None, **DO)
    return problem.labels, label_array(splits.train, problem_type, problem.labels).tolist()


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("['a', 'b']", "a b"),
        ('["a", "b"]', "a b"),
        ("['a' 'b']", "a b"),  # as NumPy and pandas write an array
        ("['a'\n 'b']", "a b"),
        ("[np.str_('a'), np.str_('b')]", "a b"),
        ("('a', 'b')", "a b"),
        ("{'b'}", "b"),
        ("['a']", "a"),
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


@pytest.mark.parametrize("cell", ["[1, 2]", "[1 2]", "[np.int64(1), np.int64(2)]", [1, 2.0]])
def test_lists_of_numbers_are_labels(tmp_path, cell):
    ending = "csv" if isinstance(cell, str) else "jsonl"
    labels, array = read(tmp_path, ending, [cell, "3"], "multi_label")
    assert (labels, array) == (("1", "2", "3"), [[1, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ([[0, 1], [1, 0]], "0 and 1"),
        ([[1.0, 0.0], [0.0, 1.0]], "1.0 and 0.0"),
        (["[1, 0]", "[0, 1]"], "1 and 0"),
        ([[True, False], [False, True]], "true and false"),
    ],
)
def test_a_zero_or_one_for_each_of_two_labels_is_rejected(tmp_path, cells, names):
    ending = "csv" if isinstance(cells[0], str) else "jsonl"
    with pytest.raises(InputError, match=f"expected the names of the labels, got both {names} in"):
        read(tmp_path, ending, cells, "multi_label")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("[a, b]", r"""expected labels separated by ',', or a list such as \["a", "b"\], got"""),
        ("['a' 'b]", "expected labels separated by"),
        ("array(['a', 'b'], dtype=object)", "expected labels separated by"),
        ("frozenset({'a'})", "expected labels separated by"),
        ("['a', nan]", "expected a label, got nan; remove examples without a label, or rename"),
        ("[nan]", "expected a label, got nan"),
        ("a,nan", "expected a label, got nan"),
        ("[['a', 'b']]", "expected labels separated by"),
        ("[['a'], ['b']]", "expected labels separated by"),
        ([["a"]], r"expected a label, got \["),
        ([{"label": "a"}], r"expected a label, got \{"),
        ([0, 1, 1], r"expected the names of the labels, got zeros and ones: \[0, 1, 1\]"),
        ([True, False, False], "expected the names of the labels, got zeros and ones"),
        ("[0 1 1]", "expected the names of the labels, got zeros and ones"),
    ],
)
def test_lists_that_are_not_labels_are_rejected(tmp_path, cell, message):
    ending = "csv" if isinstance(cell, str) else "jsonl"
    with pytest.raises(InputError, match=rf"train\.{ending}, line \d: {message}"):
        read(tmp_path, ending, ["a", cell], "multi_label")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_lists_for_a_single_label_are_rejected(tmp_path, ending):
    cell = "['a', 'b']" if ending == "csv" else ["a", "b"]
    with pytest.raises(InputError, match=r"line \d: expected a label, got .*is multi_label"):
        read(tmp_path, ending, ["a", cell])


@pytest.mark.parametrize("problem_type", ["single_label", "multi_label", "regression"])
@pytest.mark.parametrize(
    ("ending", "labels"),
    [
        ("csv", ["1", "2", "nan"]),
        ("tsv", ["1", "2", "<NA>"]),
        ("tsv", ["1", "2", "NaN"]),
        ("csv", ["1", "2", "None"]),
        ("jsonl", ["1", 2, float("nan")]),
        ("parquet", [1.0, 2.0, float("nan")]),
    ],
)
def test_missing_labels_are_no_class(tmp_path, ending, labels, problem_type):
    with pytest.raises(InputError, match=rf"train\.{ending}, \w+ [34]: expected a .*label, got"):
        read(tmp_path, ending, labels, problem_type)


def test_missing_labels_given_to_fit_are_named():
    for items in (["a", float("nan")], np.array(["a", np.nan]), np.array(["a", np.nan], object)):
        with pytest.raises(
            InputError, match=r"labels, item 1: expected a label, got (NaN|nan); re"
        ):
            given_label_array("labels", list(items), "single_label", ("a", "nan"))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_integers_as_floats_are_integers(tmp_path, ending):
    labels = [1.0, 0.0, 10.0]
    assert read(tmp_path, ending, labels) == (("0", "1", "10"), [1, 0, 2])
    assert read(tmp_path, ending, [1.0, 0.5])[0] == ("0.5", "1.0")
    assert label_array(texts("1.0", 1, 0.0), "single_label", ("0", "1")).tolist() == [1, 1, 0]
