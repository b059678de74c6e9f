"""Tests labels: their order, numeric values and class weights, and invalid labels."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.labels import (
    class_weights,
    find_labels,
    label_array,
    warn_of_absent_labels,
)
from keras_bert.tasks.classification.texts import Texts


def texts(*labels):
    n = len(labels)
    return Texts("a.tsv", ["x"] * n, None, list(labels), list(range(2, n + 2)), ["0"] * n)


def test_classes_are_sorted_by_value_or_alphabetically():
    assert find_labels(texts("10", "9", "10"), "single_label") == ("9", "10")
    assert find_labels(texts("b", "a", "10"), "single_label") == ("10", "a", "b")
    assert find_labels(texts(True, False), "single_label") == ("false", "true")
    assert find_labels(texts("1.5", "2"), "regression") == ()


def test_single_label_of_several_classes():
    array = label_array(texts("b", "a", "b"), "single_label", ("a", "b"))
    assert array.dtype == np.int32
    assert array.tolist() == [1, 0, 1]


def test_multiple_labels_are_separated_by_a_sign_or_listed_or_absent():
    several = texts("a, c", ["b"], "", None)
    assert find_labels(several, "multi_label") == ("a", "b", "c")
    array = label_array(several, "multi_label", ("a", "b", "c"))
    assert array.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    falsy = texts([0, False], 0, False, None)  # As JSON spells them.
    assert find_labels(falsy, "multi_label") == ("0", "false")
    array = label_array(falsy, "multi_label", ("0", "false"))
    assert array.tolist() == [[1, 1], [1, 0], [0, 1], [0, 0]]
    array = label_array(texts("a|c"), "multi_label", ("a", "b", "c"), separator="|")
    assert array.tolist() == [[1, 0, 1]]


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
